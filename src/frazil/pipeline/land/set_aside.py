"""Keeps unreadable segments and messages in the table `set_aside`, so that landing can continue."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from frazil.config import Config
from frazil.errors import Fenced, SegmentCorrupt
from frazil.lake.catalog import catalog_errors
from frazil.lake.clock import recorded_time
from frazil.lake.commits.cleanup import discard
from frazil.lake.commits.commit import committer_of
from frazil.lake.tables import open_table
from frazil.pipeline.datafile import Layout, write_part
from frazil.pipeline.land.source import UnreadableSegment
from frazil.pipeline.partition_sort import partition_and_sort
from frazil.position import LandingPosition
from frazil.tables import SET_ASIDE, Signal
from frazil.wal.names import SegmentName
from frazil.wal.reader import WalReader

log = structlog.get_logger("frazil.land")


def set_aside(
    config: Config,
    catalog: Catalog,
    signal: Signal,
    unreadable: Sequence[UnreadableSegment],
    reader: WalReader | None,
) -> None:
    """Adds one row to `set_aside` for each item, unless it is there from an earlier attempt.

    Segments are copied to a folder that clean-up ignores. The row of a message holds its bytes.
    """
    for item in unreadable:
        log.error("unreadable data set aside", table=signal, source=item.source, reason=item.reason)
    kept = [_copied(signal, item, reader) for item in unreadable]
    committer = committer_of(config, catalog)
    while True:
        with catalog_errors():
            checkpoint = open_table(catalog, config.lake.namespace, SET_ASIDE, LandingPosition().to_text())
        sources = ", ".join(f"'{item.source}'" for item in kept)  # names of topics and streams have no quotes
        among = f"table_name == '{signal}' and source in ({sources})"
        known = checkpoint.table.scan(row_filter=among, selected_fields=("source",)).to_arrow()
        new = [item for item in kept if item.source not in set(known["source"].to_pylist())]
        if not new:
            return
        began = time.time()
        files = write_set_aside(config, checkpoint.table, _rows(signal, new, _now(checkpoint.table)))
        try:
            committer.append(checkpoint, files, checkpoint.position, began=began)
        except Fenced:  # the landing of another table committed first
            discard(checkpoint.table, files)
            continue
        return


def write_set_aside(config: Config, table: Table, rows: pa.Table) -> list[DataFile]:
    """Writes rows of `set_aside`, one file per tenant. Missing columns are NULL. Files are durable when the
    function returns.
    """
    layout, schema = Layout.of(table, SET_ASIDE, config.land.compression_level), SET_ASIDE.arrow_schema
    whole = pa.concat_tables([schema.empty_table(), rows], promote_options="default").cast(schema)
    parts = partition_and_sort([whole], SET_ASIDE).parts
    return [write_part(layout, part, f"{layout.batch}-{number:05d}") for number, part in enumerate(parts)]


def _copied(signal: Signal, item: UnreadableSegment, reader: WalReader | None) -> UnreadableSegment:
    if reader is None or item.payload is not None:
        return item
    stream, _, sequence = item.source.rpartition("/")
    name = SegmentName(signal, stream, int(sequence))
    return replace(item, location=reader.set_aside(name, SegmentCorrupt(name.path, item.reason)))


def _now(table: Table) -> datetime.datetime:
    """Returns the current time, but not before the time noted in the table: this machine's clock may be
    behind, and retention uses the noted time.
    """
    return datetime.datetime.fromtimestamp(
        max(time.time(), recorded_time(table.metadata) or 0.0), datetime.UTC
    )


def _rows(signal: Signal, items: Sequence[UnreadableSegment], now: datetime.datetime) -> pa.Table:
    return pa.table(
        {
            "tenant_id": [item.tenant for item in items],
            "time": [now for _ in items],
            "table_name": [signal for _ in items],
            "source": [item.source for item in items],
            "reason": [item.reason for item in items],
            "bytes": [item.size for item in items],
            "location": [item.location for item in items],
            "payload": [item.payload for item in items],
        },
        schema=SET_ASIDE.arrow_schema,
    )
