"""The ledger of derived tables: silent while each row is counted once, and it names the tenant and day of
every damage.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from frazil.lake.commits.commit import Committer, checkpoint_of
from frazil.lake.live_files import live_files
from frazil.ledger import balance
from frazil.ledger import main as show_ledger
from frazil.ledger.derived import DerivedLine
from frazil.pipeline.derive.backfill import backfill
from frazil.pipeline.derive.days import add_days
from frazil.pipeline.derive.request import BackfillRequest
from frazil.position import landing_position
from tests.support.derived_lake import DerivedLake
from tests.support.known_lake import DAY
from tests.unit.pipeline.derive.test_deriver import compact, forget_snapshots, rows, with_small_batches

TABLE = "log_rollups"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[DerivedLake]:
    with contextlib.closing(DerivedLake(tmp_path)) as made:
        yield made


@pytest.fixture
def filled(lake: DerivedLake) -> DerivedLake:
    lake.fill(rows("cart", "web"), rows("web", tenant="globex"), rows("old", "old", days=3))
    lake.derive()
    return lake


def line_of(lake: DerivedLake) -> DerivedLine:
    ledger = balance(lake.config)
    (line,) = [each for each in ledger.derived if each.table == TABLE]
    assert ledger.problems == line.problems
    return line


def day_of(lake: DerivedLake, days: int = 0) -> str:
    return datetime.datetime.fromtimestamp(lake.now - days * DAY, datetime.UTC).date().isoformat()


def files_of(lake: DerivedLake, tenant: str, days: int = 0) -> list[Any]:
    wanted = (tenant, int(lake.now // DAY) - days)
    return [
        each.file for each in live_files(lake.table(TABLE)) if (*list(each.file.partition),)[:2] == wanted
    ]


def path_of(file: Any) -> Path:
    return Path(file.file_path.removeprefix("file://"))


def doctor(file: Any, change: Callable[[pa.Table], pa.Array]) -> None:
    """Writes other values of `records` into a data file."""
    found = pq.read_table(path_of(file), partitioning=None)
    place = found.column_names.index("records")
    pq.write_table(found.set_column(place, found.schema.field("records"), change(found)), path_of(file))


def commit(lake: DerivedLake, removed: list[Any], added: list[Any]) -> None:
    """As a faulty process would: without a change of the position."""
    committer = Committer(lake.catalog, deadline_seconds=20)
    table = lake.table(TABLE)
    if removed:
        committer.overwrite(table, removed, added, lambda text: text)
    else:
        committer.append(checkpoint_of(table), added, checkpoint_of(table).position)


def derive_again(lake: DerivedLake, days: int = 0) -> None:
    day = day_of(lake, days)
    request = BackfillRequest(TABLE, day, day, yes=True)
    backfill(lake.config, lake.catalog, request, lake.runner, sleep=lambda _: None)


def test_the_line_says_how_much_is_counted_and_up_to_when(filled: DerivedLake) -> None:
    line = line_of(filled)
    assert (line.problems, line.landed, line.counted, line.in_source) == ([], 5, 5, 5)
    assert line.complete_until is not None
    assert abs(line.complete_until - filled.now) < 600
    filled.fill(rows("later"))
    line = line_of(filled)
    assert (line.problems, line.landed, line.counted, line.in_source) == ([], 5, 5, 5), "not derived yet"
    forget_snapshots(filled)
    assert line_of(filled).complete_until is None


def test_a_lake_without_rows_has_no_problems(lake: DerivedLake) -> None:
    assert balance(lake.config).problems == []
    lake.fill(rows("cart"))
    ledger = balance(lake.config)
    assert (ledger.problems, ledger.derived) == ([], [])


def test_a_missing_file_is_named_and_mended_by_deriving_the_day_again(filled: DerivedLake) -> None:
    (file,) = files_of(filled, "acme", days=3)
    path_of(file).unlink()
    problems = line_of(filled).problems
    assert f"data file {file.file_path} is missing" in problems[0]
    assert f"acme, {day_of(filled, 3)}: 2 rows of logs are missing: 0 counted, 2 in logs" in problems[1]
    assert f"frazil backfill log_rollups --from {day_of(filled, 3)}" in problems[1]
    assert "count 3 rows of logs, but its position says 5" in problems[2]
    derive_again(filled, 3)
    assert line_of(filled).problems == []
    assert filled.merged(TABLE) == filled.expected(TABLE)


def test_rows_that_were_removed_by_another_engine_are_named(filled: DerivedLake) -> None:
    commit(filled, files_of(filled, "globex"), [])
    problems = line_of(filled).problems
    assert f"globex, {day_of(filled)}: 1 rows of logs are missing" in problems[0]
    derive_again(filled)
    assert line_of(filled).problems == []


def test_a_commit_that_was_made_twice_is_named(filled: DerivedLake, tmp_path: Path) -> None:
    (file,) = files_of(filled, "acme", days=3)
    copy = path_of(file).with_name("copy.parquet")
    copy.write_bytes(path_of(file).read_bytes())
    text = file.file_path.replace(path_of(file).name, copy.name)
    again = type(file).from_args(**{**_fields(file), "file_path": text})
    commit(filled, [], [again])
    problems = line_of(filled).problems
    assert "count 7 rows of logs, but its position says 5" in problems[0]
    assert "2 rows of logs are counted twice" in problems[1]
    assert f"acme, {day_of(filled, 3)}: 2 rows of logs are counted twice: 4 counted, 2 in logs" in problems[2]
    assert len(problems) == 3
    derive_again(filled, 3)
    assert line_of(filled).problems == []


def _fields(file: Any) -> dict[str, Any]:
    names = (
        *("content", "file_path", "file_format", "partition", "record_count", "file_size_in_bytes"),
        *("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", "lower_bounds"),
        *("upper_bounds", "key_metadata", "split_offsets", "equality_ids", "sort_order_id"),
    )
    return {"_table_format_version": 2} | {name: getattr(file, name) for name in names}


def test_a_file_that_is_in_the_table_twice_is_named(filled: DerivedLake) -> None:
    (file,) = files_of(filled, "globex")
    commit(filled, [], [file])
    problems = line_of(filled).problems
    assert f"data file {file.file_path} is in the table twice" in problems[0]
    assert "1 rows of logs are counted twice" in " ".join(problems)


@pytest.mark.parametrize(("by", "what"), [(1, "counted twice"), (-1, "missing")])
def test_a_changed_count_is_named(filled: DerivedLake, by: int, what: str) -> None:
    (file,) = files_of(filled, "acme", days=3)
    doctor(file, lambda found: pc.add(found["records"], by))
    problems = line_of(filled).problems
    assert any(
        f"acme, {day_of(filled, 3)}: 1 rows of logs are {what}: {2 + by} counted" in each for each in problems
    )
    derive_again(filled, 3)
    assert line_of(filled).problems == []


def test_a_changed_count_of_one_resolution_is_named(filled: DerivedLake) -> None:
    (file,) = files_of(filled, "acme", days=3)
    minutes = lambda found: pc.cast(pc.equal(found["resolution"], 60), pa.int64())  # noqa: E731
    doctor(file, lambda found: pc.add(found["records"], minutes(found)))
    (problem,) = line_of(filled).problems
    assert f"acme, {day_of(filled, 3)}: rows of resolution 60 count 3 rows of logs" in problem
    derive_again(filled, 3)
    assert line_of(filled).problems == []


def test_a_count_is_also_wrong_after_retention_has_removed_the_source(tmp_path: Path) -> None:
    rule = {"table": "logs", "after_seconds": "7d"}
    with contextlib.closing(DerivedLake(tmp_path, maintain={"retention": {"rules": [rule]}})) as lake:
        lake.fill(rows("old", "old", "old", days=10), rows("new"))
        lake.derive()
        assert lake.retain(confirmed=True).rows_removed == 3
        line = line_of(lake)
        assert (line.problems, line.landed, line.counted, line.in_source) == ([], 4, 4, 1)
        (file,) = files_of(lake, "acme", days=10)
        original = path_of(file).read_bytes()
        for by in (-1, 1):
            doctor(file, lambda found, by=by: pc.add(found["records"], by))
            assert "but its position says 4" in " ".join(line_of(lake).problems)
            path_of(file).write_bytes(original)
        assert line_of(lake).problems == []


def test_rows_that_are_counted_twice_with_their_position_are_found(filled: DerivedLake) -> None:
    """As if a round had read rows twice: rows and position agree with each other, not with the source."""
    (file,) = files_of(filled, "acme", days=3)
    doctor(file, lambda found: pc.add(found["records"], 1))
    table = filled.table(TABLE)
    position = filled.position(TABLE)
    more = position.to_text().replace('"counted":5', '"counted":6')
    assert more != position.to_text()
    Committer(filled.catalog, deadline_seconds=20).append(checkpoint_of(table), [], more)
    problems = line_of(filled).problems
    assert "1 rows of logs are counted twice" in problems[0]
    assert f"acme, {day_of(filled, 3)}" in problems[1]


def test_more_counted_rows_than_have_landed_are_found_whatever_retention_has_removed(tmp_path: Path) -> None:
    rule = {"table": "logs", "after_seconds": "7d"}
    with contextlib.closing(DerivedLake(tmp_path, maintain={"retention": {"rules": [rule]}})) as lake:
        lake.fill(rows("new"))
        lake.derive()
        lake.fill(rows("old", "old", days=10))
        assert lake.retain(confirmed=True).rows_removed == 2, "rows that were never derived"
        (file,) = files_of(lake, "acme")
        doctor(file, lambda found: pc.add(found["records"], 1))
        more = lake.position(TABLE).to_text().replace('"counted":1', '"counted":2')
        Committer(lake.catalog, deadline_seconds=20).append(checkpoint_of(lake.table(TABLE)), [], more)
        problems = line_of(lake).problems
        assert "1 rows of logs are counted twice" in problems[0]
        assert f"acme, {day_of(lake)}" in problems[1]


def test_days_that_are_not_derived_yet_are_no_problem(lake: DerivedLake) -> None:
    lake.fill(*(rows("cart", "web", days=day) for day in (0, 1, 2)))
    with_small_batches(lake, batch_bytes_max=1)
    deriver = lake.deriver()
    assert deriver.round() == "more"
    line = line_of(lake)
    assert (line.problems, line.landed, line.counted, line.days_left) == ([], 6, 0, 3)
    assert deriver.day()
    line = line_of(lake)
    assert (line.problems, line.counted, line.days_left) == ([], 2, 2)
    lake.derive()
    assert (line_of(lake).problems, line_of(lake).counted) == ([], 6)
    assert lake.position(TABLE).counted == 6


def test_erased_rows_are_not_counted_after_their_day_was_derived_again(filled: DerivedLake) -> None:
    filled.erase("service_name = 'old'", drop_tags=True)
    filled.restart().rederive([TABLE], {int(filled.now // DAY) - 3}, "acme")
    line = line_of(filled)
    assert (line.problems, line.landed, line.counted, line.in_source) == ([], 5, 3, 3)
    assert landing_position(checkpoint_of(filled.table()).position).removed == 2


@pytest.mark.parametrize("where", [None, "resolution = 86400", "service_name = 'old'"])
def test_retention_of_derived_rows_lowers_the_count(tmp_path: Path, where: str | None) -> None:
    rule = {"table": TABLE, "after_seconds": "7d", **({} if where is None else {"where": where})}
    raw = {"table": "logs", "after_seconds": "7d"}
    with contextlib.closing(DerivedLake(tmp_path, maintain={"retention": {"rules": [rule, raw]}})) as lake:
        lake.fill(rows("old", "older", days=10), rows("new"))
        lake.derive()
        assert lake.retain(confirmed=True).rows_removed == 2
        assert lake.retain(table=TABLE, confirmed=True).rows_removed > 0
        line = line_of(lake)
        assert (line.problems, line.counted) == ([], 2 if where == "service_name = 'old'" else 1)


@pytest.mark.parametrize("seed", range(6))
def test_random_landings_merges_retention_and_days_derived_again_balance(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rule = {"table": "logs", "after_seconds": "7d"}
    with contextlib.closing(DerivedLake(tmp_path, maintain={"retention": {"rules": [rule]}})) as lake:
        for _ in range(14):
            step = rng.choice(
                [
                    "land",
                    "land",
                    "land",
                    "derive",
                    "compact",
                    "merge",
                    "expire",
                    "restart",
                    "day",
                    "retain",
                    "left",
                ]
            )
            has_source = lake.catalog.table_exists("otel.logs")
            has_table = lake.catalog.table_exists(f"otel.{TABLE}")
            match step:
                case "land":
                    names = rng.choices(["cart", "web", "gate"], k=rng.randint(1, 6))
                    days = rng.choice([0, 0, 1, 3, 9, 12])
                    lake.fill(rows(*names, days=days, tenant=rng.choice(["acme", "globex"])))
                case "derive":
                    lake.deriver().round()
                case "compact" if has_source:
                    compact(lake)
                case "merge" if has_table:
                    compact(lake, TABLE)
                case "expire" if has_source:
                    forget_snapshots(lake)
                case "restart":
                    lake.restart()
                case "day" if has_table:
                    lake.deriver().rederive([TABLE], {int(lake.now // DAY) - rng.choice([0, 1, 3, 9])})
                case "retain" if has_source:
                    lake.retain(confirmed=True)
                case "left" if has_table:
                    add_days(lake.catalog, lake.table(TABLE), [int(lake.now // DAY) - rng.choice([0, 1, 3])])
                    lake.deriver().day()
            assert balance(lake.config).problems == [], step
        lake.fill(rows("last"))
        lake.derive()
        line = line_of(lake)
        assert line.problems == []
        assert line.counted >= line.in_source
        assert line.counted == lake.position(TABLE).counted


def test_the_command_shows_derived_tables_and_exits_1_if_rows_are_missing(
    filled: DerivedLake, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_ledger(filled.config, json_output=False) == 0
    text = capsys.readouterr().out
    assert "log_rollups" in text
    assert "derived tables count each row that had landed at their position once" in text
    path_of(files_of(filled, "globex")[0]).unlink()
    assert show_ledger(filled.config, json_output=True) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is False
    assert found["derived"][0]["counted"] == 4
    assert any("globex" in each for each in found["problems"])
