"""The parts of a simulated day: its clock, what lands in it, a table that gets it, and who maintains that."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import httpx
import numpy as np
import pyarrow as pa
from prometheus_client import CollectorRegistry
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from bench.applogs import app_logs_request
from bench.cost import Meter
from bench.lake import TIMES, with_new_ids
from bench.queries import planned
from frazil.config import Config
from frazil.lake.catalog import ensure_namespace
from frazil.lake.commits import metadata_commit as change
from frazil.lake.commits import staging
from frazil.lake.commits.commit import Checkpoint, Committer
from frazil.lake.tables import open_table
from frazil.otlp.decode import Decoder
from frazil.pipeline.datafile import Layout, write_part
from frazil.pipeline.land.lander import Lander
from frazil.pipeline.land.segments import SegmentSource
from frazil.pipeline.land.task import with_segment
from frazil.pipeline.land.upkeep import CleanUpStep, TableWal
from frazil.pipeline.maintain.maintainer import Maintainer
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.maintain.report import Task, TaskReport
from frazil.pipeline.metrics import Metrics
from frazil.pipeline.partition_sort import Horizon, partition_and_sort
from frazil.pipeline.runner import SparkRunner
from frazil.position import LandingPosition, StreamPosition, landing_position
from frazil.tables import landed_spec
from frazil.wal.names import SegmentName, new_stream
from frazil.wal.reader import WalReader
from frazil.wal.rowgroups import coded_table
from frazil.wal.segment import SegmentWriter
from frazil.wal.store import open_store

STEP_SECONDS = 30
TENANTS = {"default": 800, "acme": 400, "globex": 200}
"""Rows of each in a commit. The first tenant is queried."""
_REQUESTS = 4
"""Of a tenant in a commit, each from another service."""
_ASKED_SECONDS = 900
_REPEATS = 3
_SLOW_MS = 300
_HORIZON = Horizon(10**15, 10**15)


class Clock:
    """The simulated time of day."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


class _Time:
    """The module `time` with another time of day."""

    def __init__(self, clock: Clock) -> None:
        self.time = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


@contextlib.contextmanager
def simulated(clock: Clock) -> Iterator[None]:
    """Snapshots say that they were made by this clock. It must be ahead of the real one: a table never goes
    back in time.
    """
    with patch.object(staging, "time", _Time(clock)), patch.object(change, "time", _Time(clock)):
        yield


@dataclass(frozen=True)
class Sample:
    commit: int
    files: int
    metadata_bytes: int
    commit_ms: float
    """Median of the commits since the sample before."""
    planning_ms: float
    """From nothing: catalog, metadata, all manifests, the choice of files."""
    query_ms: float
    rows_landed: int
    rows_rewritten: int


MEASURES: dict[str, tuple[str, str, float]] = {
    "files": ("data files", "", 1),
    "metadata_bytes": ("metadata", "kB", 1e-3),
    "commit_ms": ("a commit", "ms", 1),
    "planning_ms": ("planning from nothing", "ms", 1),
    "query_ms": ("a query over HTTP", "ms", 1),
}
"""What should stay flat: how it is called, its unit, and what a value is multiplied by for it."""


class Rows:
    """Decoded requests of all tenants, one commit's after the other."""

    def __init__(self, first: float, distinct: int) -> None:
        self._rng = np.random.default_rng(0)
        decoder, length = Decoder("logs"), STEP_SECONDS * 10**9
        first_nanos = int(first) * 10**9
        self._made = []
        senders = [tenant for tenant in TENANTS for _ in range(_REQUESTS)]
        for number in range(distinct):
            bodies = [
                app_logs_request(
                    number * len(senders) + place,
                    TENANTS[tenant] // _REQUESTS,
                    first_unix_nano=first_nanos,
                    length_nanos=length,
                )
                for place, tenant in enumerate(senders)
            ]
            received = [first_nanos + length] * len(bodies)
            self._made.append(decoder.decode(bodies, senders, received).table)

    def at(self, number: int) -> pa.Table:
        """Those of a commit, at its time."""
        table = self._made[number % len(self._made)]
        micros = number * STEP_SECONDS * 1_000_000
        for name, units in TIMES.items():
            place = table.schema.get_field_index(name)
            field_ = table.schema.field(place)
            moved = pa.chunked_array([chunk.view(pa.int64()) for chunk in table.column(place).chunks])
            moved = pa.array(moved.to_numpy() + micros * units)
            table = table.set_column(place, field_, moved.view(field_.type))
        return with_new_ids(table, self._rng)


