"""The tables as one tenant sees them."""

from __future__ import annotations

import dataclasses

from frazil.query.model import ColumnInfo, Question, TableInfo
from frazil.query.plan import Planner
from frazil.query.sql import VIEWS
from frazil.tables import SIGNALS, Signal
from frazil.tables.columns import type_name

_VIEW_DOCS = {"events": "The logs that have an event name."}


def inventory(planner: Planner, tenant: str) -> list[TableInfo]:
    found = []
    for signal in SIGNALS:
        table = _table(planner, signal, tenant)
        found.append(table)
        found += [
            dataclasses.replace(
                table, name=view, doc=_VIEW_DOCS[view], rows=None, tail_rows=None, is_view=True
            )
            for view, doc in _VIEW_DOCS.items()
            if VIEWS[view] == signal
        ]
    return found


def _table(planner: Planner, signal: Signal, tenant: str) -> TableInfo:
    version, cut = planner.cut(signal, [{}], Question("", tenant))
    if cut is not None:
        cut.release()
    files = None if version is None else version.files(tenant)
    spec = planner.specs[signal]
    columns = [
        ColumnInfo(column.name, type_name(column.type), column.doc, column.source) for column in spec.columns
    ]
    return TableInfo(
        name=signal,
        doc=spec.doc,
        columns=columns,
        rows=0 if files is None else files.total_rows,
        tail_rows=0 if cut is None else cut.rows,
        files=0 if files is None else files.total,
        bytes=0 if files is None else files.total_bytes,
        first_time=None if files is None else files.first_time,
        last_time=None if files is None else files.last_time,
        snapshot_id=None if version is None else version.snapshot_id,
        landed_at=None if version is None else version.committed_at,
    )
