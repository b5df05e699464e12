"""A lake that the previous version wrote: each promoted column is filled from one attribute, and is NULL
where a record has it by an older name.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyiceberg.expressions import EqualTo

from frazil.config import Config
from frazil.errors import Conflict, JobFailed, Refused
from frazil.lake.commits.commit import Committer
from frazil.lake.snapshots import LANDED
from frazil.ledger import balance
from frazil.pipeline.maintain.maintainer import Maintainer
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.maintain.report import TaskReport
from frazil.pipeline.metrics import Metrics
from frazil.tables.promoted import fingerprint_of
from tests.support.known_lake import DAY
from tests.support.local_runner import LocalRunner
from tests.support.previous_version import HttpLake
from tests.support.query.small_lake import Service

T = TypeVar("T")
R = TypeVar("R")
OLD = {"http.method": "GET", "http.status_code": 200}
FAILED = {"http.method": "POST", "http.status_code": 500}
NEW = {"http.request.method": "PUT", "http.response.status_code": 404}
BOTH = {**OLD, **NEW}
RECORDS = (OLD, FAILED, NEW, BOTH, {})
STATUSES: Counter[int | None] = Counter([200, 500, 404, 404, None])
COLUMN = "http_response_status_code"


@contextlib.contextmanager
def lake_of(folder: Path, **settings: Any) -> Iterator[HttpLake]:
    with contextlib.closing(HttpLake(folder / "data", **settings)) as lake:
        yield lake


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[HttpLake]:
    """Three days, a file each, of the previous version."""
    with lake_of(tmp_path) as lake:
        for days in (3, 2, 1):
            lake.land_before(RECORDS, days=days)
        assert statuses(lake) == Counter({404: 6, None: 9}), "as other engines saw them"
        yield lake


def statuses(lake: HttpLake, column: str = COLUMN) -> Counter[Any]:
    """As any engine reads the table."""
    return Counter(lake.table().scan(selected_fields=(column,)).to_arrow()[column].to_pylist())


def times(counts: Counter[Any], number: int) -> Counter[Any]:
    return Counter({key: number * count for key, count in counts.items()})


def maintainer(lake: HttpLake, config: Config | None = None, runner: LocalRunner | None = None) -> Maintainer:
    return Maintainer(
        config or lake.config,
        lake.catalog,
        runner or LocalRunner(),
        MaintainMetrics(Metrics().registry),
        clock=lambda: lake.now + 10 * DAY,
    )


def filled(lake: HttpLake, *, dry_run: bool = False) -> TaskReport:
    return maintainer(lake).run("fill", "logs", dry_run=dry_run)


def fingerprints(lake: HttpLake) -> Counter[bool]:
    return Counter(bool(fingerprint_of(path)) for path in lake.data_files())


def answers(lake: HttpLake, sql: str) -> list[list[Any]]:
    service = Service(lake.config)
    service.start()
    try:
        return service.execute(sql).rows
    finally:
        service.close()


def assert_filled(lake: HttpLake, days: int = 3) -> None:
    assert statuses(lake) == times(STATUSES, days)
    assert statuses(lake, "deployment_environment_name") == Counter({"staging": 5 * days})
    assert statuses(lake, "http_request_method") == Counter(
        {"GET": days, "POST": days, "PUT": 2 * days, None: days}
    )
    assert fingerprints(lake)[False] == 0
    assert balance(lake.config).problems == []


def test_fill_writes_every_file_of_before_again_and_keeps_rows_and_ledger(lake: HttpLake) -> None:
    landed = lake.table().metadata.refs[LANDED].snapshot_id
    before, maps = lake.data_files(), lake.table().scan(selected_fields=("attributes",)).to_arrow()
    would = filled(lake, dry_run=True)
    assert (would.files_in, would.rows) == (3, 15)
    assert lake.data_files() == before
    report = filled(lake)
    assert (report.files_in, report.files_out, report.rows, report.rows_removed) == (3, 3, 15, 0)
    assert not lake.data_files() & before
    assert lake.table().metadata.refs[LANDED].snapshot_id == landed
    assert_filled(lake)
    after = lake.table().scan(selected_fields=("attributes",)).to_arrow()
    assert sorted(map(str, after["attributes"].to_pylist())) == sorted(
        map(str, maps["attributes"].to_pylist())
    )
    assert filled(lake).is_nothing


def test_statistics_of_filled_files_let_other_engines_skip_files(lake: HttpLake) -> None:
    scan = lake.table().scan(EqualTo(COLUMN, 500))
    assert not list(scan.plan_files()), "all that the files of before have is 404"
    filled(lake)
    assert lake.table().scan(EqualTo(COLUMN, 500)).to_arrow().num_rows == 3


def test_compaction_fills_the_files_that_it_merges(lake: HttpLake) -> None:
    for _ in range(3):
        lake.land_before(RECORDS, days=1)
    report = maintainer(lake).run("compact", "logs")
    assert (report.files_in, report.files_out) == (4, 1)
    assert fingerprints(lake) == {True: 1, False: 2}
    assert statuses(lake) == times(STATUSES, 4) + Counter({404: 4, None: 6})
    assert filled(lake).files_in == 2
    assert_filled(lake, 6)


def test_files_that_landed_since_are_left_alone(lake: HttpLake) -> None:
    lake.send(RECORDS)
    lake.land()
    assert fingerprints(lake) == {True: 1, False: 3}
    new = {path for path in lake.data_files() if fingerprint_of(path)}
    assert filled(lake).files_in == 3
    assert new < lake.data_files()
    assert_filled(lake, 4)


def test_segments_of_the_previous_version_land_filled(lake: HttpLake) -> None:
    lake.send(RECORDS, before=True)
    lake.land()
    assert statuses(lake) == STATUSES + Counter({404: 6, None: 9})


class Stopping(LocalRunner):
    """Fails after so many pieces of work, as Spark does when it is stopped."""

    def __init__(self, pieces: int) -> None:
        super().__init__()
        self.pieces = pieces

    def results(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        for number, result in enumerate(super().results(work, items)):
            if number == self.pieces:
                raise JobFailed("stopped")
            yield result


def test_a_fill_that_was_stopped_continues_with_the_rest(lake: HttpLake) -> None:
    with pytest.raises(JobFailed):
        maintainer(lake, runner=Stopping(1)).run("fill", "logs")
    assert fingerprints(lake) == {True: 1, False: 2}
    done = next(path for path in lake.data_files() if fingerprint_of(path))
    newest = max(path.rpartition("time_day=")[2][:10] for path in lake.data_files())
    assert f"time_day={newest}/" in done, "the newest day comes first"
    assert filled(lake).files_in == 2
    assert done in lake.data_files()
    assert_filled(lake)


def test_a_file_that_others_change_meanwhile_is_left_to_them(
    lake: HttpLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, calls = Committer.replace, list[int]()

    def overtaken(self: Committer, *given: Any, **facts: Any) -> Any:
        calls.append(len(given[1]))
        if len(calls) <= 2:
            raise Conflict("otel.logs", "a file has been replaced meanwhile")
        return replace(self, *given, **facts)

    with monkeypatch.context() as patch:
        patch.setattr(Committer, "replace", overtaken)
        report = filled(lake)
    assert calls == [3, 1, 1, 1]
    assert (report.files_in, report.detail["conflicts"]) == (2, 1)
    assert filled(lake).files_in == 1
    assert_filled(lake)


def test_a_changed_list_of_attributes_is_filled_too(lake: HttpLake) -> None:
    """Also before landing has run with it: the table gets the column."""
    lake.config = Config.model_validate(
        {
            **lake.config.model_dump(),
            "tables": {"promoted": [{"attribute": ["http.verb", "http.method"], "column": "verb"}]},
        }
    )
    assert filled(lake).files_in == 3
    assert statuses(lake, "verb") == Counter({"GET": 6, "POST": 3, None: 6})
    lake.config = Config.model_validate(
        {
            **lake.config.model_dump(),
            "tables": {"promoted": [{"attribute": "http.request.method", "column": "verb"}]},
        }
    )
    assert filled(lake).files_in == 3
    assert statuses(lake, "verb") == Counter({"PUT": 6, None: 9})


def test_only_tables_of_records_have_promoted_columns_and_no_schedule_fills_them(lake: HttpLake) -> None:
    tasks = maintainer(lake)
    assert not tasks.can("fill", "set_aside")
    with pytest.raises(Refused):
        tasks.run("fill", "set_aside")
    assert all(report.task != "fill" for report in tasks.round())


def test_queries_find_in_files_and_segments_of_before_what_only_the_map_has(lake: HttpLake) -> None:
    lake.send(RECORDS, before=True)
    lake.send(RECORDS)
    sql = f"SELECT {COLUMN}, count(*) FROM logs GROUP BY ALL ORDER BY ALL"
    expected = [[200, 5], [404, 10], [500, 5], [None, 5]]
    assert answers(lake, sql) == expected
    found = f"SELECT count(*) FROM logs WHERE {COLUMN} >= 500 AND http_request_method = 'POST'"
    assert answers(lake, found) == [[5]]
    where = "SELECT body FROM logs WHERE deployment_environment_name = 'staging' ORDER BY body LIMIT 1"
    assert answers(lake, where) == [["0"]]
    lake.land()
    assert (answers(lake, sql), answers(lake, found)) == (expected, [[5]])
    filled(lake)
    assert (answers(lake, sql), answers(lake, found)) == (expected, [[5]])


def test_an_erasure_reaches_rows_of_before_by_the_column(lake: HttpLake) -> None:
    erasure = lake.erase(f"{COLUMN} = 500")
    assert sum(table.rows_removed for table in erasure.tables) == 3
    assert statuses(lake) == times(STATUSES - Counter([500]), 3), "files written again are filled"
    assert balance(lake.config).problems == []


def test_retention_reaches_rows_of_before_by_the_column(tmp_path: Path) -> None:
    rules = [{"table": "logs", "where": f"{COLUMN} = 500", "after_seconds": "1d"}]
    with lake_of(tmp_path, maintain={"retention": {"rules": rules}}) as lake:
        lake.land_before(RECORDS, days=3)
        assert lake.retain().rows_removed == 1
        assert statuses(lake) == STATUSES - Counter([500])


def test_a_file_that_moves_to_another_place_keeps_its_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "cold").mkdir()
    tier = {"location": str(tmp_path / "cold"), "after_seconds": "2d"}
    with lake_of(tmp_path, maintain={"tier": tier}) as lake:
        lake.land_before(RECORDS, days=4)
        lake.send(RECORDS, days=5)
        lake.land()
        assert maintainer(lake).run("tier", "logs").files_out == 2
        assert all(path.startswith(str(tmp_path / "cold")) for path in lake.data_files())
        assert fingerprints(lake) == {True: 1, False: 1}
        assert filled(lake).files_in == 1
        assert_filled(lake, 2)
