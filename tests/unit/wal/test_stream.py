"""How long a writer may use its stream: whatever it acks was there before the stream could be closed."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.config import Config
from frazil.errors import StoreUnavailable
from frazil.wal.clock import boot_seconds
from frazil.wal.group import Receipt
from frazil.wal.journal import SegmentJournal
from frazil.wal.segment import tombstone
from frazil.wal.segment_lane import Stream
from tests.support.group_commit import Seen, bench, logs, run
from tests.support.wal_stores import HandClock, MemoryStore

USE_SECONDS = 1800.0


def stream(clock: HandClock) -> Stream:
    numbers = itertools.count()
    return Stream("logs", USE_SECONDS, clock, lambda: f"stream-{next(numbers)}")


def test_a_stream_that_is_used_often_enough_goes_on() -> None:
    clock = HandClock()
    used = stream(clock)
    for sequence in range(10):
        name = used.begin()
        assert (name.stream, name.sequence, used.rows) == ("stream-0", sequence, 2 * sequence)
        clock.seconds += 1
        used.end(2)
        clock.seconds += USE_SECONDS - 2


def test_a_stream_that_has_rested_is_not_used_again() -> None:
    clock = HandClock()
    used = stream(clock)
    used.begin()
    clock.seconds += 100  # the write's time counts: its effect may have come at once
    used.end(2)
    clock.seconds += USE_SECONDS - 100
    name = used.begin()
    assert (name.stream, name.sequence, used.rows) == ("stream-1", 0, 0)


def test_a_stream_that_was_opened_long_ago_and_never_used_is_not_used() -> None:
    clock = HandClock()
    used = stream(clock)
    clock.seconds += USE_SECONDS
    assert used.begin().stream == "stream-1"


def test_a_write_that_took_too_long_does_not_count() -> None:
    clock = HandClock()
    used = stream(clock)
    used.begin()
    clock.seconds += USE_SECONDS + 1
    with pytest.raises(StoreUnavailable, match="took 1801 s"):
        used.end(2)


waits = st.floats(0, 1.5 * USE_SECONDS)


@given(st.lists(st.tuples(waits, waits), min_size=2, max_size=8))
def test_whatever_is_acked_was_durable_within_the_idle_time_of_the_write_before(
    writes: list[tuple[float, float]],
) -> None:
    clock = HandClock()
    used = stream(clock)
    begun: dict[str, float] = {}
    for before, during in writes:
        clock.seconds += before
        name = used.begin()
        start = clock.seconds
        clock.seconds += during
        try:
            used.end(1)
        except StoreUnavailable:
            used.renew()
            continue
        assert clock.seconds < begun.get(name.stream, start) + 2 * USE_SECONDS + 1e-6
        begun[name.stream] = start


@run
async def test_a_lane_that_slept_opens_a_new_stream_before_it_writes() -> None:
    clock = HandClock()
    async with bench(clock=clock, stream_use_seconds=USE_SECONDS) as at:
        assert await at.outcome(logs("a")) == Receipt(1)
        clock.seconds += USE_SECONDS
        assert await at.outcome(logs("b")) == Receipt(1)
        assert [segment.name.sequence for segment in at.seen.written] == [0, 0]
        assert at.bodies() == [["a"], ["b"]]


@run
async def test_a_lane_that_slept_during_a_write_does_not_ack_and_leaves_the_stream() -> None:
    clock, store = HandClock(), MemoryStore()
    async with bench(store, clock=clock, stream_use_seconds=USE_SECONDS) as at:
        assert await at.outcome(logs("a")) == Receipt(1)

        def sleep(path: str, data: bytes) -> None:
            clock.seconds += USE_SECONDS + 1

        store.before_create = sleep
        assert isinstance(await at.outcome(logs("b")), StoreUnavailable)
        assert isinstance(at.seen.failed[0], StoreUnavailable)
        store.before_create = lambda path, data: None
        at.lane.failure = None  # as the journal does when the store answers
        assert await at.outcome(logs("c")) == Receipt(1)
        first, last = (segment.name for segment in at.seen.written)
        assert first.stream != last.stream
        assert (first.sequence, last.sequence) == (0, 0)


@run
async def test_a_lane_that_finds_a_tombstone_goes_on_in_a_new_stream() -> None:
    store = MemoryStore()
    async with bench(store) as at:
        assert await at.outcome(logs("a")) == Receipt(1)
        fence = at.seen.written[0].name.next
        store.create(fence.path, tombstone(fence, 1))
        assert await at.outcome(logs("b")) == Receipt(1)
        assert at.seen.written[1].name.sequence == 0
        assert at.seen.written[1].name.stream != fence.stream


@run
async def test_a_journal_uses_a_stream_for_half_of_the_time_after_which_landing_closes_it() -> None:
    clock, seen = HandClock(), Seen()
    config = Config.model_validate({"land": {"stream_idle_seconds": 100}})
    journal = SegmentJournal(config, MemoryStore(), seen, clock=clock)
    await journal.start()
    for rest in (0, 49, 50):
        clock.seconds += rest
        await journal.append("logs", logs("a"), "t", 7)
    await journal.close()
    assert [segment.name.sequence for segment in seen.written] == [0, 1, 0]


def test_the_clock_counts_what_the_machine_slept() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= boot_seconds() <= time.clock_gettime(time.CLOCK_BOOTTIME)