@dataclass
class LandedSoFar:
    rows: int = 0
    bytes: int = 0
    files: int = 0
    commit_ms: list[float] = field(default_factory=list)


class Side:
    """A table that gets the day's commits, and its readers."""

    def __init__(self, config: Config, catalog: Catalog, url: str, client: httpx.Client) -> None:
        self.config = config
        self.catalog = catalog
        self.landed = LandedSoFar()
        self._url = url
        self._client = client
        self._spec = landed_spec("logs")
        self._committer = Committer(catalog, deadline_seconds=config.land.commit_deadline_seconds)
        self._stream = new_stream()
        ensure_namespace(catalog, config.lake.namespace)
        self.checkpoint()

    def checkpoint(self) -> Checkpoint:
        return open_table(self.catalog, self.config.lake.namespace, self._spec, LandingPosition().to_text())

    @property
    def table(self) -> Table:
        return self.checkpoint().table

    def total(self, what: str) -> int:
        """`data-files` or `records`, as the table's newest snapshot counts them."""
        snapshot = self.table.current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        return int(str(snapshot.summary[f"total-{what}"]))

    def warm_up(self) -> None:
        """Warm up: the first query of a service costs more."""
        for _ in range(_REPEATS):
            planned(self.config, "SELECT count(*) FROM logs")
            self.execute("SELECT count(*) FROM logs")

    def commit(self, rows: pa.Table) -> None:
        """As a landing without Spark."""
        checkpoint = self.checkpoint()
        layout = Layout.of(checkpoint.table, self._spec, self.config.land.compression_level)
        position = landing_position(checkpoint.position)
        at = position.wal.streams.get(self._stream, StreamPosition())
        table = coded_table(rows, layout.coded)
        parts = partition_and_sort(
            [with_segment(table, f"{self._stream}/{at.sequence}", layout)], layout.spec, _HORIZON
        ).parts
        files = [write_part(layout, part, f"{layout.batch}-{number}") for number, part in enumerate(parts)]
        after = StreamPosition(at.sequence + 1, at.rows + rows.num_rows, at.durable_rows + rows.num_rows)
        position = replace(position, wal=position.wal.with_streams({self._stream: after}))
        begin = time.perf_counter()
        self._committer.append(
            checkpoint, files, position.to_text(), facts={"frazil.rows": str(rows.num_rows)}
        )
        self.landed.commit_ms.append((time.perf_counter() - begin) * 1000)
        self.landed.rows += rows.num_rows
        self.landed.files += len(files)
        self.landed.bytes += sum(file.file_size_in_bytes for file in files)

    def sample(self, commit: int, now: float, rewritten: int) -> Sample:
        table = self.table
        snapshot = table.current_snapshot()
        assert snapshot is not None
        manifests = snapshot.manifests(table.io)
        metadata = sum(manifest.manifest_length for manifest in manifests) + sum(
            len(table.io.new_input(path)) for path in (table.metadata_location, snapshot.manifest_list)
        )
        sql = (
            "SELECT severity_text, count(*) FROM logs WHERE service_name = 'cart' AND "
            f"time >= make_timestamptz({int((now - _ASKED_SECONDS) * 1e6)}) GROUP BY ALL"
        )
        commits, self.landed.commit_ms = self.landed.commit_ms, []
        return Sample(
            commit,
            self.total("data-files"),
            metadata,
            statistics.median(commits),
            _milliseconds(lambda: planned(self.config, sql)),
            _milliseconds(lambda: self.execute(sql)),
            self.landed.rows,
            rewritten,
        )

    def execute(self, sql: str) -> list[list[Any]]:
        answer = self._client.post(f"{self._url}/api/v1/sql", json={"sql": sql})
        answer.raise_for_status()
        rows: list[list[Any]] = answer.json()["rows"]
        return rows


