"""A query that runs in a thread, so that the page can show its progress and stop it."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any, Protocol

from frazil.dashboard.api_client import ApiError, SqlResult


class QueryApi(Protocol):
    """The part of `ApiSession` that is used here."""

    def sql(self, sql: str, *, rows_max: int | None, partial: bool, id: str | None) -> SqlResult: ...

    def get(self, path: str) -> dict[str, Any]: ...

    def cancel(self, id: str) -> None: ...


class BackgroundQuery:
    """A query that starts immediately and runs until it is complete, `stop` is called, or a limit is reached.

    When `wait` returns True, `result` or `error` is set; neither if the query was stopped.
    """

    def __init__(self, api: QueryApi, sql: str, rows_max: int) -> None:
        self.id = f"page-{uuid.uuid4().hex}"
        self.sql = sql
        self.result: SqlResult | None = None
        self.error: ApiError | None = None
        self.is_stopped = False
        self._api, self._rows_max = api, rows_max
        self._began, self._took_seconds = time.monotonic(), 0.0
        self._ended = threading.Event()
        threading.Thread(target=self._execute, name=self.id, daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Returns whether the query has ended."""
        return self._ended.wait(seconds)

    @property
    def seconds(self) -> float:
        """The duration, until now if the query is running."""
        return self._took_seconds if self._ended.is_set() else time.monotonic() - self._began

    def progress(self) -> tuple[str, float | None]:
        """Returns waiting, planning or running, and the percentage if known."""
        try:
            found = self._api.get(f"queries/{self.id}")
        except ApiError:
            return "running", None
        return found["state"], found["percent"]

    def stop(self) -> None:
        """Does not wait for the server to confirm."""
        self.is_stopped = True
        self._finish()
        self._api.cancel(self.id)

    def _execute(self) -> None:
        try:
            result = self._api.sql(self.sql, rows_max=self._rows_max, partial=False, id=self.id)
        except ApiError as error:
            if not self.is_stopped:
                self.error = error
        except Exception as error:  # nothing else would report it
            self.error = ApiError(f"the query result cannot be read: {error}", code="unexpected")
        else:
            if not self.is_stopped:
                self.result = result
        finally:
            self._finish()

    def _finish(self) -> None:
        if not self._ended.is_set():
            self._took_seconds = time.monotonic() - self._began
            self._ended.set()
