"""The health of tables for Prometheus, under the same names wherever it is measured."""

from __future__ import annotations

import contextlib

from prometheus_client import CollectorRegistry, Gauge

from frazil.lake.state.health import TableHealth

_GAUGES = {
    "frazil_table_files": "Data files",
    "frazil_table_bytes": "Bytes of data files",
    "frazil_table_rows": "Rows that have landed",
    "frazil_table_small_files": "Data files that are to be merged some day",
    "frazil_table_files_per_moment": "Files that hold an average moment of a tenant's day; 1 is best",
    "frazil_table_oldest_timestamp_seconds": "The oldest row's time",
    "frazil_table_monthly_cost": "An estimate, by maintain.storage_price",
    "frazil_maintain_waiting_bytes": "What is worth merging now",
    "frazil_maintain_lag_seconds": "For how long, at least, it has been",
    "frazil_table_snapshots": "Snapshots that can be asked for",
    "frazil_table_manifests": "Manifests of the newest snapshot",
    "frazil_table_metadata_bytes": "The metadata file, which every commit writes anew",
    "frazil_table_orphan_bytes": "Files that no snapshot knows, when last looked for",
}


class TableGauges:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges = {name: Gauge(name, doc, ["table"], registry=registry) for name, doc in _GAUGES.items()}

    def show(self, table: str, health: TableHealth) -> None:
        """What is not known is not shown, rather than as 0."""
        values: dict[str, float | None] = {
            "frazil_table_files": health.files,
            "frazil_table_bytes": health.bytes,
            "frazil_table_rows": health.rows,
            "frazil_table_small_files": health.small_files,
            "frazil_table_files_per_moment": health.files_per_moment,
            "frazil_table_oldest_timestamp_seconds": (
                None if health.oldest_micros is None else health.oldest_micros / 1_000_000
            ),
            "frazil_table_monthly_cost": health.monthly_cost,
            "frazil_maintain_waiting_bytes": health.waiting_bytes,
            "frazil_maintain_lag_seconds": health.lag_seconds,
        }
        if (state := health.table) is not None:
            values |= {
                "frazil_table_snapshots": state.snapshots,
                "frazil_table_manifests": state.manifests,
                "frazil_table_metadata_bytes": state.metadata_bytes,
                "frazil_table_orphan_bytes": state.orphan_bytes,
            }
        for name, value in values.items():
            if value is not None:
                self._gauges[name].labels(table).set(value)
            else:
                with contextlib.suppress(KeyError):
                    self._gauges[name].remove(table)
