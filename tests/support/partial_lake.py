"""A small lake with partial rows of `span_metrics`, by the writer and the committer of the pipeline."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from prometheus_client import CollectorRegistry
from pyiceberg.manifest import DataFile

from frazil.lake.commits.commit import Checkpoint, Committed, committer_of
from frazil.lake.live_files import FileFacts, all_facts, live_files
from frazil.lake.tables import open_table
from frazil.pipeline.datafile import Layout, file_name, write_part
from frazil.pipeline.maintain.maintainer import Maintainer
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.partition_sort import partition_and_sort
from frazil.position import LandingPosition, SourcePosition
from frazil.tables import TableSpec
from frazil.tables.columns import TIMESTAMP
from frazil.tables.derived.combine import combine, rolled_up
from frazil.tables.derived.span_metrics import SPAN_METRICS
from tests.support.known_lake import KnownLake
from tests.support.local_runner import LocalRunner

Span = tuple[str, str, str, int, float]
"""Tenant, service, operation, duration in nanoseconds, and start in seconds since 1970."""
NAME = SPAN_METRICS.name


def spans_table(spans: Sequence[Span]) -> pa.Table:
    tenants, services, names, durations, starts = zip(*spans, strict=True)
    times = [datetime.datetime.fromtimestamp(start, datetime.UTC) for start in starts]
    return pa.table(
        {
            "tenant_id": pa.array(tenants, pa.string()),
            "time": pa.array(times, TIMESTAMP),
            "service_name": pa.array(services, pa.string()),
            "name": pa.array(names, pa.string()),
            "kind": pa.array([2] * len(spans), pa.int32()),
            "parent_span_id": pa.nulls(len(spans), pa.string()),
            "status_code": pa.array([duration % 3 for duration in durations], pa.int32()),
            "duration_nano": pa.array(durations, pa.int64()),
        }
    )


def partial_rows(spans: Sequence[Span], spec: TableSpec = SPAN_METRICS) -> pa.Table:
    assert spec.derived is not None
    return rolled_up(spec.derived.derive(spans_table(spans)), spec)


def as_view(rows: pa.Table, spec: TableSpec = SPAN_METRICS) -> list[dict[str, Any]]:
    """The rows as the merging view has them: one of each key, in order."""
    found = combine(rows.select([column.name for column in spec.columns]), spec).to_pylist()
    for row in found:  # sums of floating point numbers depend on their order
        row["duration_nano_sum"] = round(row["duration_nano_sum"], 3)
    return sorted(found, key=lambda row: [str(row[name]) for name in spec.key])


class PartialLake(KnownLake):
    """`derive` appends partial rows in a commit; `view` reads them as the merging view does."""

    spec = SPAN_METRICS
    derived = 0

    @property
    def checkpoint(self) -> Checkpoint:
        return open_table(self.catalog, "otel", self.spec, self._position().to_text())

    def _position(self) -> SourcePosition:
        return SourcePosition("spans", self.derived, LandingPosition())

    def write(self, spans: Sequence[Span], checkpoint: Checkpoint) -> list[DataFile]:  # type: ignore[override]
        layout = Layout.of(checkpoint.table, self.spec, 1)
        parts = partition_and_sort([partial_rows(spans, self.spec)], self.spec).parts
        return [write_part(layout, part, file_name(layout)) for part in parts]

    def append(self, spans: Sequence[Span], checkpoint: Checkpoint) -> Committed:
        """Appends as a derivation does that read its position from `checkpoint`."""
        files = self.write(spans, checkpoint)
        self.derived += 1
        committer = committer_of(self.config, self.catalog)
        return committer.append(checkpoint, files, self._position().to_text())

    def derive(self, *batches: Sequence[Span]) -> None:
        """Each in a commit of its own."""
        for spans in batches:
            self.append(spans, self.checkpoint)

    def rows(self) -> pa.Table:
        return self.table(NAME).scan().to_arrow()

    def view(self) -> list[dict[str, Any]]:
        return as_view(self.rows(), self.spec)

    def facts(self) -> list[FileFacts]:
        table = self.table(NAME)
        return all_facts(live_files(table), table)

    def maintainer(self, now: float, runner: LocalRunner | None = None) -> Maintainer:
        metrics = MaintainMetrics(CollectorRegistry())
        return Maintainer(self.config, self.catalog, runner or self.runner, metrics, clock=lambda: now)
