"""A question that runs beside the page: the page can show how far it is, and stop it."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any, Protocol

from frazil.dashboard.api_client import ApiError, Rows


class Asked(Protocol):
    """What is needed of `Api`."""

    def sql(self, sql: str, *, rows_max: int | None, partial: bool, id: str | None) -> Rows: ...

    def get(self, path: str) -> dict[str, Any]: ...

    def cancel(self, id: str) -> None: ...


class Asking:
    """Begins at once, in a thread of its own. The server's limits end it if nobody does.

    `rows` or `trouble` is there when `wait` says that it has ended; neither if it was stopped.
    """

    def __init__(self, api: Asked, sql: str, rows_max: int) -> None:
        self.id = f"page-{uuid.uuid4().hex}"
        self.sql = sql
        self.rows: Rows | None = None
        self.trouble: ApiError | None = None
        self.is_stopped = False
        self._api, self._rows_max = api, rows_max
        self._began, self._took_seconds = time.monotonic(), 0.0
        self._ended = threading.Event()
        threading.Thread(target=self._ask, name=self.id, daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Whether it has ended."""
        return self._ended.wait(seconds)

    @property
    def seconds(self) -> float:
        """How long it has taken, until now if it still runs."""
        return self._took_seconds if self._ended.is_set() else time.monotonic() - self._began

    def progress(self) -> tuple[str, float | None]:
        """waiting, planning or running, and percent if known. That it cannot be told is no trouble."""
        try:
            found = self._api.get(f"queries/{self.id}")
        except ApiError:
            return "running", None
        return found["state"], found["percent"]

    def stop(self) -> None:
        """The page does not wait for the server's word."""
        self.is_stopped = True
        self._finish()
        self._api.cancel(self.id)

    def _ask(self) -> None:
        try:
            rows = self._api.sql(self.sql, rows_max=self._rows_max, partial=False, id=self.id)
        except ApiError as trouble:
            if not self.is_stopped:
                self.trouble = trouble
        except Exception as error:  # the thread has nobody else to tell
            self.trouble = ApiError(f"the query result cannot be read: {error}", code="unexpected")
        else:
            if not self.is_stopped:
                self.rows = rows
        finally:
            self._finish()

    def _finish(self) -> None:
        if not self._ended.is_set():
            self._took_seconds = time.monotonic() - self._began
            self._ended.set()
