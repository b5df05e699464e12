"""Lists the tables for one tenant: columns, rows, freshness and health."""

from __future__ import annotations

import dataclasses
import time

from frazil.config import Config, MaintainConfig
from frazil.lake.snapshots import commit_times
from frazil.lake.state.health import TableHealth, health, oldest_snapshot_seconds, state_of
from frazil.query.lake import TableVersion
from frazil.query.model import ColumnInfo, Query, TableInfo
from frazil.query.plan import Planner, reads_unowned
from frazil.sql.types import duckdb_type
from frazil.tables import TableSpec


def inventory(planner: Planner, tenant: str, config: Config, *, whole: bool = False) -> list[TableInfo]:
    """List tables and views. `whole`, for admins, adds rows without a tenant and health over all tenants."""
    found = []
    planner.find_views()
    for spec in planner.specs.values():
        table = _table(planner, spec, tenant, config, whole=whole)
        found.append(table)
        found += [
            dataclasses.replace(
                table,
                name=view.name,
                doc=view.doc,
                rows=None,
                tail_rows=None,
                is_view=True,
                health=None,
                whole=None,
            )
            for view in spec.views
        ]
    return found


def health_of(
    version: TableVersion, spec: TableSpec, config: MaintainConfig, tenant: str | None
) -> TableHealth | None:
    """Compute the health of a tenant's files, or of the whole table, from cached metadata alone."""
    metadata = version.metadata
    if metadata is None:
        return None
    now = time.time()
    committed = {id: ms / 1000 for id, ms in commit_times(metadata, int(now * 1000)).items()}
    return health(
        version.index.facts(version.schema, committed, tenant),
        config,
        now,
        known_since=oldest_snapshot_seconds(metadata),
        table=None if tenant is not None else state_of(metadata, version.index.manifests),
        spec=spec,
    )


def _table(planner: Planner, spec: TableSpec, tenant: str, config: Config, *, whole: bool) -> TableInfo:
    query = Query("", tenant, unowned=whole)
    version, cut = planner.cut(spec, [{}], query)
    if cut is not None:
        cut.release()
    files = None if version is None else version.files(tenant, unowned=reads_unowned(query, spec))
    times = (None if files is None else files.last_time, None if cut is None else cut.time_max)
    columns = [
        ColumnInfo(column.name, duckdb_type(column.type).replace('"', ""), column.doc, column.source)
        for column in spec.sql_columns
    ]
    return TableInfo(
        name=spec.name,
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
        newest_time=max((each for each in times if each is not None), default=None),
        derived=planner.derived_info(spec.name, version),
        health=None if version is None else health_of(version, spec, config.maintain, tenant),
        whole=None if version is None or not whole else health_of(version, spec, config.maintain, None),
    )
