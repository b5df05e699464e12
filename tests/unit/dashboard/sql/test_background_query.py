from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa

from frazil.dashboard.api_client import ApiError, SqlResult
from frazil.dashboard.sql.background_query import BackgroundQuery

ROWS = SqlResult(pa.table({"n": [1]}))


class SlowApi:
    """Answers when it is let, or told to cancel: as the API does."""

    def __init__(self, error: Exception | None = None) -> None:
        self.let = threading.Event()
        self.left = threading.Event()
        self.asked: dict[str, Any] = {}
        self.cancelled: list[str] = []
        self._error = error

    def sql(self, sql: str, *, rows_max: int | None, partial: bool, id: str | None) -> SqlResult:
        self.asked = {"sql": sql, "rows_max": rows_max, "partial": partial, "id": id}
        assert self.let.wait(10)
        self.left.set()
        if self._error is not None:
            raise self._error
        return ROWS

    def get(self, path: str) -> dict[str, Any]:
        if path != f"queries/{self.asked.get('id')}":
            raise ApiError("no query of that id waits or runs", code="not_found", status=404)
        return {"state": "planning", "percent": 12.5}

    def cancel(self, id: str) -> None:
        self.cancelled.append(id)
        self.let.set()


def test_the_page_goes_on_while_a_question_runs() -> None:
    api = SlowApi()
    query = BackgroundQuery(api, "SELECT 1", 10)
    assert not query.wait(0.01)
    api.let.set()
    assert query.wait(10)
    assert (query.result, query.error, query.is_stopped) == (ROWS, None, False)
    assert api.asked == {"sql": "SELECT 1", "rows_max": 10, "partial": False, "id": query.id}
    assert query.seconds == query.seconds > 0


def test_a_stopped_question_is_cancelled_at_the_api_and_its_error_is_not_shown() -> None:
    api = SlowApi(ApiError("cancelled", code="query_cancelled"))
    query = BackgroundQuery(api, "SELECT 1", 10)
    query.stop()
    assert query.wait(0)
    assert api.cancelled == [query.id]
    assert api.left.wait(10)
    assert (query.result, query.error, query.is_stopped) == (None, None, True)


def test_what_goes_wrong_is_kept_for_the_page() -> None:
    error = ApiError("no such column", code="query_invalid", status=400, position=7)
    api = SlowApi(error)
    api.let.set()
    query = BackgroundQuery(api, "SELECT x", 10)
    assert query.wait(10)
    assert query.error is error


def test_an_answer_that_cannot_be_read_ends_the_waiting_too() -> None:
    api = SlowApi(OSError("not Arrow"))
    api.let.set()
    query = BackgroundQuery(api, "SELECT 1", 10)
    assert query.wait(10)
    assert query.error is not None
    assert "not Arrow" in query.error.message


def test_how_far_it_is_can_be_seen_unless_it_is_over() -> None:
    api = SlowApi()
    query = BackgroundQuery(api, "SELECT 1", 10)
    while not api.asked:
        query.wait(0.001)
    assert query.progress() == ("planning", 12.5)
    api.asked = {}
    assert query.progress() == ("running", None)
    api.let.set()
    assert query.wait(10)
