"""A table of logs in a SQLite catalog: land files, and read its versions as queries do."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from frazil.lake.commits.commit import Checkpoint, Committer, read_checkpoint
from frazil.pipeline.datafile import Layout, write_part
from frazil.pipeline.partition_sort import Part
from frazil.position import LandingPosition, StreamPosition, WalPosition
from frazil.query.lake import Lake, TableVersion
from frazil.query.model import AsOf
from frazil.sql.constraint import Constraint
from frazil.sql.index import File
from frazil.tables import Promoted, landed_spec

LOGS = ("otel", "logs")
DAY = 20_000


def at(sequence: int) -> WalPosition:
    return WalPosition({"stream": StreamPosition(sequence, sequence, sequence)})


def rows(tenant: str = "acme", day: int = DAY, extra: tuple[Promoted, ...] = (), **columns: Any) -> pa.Table:
    time = datetime.datetime.fromtimestamp(day * 86_400 + 3600, datetime.UTC)
    row = {"tenant_id": tenant, "time": time, "received_time": time, "_segment": "stream/0", **columns}
    return pa.Table.from_pylist([row], schema=landed_spec("logs", extra).arrow_schema)


def data_file(
    table: Table,
    name: str,
    tenant: str = "acme",
    day: int = DAY,
    extra: tuple[Promoted, ...] = (),
    **columns: Any,
) -> DataFile:
    layout = Layout.of(table, landed_spec("logs", extra), 1)
    return write_part(layout, Part(tenant, day, rows(tenant, day, extra, **columns)), name)


def land(catalog: Catalog, sequence: int, *names: str, **columns: Any) -> int:
    """One batch, with a file for each name. Returns its snapshot."""
    checkpoint = read_checkpoint(catalog, LOGS)
    files = [data_file(checkpoint.table, name, **columns) for name in names]
    return commit(catalog, checkpoint, files, sequence)


def commit(catalog: Catalog, checkpoint: Checkpoint, files: list[DataFile], sequence: int) -> int:
    committer = Committer(catalog, deadline_seconds=60)
    return committer.append(checkpoint, files, LandingPosition(at(sequence)).to_text()).snapshot_id


def version(lake: Lake, as_of: AsOf | None = None) -> TableVersion:
    found = lake.version("logs", as_of)
    assert found is not None
    return found


def names(found: TableVersion, tenant: str = "acme", **constraints: Constraint) -> list[str]:
    return sorted(name_of(file) for file in found.files(tenant, constraints).files)


def name_of(file: File) -> str:
    """Without the fingerprint."""
    return Path(file.path).name.partition(".")[0]
