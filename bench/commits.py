"""What a commit costs as its table ages: one small data file each, through the real committer, durable."""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from pyiceberg.catalog import Catalog

from bench.land import local_config
from bench.payloads import BASE_UNIX_NANO, logs_request
from bench.table import Bench, Row
from frazil.config import Config
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.commits.commit import Checkpoint, Committer
from frazil.lake.tables import open_table
from frazil.otlp.decode import Decoder
from frazil.pipeline.datafile import Layout, write_part
from frazil.pipeline.land.task import with_segment
from frazil.pipeline.partition_sort import Horizon, Part, partition_and_sort
from frazil.position import LandingPosition, StreamPosition, WalPosition
from frazil.tables import landed_spec
from frazil.wal.names import new_stream

AGES = (1, 100, 1000)
QUICK_AGES = (1, 100)
RECEIVERS = (1, 1000)
_AROUND = 5
_RECORDS = 10
_STEP_SECONDS_MAX = 600.0
"""A table whose commits have become so slow is not aged any further."""
_DAY_MICROS = 86_400_000_000


@dataclass(frozen=True)
class _Commit:
    """`load` is opening the table before, which each landing does too."""

    wall_ms: float
    cpu_ms: float
    load_wall_ms: float
    load_cpu_ms: float


def commits(bench: Bench) -> None:
    for streams in RECEIVERS:
        with tempfile.TemporaryDirectory(prefix="frazil-bench-commits-") as folder:
            config = local_config(Path(folder))
            with contextlib.closing(open_catalog(config)) as catalog:
                _aged(bench, config, catalog, streams)


def _aged(bench: Bench, config: Config, catalog: Catalog, streams: int) -> None:
    """Commits until the table is old enough, and says what those around each age cost."""
    ensure_namespace(catalog, config.lake.namespace)
    chance = random.Random(streams)
    started = {new_stream(BASE_UNIX_NANO / 1e9 + n): chance.randrange(5000) for n in range(streams)}
    part, done = _small_part(), list[_Commit]()
    deadline = time.monotonic() + _STEP_SECONDS_MAX
    for age in QUICK_AGES if bench.quick else AGES:
        while len(done) < age + _AROUND - 1 and time.monotonic() < deadline:
            done.append(_commit(config, catalog, part, _position(started, len(done))))
        if len(done) < age:
            bench.add(Row(f"commit {age:,}{_of(streams)}", "", "not reached", f"{len(done)} commits in time"))
            return
        around = done[max(0, age - _AROUND) : age + _AROUND - 1]
        _add(bench, age, streams, around, _opened(config, catalog))


def _commit(config: Config, catalog: Catalog, part: Part, position: WalPosition) -> _Commit:
    begin, begin_cpu = time.perf_counter(), time.process_time()
    checkpoint = _opened(config, catalog)
    load, load_cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    layout = Layout.of(checkpoint.table, landed_spec("logs"), config.land.compression_level)
    file = write_part(layout, part, layout.batch)
    committer = Committer(catalog, deadline_seconds=config.land.commit_deadline_seconds)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    committer.append(
        checkpoint,
        [file],
        LandingPosition(position).to_text(),
        facts={"frazil.rows": str(part.rows.num_rows)},
    )
    wall, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
    return _Commit(wall * 1000, cpu * 1000, load * 1000, load_cpu * 1000)


def _position(started: dict[str, int], done: int) -> WalPosition:
    """Each stream gets one segment per commit; no two streams have the same counts."""
    return WalPosition(
        {
            name: StreamPosition(first + done, rows := first * 9973 + done * 14_003, rows)
            for name, first in started.items()
        }
    )


def _opened(config: Config, catalog: Catalog) -> Checkpoint:
    return open_table(catalog, config.lake.namespace, landed_spec("logs"), LandingPosition().to_text())


def _small_part() -> Part:
    received = BASE_UNIX_NANO + 1_000_000_000
    table = Decoder("logs").decode([logs_request(0, _RECORDS)], ["default"], [received]).table
    with tempfile.TemporaryDirectory(prefix="frazil-bench-part-") as folder:
        config = local_config(Path(folder))
        with contextlib.closing(open_catalog(config)) as catalog:
            ensure_namespace(catalog, config.lake.namespace)
            layout = Layout.of(
                _opened(config, catalog).table, landed_spec("logs"), config.land.compression_level
            )
    table = with_segment(table, f"{new_stream()}/0", layout)
    return partition_and_sort([table], layout.spec, Horizon(_DAY_MICROS, _DAY_MICROS)).parts[0]


def _of(streams: int) -> str:
    return f", {streams:,} receivers" if streams > 1 else ""


def _add(bench: Bench, age: int, streams: int, around: list[_Commit], checkpoint: Checkpoint) -> None:
    table = checkpoint.table
    snapshot = table.current_snapshot()
    assert snapshot is not None
    metadata_bytes = os.stat(table.metadata_location.removeprefix("file://")).st_size
    list_bytes = os.stat(snapshot.manifest_list.removeprefix("file://")).st_size

    def median(name: str) -> float:
        return statistics.median(getattr(commit, name) for commit in around)

    bench.add(
        Row(
            f"commit {age:,} of a table{_of(streams)}",
            "",
            f"{median('wall_ms'):.0f} ms",
            f"CPU {median('cpu_ms'):.0f} ms; opening the table before {median('load_wall_ms'):.0f} ms, CPU "
            f"{median('load_cpu_ms'):.0f} ms; metadata.json {metadata_bytes / 1000:,.0f} kB, "
            f"list of manifests {list_bytes / 1000:,.0f} kB",
        )
    )
