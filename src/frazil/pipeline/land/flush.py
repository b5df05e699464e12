"""Landing on demand: all that is in the write-ahead log now, whoever lands it."""

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
from frazil.tables import SIGNALS, Signal
from frazil.wal.kafka.topics import Topics
from frazil.wal.position import Position
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
) -> dict[Signal, Position]:
    """Returns when each table holds what was durable when this was called, and where the tables then stand.

    A pipeline may land at the same time: of two that land the same, one is told that the other was first.
    Raises Refused if something lies in the log that cannot land, unless its stream is one to `skip`.
    """
    reader = None if config.wal.type == "kafka" else WalReader(open_store(config))
    wanted = {
        signal: {name: end for name, end in _ends(config, signal, reader).items() if name not in skip}
        for signal in SIGNALS
    }
    positions: dict[Signal, Position] = {}
    for signal in SIGNALS:
        source = source_of(config, signal, reader)
        lander = Lander(config, signal, catalog, source, runner, metrics, reader=reader)
        look = partial(_ends, config, signal, reader)
        positions[signal] = _land(lander, wanted[signal], look, sleep)
    return positions


def _land(
    lander: Lander,
    wanted: Mapping[str, int],
    look: Callable[[], dict[str, int]],
    sleep: Callable[[float], None],
) -> Position:
    idle = 0
    while True:
        position = Position.from_text(lander.checkpoint().position)
        if not (behind := _behind(position, wanted)):
            return position
        try:
            step = lander.step(now_due=True)
        except Fenced:
            lander.forget()
            continue
        idle = idle + 1 if step == "idle" else 0
        if idle >= _IDLE_ROUNDS_MAX:
            raise Refused(
                f"{lander.signal}: {behind[0]} in the write-ahead log cannot land, as what should be before "
                "it is missing; `frazil verify` says more"
            )
        if step == "idle":
            there = look()  # a stream that has landed, ended and been cleaned up meanwhile is not waited for
            wanted = {name: end for name, end in wanted.items() if name in there}
            sleep(_PAUSE_SECONDS)


def _ends(config: Config, signal: Signal, reader: WalReader | None) -> dict[str, int]:
    """The first sequence (offset) of each stream (partition) that is not durable yet."""
    if reader is not None:
        ends: dict[str, int] = {}
        for segment in reader.segments(signal):
            ends[segment.name.stream] = max(ends.get(segment.name.stream, 0), segment.name.sequence + 1)
        return ends
    assert config.wal.kafka is not None  # the configuration has checked that  # noqa: S101
    state = Topics(config.wal.kafka).state(signal)
    if state is None:
        return {}
    return {f"{state.name}/{number}": end for number, (first, end) in state.partitions.items() if end > first}


def _behind(position: Position, wanted: Mapping[str, int]) -> list[str]:
    """What has not landed. Of a closed stream nothing more can."""
    found = {name: stream.sequence for name, stream in position.streams.items() if not stream.closed}
    closed = {name for name, stream in position.streams.items() if stream.closed}
    for topic, at in position.topics.items():
        found |= {f"{topic}/{number}": part.offset for number, part in at.partitions.items()}
    return [
        f"{name}/{found.get(name, 0)}"
        for name, end in sorted(wanted.items())
        if name not in closed and found.get(name, 0) < end
    ]
