"""Partial rows of derived tables in a lake, appended as the pipeline appends them."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.catalog import Catalog

from frazil.config import Config
from frazil.lake.commits.commit import committer_of
from frazil.lake.tables import open_table
from frazil.pipeline.datafile import Layout, write_part
from frazil.pipeline.partition_sort import partition_and_sort
from frazil.position import LandingPosition, SourcePosition
from frazil.tables import TableSpec
from frazil.tables.derived.combine import completed, rolled_up


def position_of(spec: TableSpec) -> str:
    assert spec.derived is not None
    return SourcePosition(spec.derived.source, 1, LandingPosition()).to_text()


def append_partial_rows(config: Config, catalog: Catalog, spec: TableSpec, rows: pa.Table) -> None:
    """One commit, with a data file for each tenant and day. Columns that are missing are NULL."""
    checkpoint = open_table(catalog, config.lake.namespace, spec, position_of(spec))
    layout = Layout.of(checkpoint.table, spec, 1)
    parts = partition_and_sort([completed(rows, spec).cast(spec.arrow_schema)], spec).parts
    files = [write_part(layout, part, f"{layout.batch}-{at}") for at, part in enumerate(parts)]
    committer_of(config, catalog).append(checkpoint, files, checkpoint.position)


def append_derived(config: Config, catalog: Catalog, spec: TableSpec, source: pa.Table) -> None:
    """The partial rows of some rows of the source."""
    assert spec.derived is not None
    append_partial_rows(config, catalog, spec, rolled_up(spec.derived.derive(source), spec))
