"""Lands everything that is in the write-ahead log now, for commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from functools import partial

import structlog
from pyiceberg.catalog import Catalog

from frazil.config import Config
from frazil.errors import Fenced, Refused
from frazil.pipeline.land.lander import Lander
from frazil.pipeline.land.source import source_of
from frazil.pipeline.metrics import Metrics
from frazil.pipeline.runner import Runner
from frazil.position import LandingPosition, landing_position
from frazil.tables import SIGNALS, Signal
from frazil.wal.kafka.topics import Topics
from frazil.wal.reader import WalReader
from frazil.wal.store import open_store

_IDLE_ROUNDS_MAX = 5
_PAUSE_SECONDS = 0.5

log = structlog.get_logger("frazil.land")


def land_all(
    config: Config,
    catalog: Catalog,
    runner: Runner,
    metrics: Metrics,
    *,
    skip: Collection[str] = (),
    sleep: Callable[[float], None] = time.sleep,
) -> dict[Signal, LandingPosition]:
    """Lands all data that was durable when the function was called. Returns the positions of the tables.

    A pipeline may land at the same time: the loser of a commit is fenced and reads the new position.
    Raises Refused if the log holds data that cannot land, unless its stream is in `skip`.
    """
    reader = None if config.wal.type == "kafka" else WalReader(open_store(config))
    targets = {
        signal: {name: end for name, end in _ends(config, signal, reader).items() if name not in skip}
        for signal in SIGNALS
    }
    positions: dict[Signal, LandingPosition] = {}
    for signal in SIGNALS:
        source = source_of(config, signal, reader)
        lander = Lander(config, signal, catalog, source, runner, metrics, reader=reader)
        list_ends = partial(_ends, config, signal, reader)
        positions[signal] = _land(lander, targets[signal], list_ends, sleep)
    return positions


def _land(
    lander: Lander,
    targets: Mapping[str, int],
    list_ends: Callable[[], dict[str, int]],
    sleep: Callable[[float], None],
) -> LandingPosition:
    idle = 0
    while True:
        position = landing_position(lander.checkpoint().position)
        if not (behind := _behind(position, targets)):
            return position
        try:
            step = lander.step(now_due=True)
        except Fenced:
            lander.reset()
            continue
        idle = idle + 1 if step == "idle" else 0
        if idle >= _IDLE_ROUNDS_MAX:
            raise Refused(
                f"{lander.signal}: {behind[0]} in the write-ahead log cannot land because an earlier segment "
                "is missing; run `frazil verify` for details"
            )
        if step == "idle":
            existing = list_ends()  # without streams that were closed and deleted since the first listing
            targets = {name: end for name, end in targets.items() if name in existing}
            sleep(_PAUSE_SECONDS)


def _ends(config: Config, signal: Signal, reader: WalReader | None) -> dict[str, int]:
    """Returns the first sequence (offset) of each stream (partition) that is not durable yet."""
    if reader is not None:
        ends: dict[str, int] = {}
        for segment in reader.segments(signal):
            ends[segment.name.stream] = max(ends.get(segment.name.stream, 0), segment.name.sequence + 1)
        return ends
    assert config.wal.kafka is not None  # checked by the configuration  # noqa: S101
    state = Topics(config.wal.kafka).state(signal)
    if state is None:
        return {}
    return {f"{state.name}/{number}": end for number, (first, end) in state.partitions.items() if end > first}


def _behind(position: LandingPosition, targets: Mapping[str, int]) -> list[str]:
    """Returns the streams and partitions that have not reached their targets. Closed streams are complete."""
    found = {name: stream.sequence for name, stream in position.wal.streams.items() if not stream.closed}
    closed = {name for name, stream in position.wal.streams.items() if stream.closed}
    for topic, at in position.kafka.topics.items():
        found |= {f"{topic}/{number}": part.offset for number, part in at.partitions.items()}
    return [
        f"{name}/{found.get(name, 0)}"
        for name, end in sorted(targets.items())
        if name not in closed and found.get(name, 0) < end
    ]
