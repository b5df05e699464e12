"""What a page reads of a derived table, and what it says about it."""

from __future__ import annotations

import re
import time
from typing import Any, cast

import pyarrow as pa
import pytest

from frazil.dashboard.api_client import SqlResult
from frazil.dashboard.derived import DerivedTable, read_all, rollups_of
from frazil.dashboard.view import View
from frazil.query.reads.rolled import Rolled
from frazil.query.reads.statement import Statement
from frazil.query.reads.time_range import MICRO, TimeRange

NOW = time.time_ns() // 1000
DAY = TimeRange(NOW - 86_400 * MICRO, NOW)


def tables(rows: int = 5, tail_rows: int = 0, **facts: Any) -> list[dict[str, Any]]:
    derived = {"source": "logs", "enabled": True, "days_left": 0, "lag_seconds": 0.0, **facts}
    return [
        {"name": "logs", "rows": rows, "tail_rows": tail_rows, "derived": None},
        {"name": "log_rollups", "rows": 1, "tail_rows": 0, "derived": derived},
    ]


@pytest.mark.parametrize(
    ("facts", "state", "said"),
    [
        ({}, "ok", ""),
        ({"lag_seconds": 30.0}, "ok", ""),
        ({"enabled": False, "lag_seconds": None}, "off", "is off"),
        ({"rows": 0, "lag_seconds": None}, "no data", ""),
        ({"lag_seconds": None}, "not derived", "not in `log_rollups` yet"),
        ({"days_left": 1}, "catching up", "1 past day is not in"),
        ({"days_left": 3, "lag_seconds": 300.0}, "catching up", "3 past days .* 5 min 00 s behind"),
    ],
)
def test_a_page_says_what_a_derived_table_lacks(facts: dict[str, Any], state: str, said: str) -> None:
    found = DerivedTable.of(tables(**facts), "log_rollups")
    assert found.state == state
    assert bool(found.note) == bool(said)
    assert re.search(said, found.note), found.note


def test_a_source_with_rows_that_have_not_landed_has_data() -> None:
    assert DerivedTable.of(tables(rows=0, tail_rows=2), "log_rollups").state == "ok"


def test_a_table_that_an_older_api_does_not_know_is_off() -> None:
    assert DerivedTable.of([], "log_rollups").state == "off"


def test_rollups_are_read_if_they_have_all_rows_of_a_long_range() -> None:
    read = rollups_of(tables(), ("log_rollups",), DAY, NOW)
    assert read is not None
    assert read.resolution == 3600
    assert rollups_of(tables(), ("log_rollups",), DAY.last(3600), NOW) is None
    for facts in ({"enabled": False}, {"lag_seconds": None}, {"days_left": 1}):
        assert rollups_of(tables(**facts), ("log_rollups",), DAY, NOW) is None


class Api:
    """Lacks rows of a derived table if told so."""

    def __init__(self, *missing: str) -> None:
        self.missing, self.asked = missing, list[str]()

    def sql(self, sql: str, params: Any, *, cache_seconds: float) -> SqlResult:
        self.asked.append(sql)
        stats = {"missing": self.missing} if "rollups" in sql else {}
        return SqlResult(pa.table({"sql": [sql]}), stats)


def statements(read: Rolled | None) -> list[Statement]:
    return [Statement("SELECT raw")] if read is None else [Statement("SELECT rollups")]


@pytest.mark.parametrize(("missing", "shown"), [((), "SELECT rollups"), (("some rows",), "SELECT raw")])
def test_raw_rows_are_read_if_rollups_lack_rows(missing: tuple[str, ...], shown: str) -> None:
    view = cast("View", type("View", (), {"api": Api(*missing)})())
    read = rollups_of(tables(), ("log_rollups",), DAY, NOW)
    (rows,), read = read_all(view, statements, read, cache_seconds=1)
    assert rows == [{"sql": shown}]
    assert (read is None) == (shown == "SELECT raw")
