"""A progress bar for long queries, on standard error."""

from __future__ import annotations

import threading
from typing import Self

from rich.console import Console

from frazil.client.transport import Transport
from frazil.errors import FrazilError
from frazil.query.model import Progress

DELAY_SECONDS = 1.0
INTERVAL_SECONDS = 0.25
_STATES = {"waiting": "waiting for a worker", "planning": "planning", "running": "running"}


class ProgressDisplay:
    """Shows a bar if its `with` block takes longer than a second and the console is a terminal."""

    def __init__(
        self, transport: Transport, id: str, console: Console, *, delay_seconds: float = DELAY_SECONDS
    ) -> None:
        self._transport = transport
        self._id = id
        self._console = console
        self._delay_seconds = delay_seconds
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._thread = threading.Thread(target=self._run, name="frazil-progress", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """Remove the bar. Can be called more than once."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        if self._stopped.wait(self._delay_seconds):
            return
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Bar(*columns, console=self._console, transient=True) as bar:
            task = bar.add_task("running", total=None)
            while not self._stopped.is_set():
                if (progress := self._progress()) is not None:
                    bar.update(
                        task,
                        description=describe(progress),
                        total=None if progress.percent is None else 100.0,
                        completed=progress.percent or 0.0,
                    )
                self._stopped.wait(INTERVAL_SECONDS)

    def _progress(self) -> Progress | None:
        try:
            return self._transport.progress(self._id)
        except FrazilError:
            return None


def describe(progress: Progress) -> str:
    state = _STATES.get(progress.state, progress.state)
    return state if progress.percent is None else f"{state} {progress.percent:.0f} %"
