"""The source that the configuration names."""

from __future__ import annotations

from frazil.config import Config
from frazil.pipeline.land.source import Source
from frazil.tables import Signal
from frazil.wal.reader import WalReader


def source_of(config: Config, signal: Signal, reader: WalReader | None) -> Source:
    """`reader` is None with Kafka."""
    if reader is None:
        from frazil.pipeline.land.kafka import KafkaSource

        return KafkaSource(config, signal)
    from frazil.pipeline.land.segments import SegmentSource

    return SegmentSource(config, signal, reader)
