"""How far a long query is, on standard error."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from rich.console import Console

from frazil.client.transport import Transport
from frazil.errors import FrazilError
from frazil.query.model import Progress

AFTER_SECONDS = 1.0
EVERY_SECONDS = 0.25
_STATES = {"waiting": "waiting for a worker", "planning": "planning", "running": "running"}


class ProgressDisplay:
    """A bar while its `with` block takes longer than a second. Nothing where nobody looks."""

    def __init__(
        self, transport: Transport, id: str, console: Console, *, after_seconds: float = AFTER_SECONDS
    ) -> None:
        self._transport = transport
        self._id = id
        self._console = console
        self._after_seconds = after_seconds
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._thread = threading.Thread(target=self._run, name="frazil-watch", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """Take the bar away. May be called again."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self) -> None:
        if self._over.wait(self._after_seconds):
            return
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Bar(*columns, console=self._console, transient=True) as bar:
            task = bar.add_task("running", total=None)
            while not self._over.is_set():
                if (progress := self._ask()) is not None:
                    bar.update(
                        task,
                        description=describe(progress),
                        total=None if progress.percent is None else 100.0,
                        completed=progress.percent or 0.0,
                    )
                self._over.wait(EVERY_SECONDS)

    def _ask(self) -> Progress | None:
        try:
            return self._transport.progress(self._id)
        except FrazilError:
            return None


def describe(progress: Progress) -> str:
    state = _STATES.get(progress.state, progress.state)
    return state if progress.percent is None else f"{state} {progress.percent:.0f} %"
