"""Rounds of WAL clean-up and watch, with the table's metadata handed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyiceberg.table.metadata import TableMetadata

from frazil.config import Config
from frazil.pipeline.land.upkeep import CleanUpStep, TableWal, WatchStep
from frazil.pipeline.metrics import Metrics
from frazil.storage import Store
from frazil.tables import Signal


class Upkeep:
    def __init__(self, config: Config, store: Store, metrics: Metrics, **clocks: Callable[[], float]) -> None:
        self._given: tuple[Any, ...] = config, store, metrics
        self._clocks: dict[str, Any] = dict(clocks)
        self._steps: dict[Signal, tuple[CleanUpStep, WatchStep]] = {}
        self._metadata: TableMetadata | None = None

    def round(self, signal: Signal, metadata: TableMetadata) -> frozenset[str]:
        """Returns the closed streams of which nothing is left."""
        self._metadata = metadata
        if signal not in self._steps:
            self._steps[signal] = self._made(signal)
        clean_up, watch = self._steps[signal]
        clean_up.run()
        watch.run()
        return clean_up.take_deleted_streams()

    def _made(self, signal: Signal) -> tuple[CleanUpStep, WatchStep]:
        config, store, metrics = self._given
        wal = TableWal(config, signal, store, lambda: self._metadata, **self._clocks)
        return CleanUpStep(wal, metrics), WatchStep(wal)
