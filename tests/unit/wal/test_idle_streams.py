"""Closing streams: only where nothing comes any more, and a writer that lives wins or knows that it lost."""

from __future__ import annotations

import pytest

from frazil.errors import StoreUnavailable
from frazil.position import StreamPosition, WalPosition
from frazil.tables import Promoted, table_spec
from frazil.wal import SegmentName
from frazil.wal.idle_streams import IdleStreamCloser
from frazil.wal.reader import WalReader
from frazil.wal.segment import read_rows
from tests.support.wal_stores import HandClock, MemoryStore
from tests.unit.wal.test_reader import STREAMS, name

IDLE_SECONDS = 3600.0


class Bench:
    def __init__(self) -> None:
        self.store, self.clock = MemoryStore(), HandClock()
        self.closer = IdleStreamCloser(self.store, self.clock, IDLE_SECONDS)

    def after(self, seconds: float, position: WalPosition) -> list[SegmentName]:
        self.clock.seconds += seconds
        return self.closer.close_idle("logs", position)


def at(*sequences: int) -> WalPosition:
    return WalPosition(
        {
            stream: StreamPosition(sequence, rows=10 * sequence, durable_rows=11 * sequence)
            for stream, sequence in zip(STREAMS, sequences, strict=False)
        }
    )


def test_a_stream_is_closed_when_its_position_has_stood_still_long_enough_and_not_before() -> None:
    bench = Bench()
    assert bench.after(0, at(3)) == []
    assert bench.after(IDLE_SECONDS - 1, at(3)) == []
    assert bench.store.objects == {}
    assert bench.after(1, at(3)) == [name(0, 3)]
    facts = WalReader(bench.store).facts(name(0, 3))
    assert (facts.tombstone, facts.rows, facts.stream_rows) == (True, 0, 33)


def test_what_lands_meanwhile_begins_the_wait_anew() -> None:
    bench = Bench()
    assert bench.after(0, at(3, 1)) == []
    assert bench.after(IDLE_SECONDS - 1, at(3, 2)) == []
    assert bench.after(1, at(3, 2)) == [name(0, 3)]
    assert bench.after(IDLE_SECONDS - 2, at(3, 2)) == []
    assert bench.after(1, at(3, 2)) == [name(1, 2)]


def test_a_tombstone_that_has_not_landed_yet_is_not_written_again() -> None:
    bench = Bench()
    bench.after(0, at(3))
    assert bench.after(IDLE_SECONDS, at(3)) == [name(0, 3)]
    assert bench.after(1, at(3)) == []
    assert bench.after(IDLE_SECONDS, at(3)) == []
    assert bench.store.created == [name(0, 3).path]


def test_where_a_writer_was_faster_its_segment_stays_and_the_stream_goes_on() -> None:
    bench = Bench()
    bench.after(0, at(3))
    bench.store.create(name(0, 3).path, b"a segment")
    assert bench.after(IDLE_SECONDS, at(3)) == []
    assert bench.store.objects == {name(0, 3).path: b"a segment"}
    assert bench.after(1, at(4)) == []
    assert bench.after(IDLE_SECONDS, at(4)) == [name(0, 4)]


def test_closed_streams_and_other_signals_are_left_alone() -> None:
    bench = Bench()
    closed = WalPosition({STREAMS[0]: StreamPosition(3, closed=True)})
    bench.after(0, closed)
    assert bench.after(IDLE_SECONDS, closed) == []
    bench.after(0, at(3))
    bench.clock.seconds += IDLE_SECONDS
    assert bench.closer.close_idle("spans", at(3)) == []


def test_streams_that_left_the_position_are_forgotten() -> None:
    bench = Bench()
    bench.after(0, at(3))
    bench.after(0, WalPosition())
    assert bench.after(IDLE_SECONDS, at(3)) == []


def test_while_the_store_fails_nothing_is_forgotten() -> None:
    bench = Bench()
    bench.after(0, at(3, 3))

    def fail(path: str, data: bytes) -> None:
        raise StoreUnavailable("no answer")

    bench.store.before_create = fail
    with pytest.raises(StoreUnavailable):
        bench.after(IDLE_SECONDS, at(3, 3))
    bench.store.before_create = lambda path, data: None
    assert bench.after(0, at(3, 3)) == [name(0, 3), name(1, 3)]


def test_a_call_closes_a_bounded_number_and_the_next_calls_the_rest() -> None:
    bench = Bench()
    streams = [f"20261115T081823{number:03d}-9f86d081884c7d65" for number in range(250)]
    position = WalPosition({stream: StreamPosition(1) for stream in streams})
    bench.after(0, position)
    counts = [len(bench.after(IDLE_SECONDS if turn == 0 else 0, position)) for turn in range(4)]
    assert counts == [100, 100, 50, 0]
    assert sorted(bench.store.created) == [SegmentName("logs", stream, 1).path for stream in streams]


def test_a_tombstone_has_the_columns_of_the_configuration() -> None:
    spec = table_spec("logs", [Promoted("n", type="int", name="n_promoted")])
    store, clock = MemoryStore(), HandClock()
    closer = IdleStreamCloser(store, clock, IDLE_SECONDS, spec_of=lambda signal: spec)
    closer.close_idle("logs", at(3))
    clock.seconds += IDLE_SECONDS
    closer.close_idle("logs", at(3))
    _, rows = read_rows(name(0, 3), store.read(name(0, 3).path), spec)
    assert "n_promoted" in rows.column_names
