"""Partial rows of derived tables in a lake, appended as the pipeline appends them."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil.config import Config
from frazil.lake.commits.commit import committer_of
from frazil.lake.snapshots import landed_snapshot, position_text
from frazil.lake.tables import open_table
from frazil.pipeline.datafile import Layout, write_part
from frazil.pipeline.partition_sort import partition_and_sort
from frazil.position import LandingPosition, SourcePosition, landing_position
from frazil.tables import TableSpec
from frazil.tables.derived.combine import completed, rolled_up


def position_of(spec: TableSpec) -> str:
    assert spec.derived is not None
    return SourcePosition(spec.derived.source, 1, LandingPosition()).to_text()


def head_of(spec: TableSpec, source: Table) -> str:
    """The position at which all that has landed in the source is derived."""
    assert spec.derived is not None
    snapshot = landed_snapshot(source.metadata)
    assert snapshot is not None
    landed = landing_position(position_text(snapshot) or "")
    return SourcePosition(
        spec.derived.source, snapshot.snapshot_id, landed, snapshot.sequence_number or 0
    ).to_text()


def append_partial_rows(
    config: Config, catalog: Catalog, spec: TableSpec, rows: pa.Table, position: str | None = None
) -> None:
    """One commit, with a data file for each tenant and day. Columns that are missing are NULL. `position` is
    that of a table that is created.
    """
    checkpoint = open_table(catalog, config.lake.namespace, spec, position or position_of(spec))
    layout = Layout.of(checkpoint.table, spec, 1)
    parts = partition_and_sort([completed(rows, spec).cast(spec.arrow_schema)], spec).parts
    files = [write_part(layout, part, f"{layout.batch}-{at}") for at, part in enumerate(parts)]
    committer_of(config, catalog).append(checkpoint, files, checkpoint.position)


def append_derived(
    config: Config, catalog: Catalog, spec: TableSpec, source: pa.Table, position: str | None = None
) -> None:
    """The partial rows of some rows of the source."""
    assert spec.derived is not None
    append_partial_rows(config, catalog, spec, rolled_up(spec.derived.derive(source), spec), position)
