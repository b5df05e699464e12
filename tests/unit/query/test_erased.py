"""Queries beside an erasure: they answer all that is left, or refuse, and forget what they kept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frazil.position import WalPosition, landing_position
from frazil.query.cache import SizedCache
from frazil.query.lake import Lake
from frazil.query.model import Query
from frazil.query.plan import Planner
from frazil.query.tail import PositionTooOld, Tail
from frazil.query.tail.view import View
from frazil.sql.constraint import UNCONSTRAINED
from tests.support.known_lake import KnownLake, holding
from tests.support.query.small_lake import Service

MARKER = "zanzibar"
WHERE = "attributes['user.id'] = 'u42'"
ROWS = [("acme", f"u42 {MARKER}", 9, 0.0), ("acme", "u1 stays", 9, 0.0), ("acme", "u2 stays", 9, 0.0)]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[KnownLake]:
    query = {"temp_dir": tmp_path / "temp", "threads": 1, "workers": 1, "metadata_age_max_seconds": 1e6}
    made = KnownLake(tmp_path / "data", query=query)
    with contextlib.closing(made):
        made.fill([("acme", "u0 first", 9, 0.0)])
        yield made


@contextlib.contextmanager
def planning(lake: KnownLake, folder: Path) -> Iterator[tuple[Planner, Tail]]:
    with contextlib.ExitStack() as stack:
        tables = stack.enter_context(contextlib.closing(Lake(lake.config)))
        tail = stack.enter_context(contextlib.closing(Tail(lake.config, folder / "tail")))
        yield stack.enter_context(contextlib.closing(Planner(lake.config, tables, tail))), tail


def rows_seen(planner: Planner) -> int:
    version, tail = planner.cut(planner.specs["logs"], [UNCONSTRAINED], Query("", "acme"))
    assert version is not None
    assert tail is not None
    assert tail.missing == ()
    tail.release()
    return tail.rows + sum(file.rows for file in version.files("acme").files)


@pytest.mark.parametrize("read_before", [True, False])
def test_a_query_that_knows_an_older_position_reads_it_again_and_answers_all_that_is_left(
    lake: KnownLake, tmp_path: Path, read_before: bool
) -> None:
    with planning(lake, tmp_path) as (planner, _):
        assert rows_seen(planner) == 1
        lake.write(ROWS)
        if read_before:
            assert rows_seen(planner) == 4
        lake.erase(WHERE)  # lands, and deletes the segments at once
        assert rows_seen(planner) == 3


def test_without_a_newer_position_it_is_refused_and_never_answered_with_less(
    lake: KnownLake, tmp_path: Path
) -> None:
    with planning(lake, tmp_path) as (_, tail):
        before = position_of(lake)
        lake.write(ROWS)
        lake.erase(WHERE)
        with pytest.raises(PositionTooOld):
            tail.cut("logs", before, "acme")


def test_a_query_whose_rows_were_erased_after_it_listed_them_reads_the_position_again(
    lake: KnownLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with planning(lake, tmp_path) as (_, tail):
        before = position_of(lake)
        lake.write(ROWS)
        load = View.load

        def late(view: View, *rest: Any) -> None:
            monkeypatch.undo()
            load(view, *rest)
            lake.erase(WHERE)
            tail.cut("logs", position_of(lake), "acme").release()  # another query, which knows of it

        monkeypatch.setattr(View, "load", late)
        with pytest.raises(PositionTooOld):
            tail.cut("logs", before, "acme", ["body"])
        assert holding(tmp_path / "tail", MARKER) == []


def position_of(lake: KnownLake) -> WalPosition:
    return landing_position(lake.table().current_snapshot().summary["frazil.position"]).wal


def test_the_service_forgets_answers_questions_and_rows_when_something_was_erased(
    lake: KnownLake, tmp_path: Path
) -> None:
    service = Service(lake.config)
    service.start()
    kept_by_another: SizedCache[str, str] = SizedCache(1000)
    service.queries.clear_on_erasure(kept_by_another)
    assert not service.queries._has_cached_data
    kept_by_another.put("a manifest", MARKER, len(MARKER))
    assert service.queries._has_cached_data, "or nobody would look whether it is to be forgotten"
    try:
        sql = f"SELECT body FROM logs WHERE body LIKE '%{MARKER}%'"
        lake.write(ROWS)
        assert len(service.execute(sql).rows) == 1
        assert service.execute(sql).stats.cached
        assert holding(tmp_path / "temp", MARKER) != []
        queries = service.queries
        queries._planner.bloom_cache.put(("a file", 1), (), 10)
        lake.erase(WHERE)
        queries._lake.version("logs", renew=True)
        queries._refresh()
        assert queries._results.bytes == 0
        assert queries._preparer._parsed.bytes == 0
        assert kept_by_another.bytes == 0
        assert queries._planner.bloom_cache.bytes == 0
        assert holding(tmp_path / "temp", MARKER) == []
        told = service.execute(sql)
        assert told.rows == []
        assert not told.stats.cached
        assert service.execute(sql).stats.cached, "what is asked since is kept again"
    finally:
        service.close()
