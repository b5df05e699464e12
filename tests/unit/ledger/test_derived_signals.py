"""The ledger of the derived tables of every signal: 1m rows count each landed row that is not erased once,
and a partial row that is missing or doubled is named.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from frazil.lake.live_files import live_files, partition_of
from frazil.ledger import balance
from frazil.ledger.derived import DerivedLine
from frazil.tables import Signal
from frazil.times import day_text
from tests.support.calls import DAY
from tests.support.random_telemetry import RandomLake

COUNTS: dict[Signal, tuple[str, str]] = {
    "logs": ("log_rollups", "records"),
    "spans": ("span_metrics", "calls"),
    "metrics": ("metric_rollups", "points"),
}
MINUTE = 60
each_signal = pytest.mark.parametrize("signal", COUNTS)


@pytest.fixture
def lake(tmp_path: Path, signal: Signal) -> Iterator[RandomLake]:
    """Telemetry of two tenants in two landings, each derived in a round of its own."""
    with contextlib.closing(RandomLake(tmp_path, seed=1)) as made:
        for _ in range(2):
            for _ in range(6):
                made.make()
            made.land_some(lambda item: item.signal == signal)
            made.derive(signal)
        yield made


def line_of(lake: RandomLake, signal: Signal) -> DerivedLine:
    table, _ = COUNTS[signal]
    (line,) = [each for each in balance(lake.config).derived if each.table == table]
    return line


def counted(lake: RandomLake, signal: Signal) -> int:
    """The sum of the counts of 1m rows, without the ledger's code."""
    table, column = COUNTS[signal]
    rows = lake.table(table).scan().to_arrow()
    return int(pc.sum(rows.filter(pc.equal(rows["resolution"], MINUTE))[column]).as_py())


def change_row(lake: RandomLake, signal: Signal, resolution: int, what: str) -> tuple[str, int, int]:
    """Removes or doubles one row of a data file behind the table's back. Returns the file's tenant and day,
    and how many rows of the source the row counts.
    """
    table, column = COUNTS[signal]
    file = max((each.file for each in live_files(lake.table(table))), key=lambda each: each.record_count)
    path = file.file_path.removeprefix("file://")
    rows = pq.read_table(path, partitioning=None)
    place = pc.index(pc.equal(rows["resolution"], resolution), True).as_py()
    row = rows.slice(place, 1)
    others = [rows.slice(0, place), rows.slice(place + 1)]
    pq.write_table(pa.concat_tables(others if what == "missing" else [*others, row, row]), path)
    place_of_file = partition_of(file)
    return place_of_file.tenant or "", place_of_file.day or 0, row[column][0].as_py()


@each_signal
def test_one_minute_rows_count_landed_rows_less_erased_ones(lake: RandomLake, signal: Signal) -> None:
    landed = lake.table(signal).scan().to_arrow()
    line = line_of(lake, signal)
    assert (line.problems, line.landed, line.counted) == ([], landed.num_rows, landed.num_rows)
    assert counted(lake, signal) == landed.num_rows
    is_erased = pc.and_(pc.equal(landed["tenant_id"], "acme"), pc.equal(landed["service_name"], "web"))
    erased = pc.sum(is_erased).as_py()
    assert 0 < erased < landed.num_rows
    assert lake.erase("service_name = 'web'", tables=(signal,)).is_proven
    assert balance(lake.config).problems == []
    line = line_of(lake, signal)
    assert (line.counted, line.in_source) == (landed.num_rows - erased,) * 2
    assert counted(lake, signal) == landed.num_rows - erased


@each_signal
@pytest.mark.parametrize("what", ["missing", "counted twice"])
def test_a_partial_row_that_is_missing_or_doubled_is_named(
    lake: RandomLake, signal: Signal, what: str
) -> None:
    table, _ = COUNTS[signal]
    tenant, day, rows = change_row(lake, signal, DAY, what)
    problems = balance(lake.config).problems
    of_day = f"{table}: {tenant}, {day_text(day)}: {rows:,} rows of {signal} are {what}: "
    (named,) = [each for each in problems if each.startswith(of_day)]
    assert f"`frazil backfill {table} --from {day_text(day)} --to {day_text(day)}" in named
    assert all(each.startswith(f"{table}: ") for each in problems), "other tables are not damaged"


@each_signal
@pytest.mark.parametrize("what", ["missing", "doubled"])
def test_a_row_of_one_minute_that_is_missing_or_doubled_is_named(
    lake: RandomLake, signal: Signal, what: str
) -> None:
    table, _ = COUNTS[signal]
    tenant, day, rows = change_row(lake, signal, MINUTE, what)
    (problem,) = balance(lake.config).problems
    of_day = f"{table}: {tenant}, {day_text(day)}: "
    said = rf"rows of resolution 60 count ([\d,]+) rows of {signal}, those of resolution 86400 count ([\d,]+)"
    found = re.fullmatch(of_day + said, problem)
    assert found is not None, problem
    minutes, days = (int(each.replace(",", "")) for each in found.groups())
    assert minutes - days == (-rows if what == "missing" else rows)