def _milliseconds(run: Callable[[], object]) -> float:
    """The median of a few; of one, where that is slow."""
    times: list[float] = []
    while len(times) < _REPEATS and (not times or times[0] < _SLOW_MS):
        begin = time.perf_counter()
        run()
        times.append((time.perf_counter() - begin) * 1000)
    return statistics.median(times)


class Landing:
    """Landings on Spark: what a receiver writes, and the pipeline's own loop over it."""

    def __init__(self, side: Side, spark: SparkSession, clock: Clock) -> None:
        config = side.config
        self._side = side
        self._store = open_store(config)
        self._stream, self._sequence, self._rows = new_stream(), 0, 0
        self._fill = Decoder("logs").fill.fingerprint
        self._metrics = Metrics()
        reader = WalReader(self._store)
        source = SegmentSource(config, "logs", reader)
        self._lander = Lander(
            config,
            "logs",
            side.catalog,
            source,
            SparkRunner(lambda: spark, "land"),
            self._metrics,
            reader=reader,
        )
        wal = TableWal(config, "logs", self._store, lambda: side.table.metadata, wall_clock=clock)
        self._clean_up = CleanUpStep(wal, self._metrics)

    def receive(self, rows: pa.Table, clock: Clock) -> None:
        writer = SegmentWriter(self._side.config.wal.compression_level, self._fill)
        writer.write(rows)
        name = SegmentName("logs", self._stream, self._sequence)
        received = int(clock() * 1e9)
        data = writer.finish(name, stream_rows=self._rows, received=(received, received))
        self._store.create(name.path, data)
        self._sequence += 1
        self._rows += rows.num_rows

    def land(self) -> None:
        before = {name: self._counted(name) for name in ("rows", "bytes", "files")}
        assert self._lander.step(now_due=True) == "landed"
        landed = self._side.landed
        landed.rows += self._counted("rows") - before["rows"]
        landed.bytes += self._counted("bytes") - before["bytes"]
        landed.files += self._counted("files") - before["files"]

    def keep_up(self) -> None:
        """Segments that have landed are deleted, so that looking for new ones stays as fast as it was."""
        self._clean_up.run()

    def _counted(self, name: str) -> int:
        return int(
            self._metrics.registry.get_sample_value(f"frazil_landed_{name}_total", {"table": "logs"}) or 0
        )


class Maintenance:
    """The maintainer's tasks when they are due, with the cost of each."""

    def __init__(self, side: Side, spark: SparkSession, clock: Clock, meter: Meter) -> None:
        settings = side.config.maintain
        self._maintainer = Maintainer(
            side.config,
            side.catalog,
            SparkRunner(lambda: spark, "maintain", side.config.maintain.compact.parallel_tasks),
            MaintainMetrics(CollectorRegistry()),
            clock=clock,
        )
        self._clock = clock
        self._meter = meter
        self._every: dict[Task, float] = {
            "compact": settings.compact.interval_seconds,
            "manifests": settings.expire.interval_seconds,
            "expire": settings.expire.interval_seconds,
        }
        self._due = dict.fromkeys(self._every, 0.0)
        self.merges: Counter[str] = Counter()

    def when_due(self) -> None:
        for task, seconds in self._every.items():
            if self._clock() >= self._due[task]:
                self._due[task] = self._clock() + seconds
                self.run(task)

    def run(self, task: Task) -> TaskReport:
        with self._meter.during(task):
            report = self._maintainer.run(task, "logs")
        if task == "compact":
            for name in ("files_in", "files_out", "bytes_in", "bytes_out", "rows"):
                self.merges[name] += getattr(report, name)
        return report
