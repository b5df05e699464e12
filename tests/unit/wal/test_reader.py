"""Reading the WAL back: contiguous, in order, and what cannot be read is set aside with its reason."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import SegmentCorrupt, StoreUnavailable
from frazil.position import StreamPosition, WalPosition
from frazil.storage import Entry
from frazil.wal import SegmentName
from frazil.wal.reader import NOTHING_LANDED, Segment, WalReader
from tests.support.wal_stores import MemoryStore, set_aside_copies
from tests.unit.wal.test_segment import DECODER, segment, table

STREAMS = [f"20261115T08182312{n}-9f86d081884c7d65" for n in range(3)]


def name(stream: int, sequence: int) -> SegmentName:
    return SegmentName("logs", STREAMS[stream], sequence)


def holding(*names: SegmentName) -> WalReader:
    store = MemoryStore()
    for one in names:
        store.objects[one.path] = segment(table(2), name=one)
    return WalReader(store)


def at(position: dict[str, int], *, closed: bool = False) -> WalPosition:
    return WalPosition({stream: StreamPosition(place, closed=closed) for stream, place in position.items()})


def places_of(segments: Iterable[Segment]) -> list[tuple[int, int]]:
    return [(STREAMS.index(item.name.stream), item.name.sequence) for item in segments]


def found(reader: WalReader, position: WalPosition = NOTHING_LANDED) -> list[tuple[int, int]]:
    return places_of(reader.pending("logs", position))


places = st.sets(st.tuples(st.integers(0, 2), st.integers(0, 12)), max_size=20)
positions = st.dictionaries(st.sampled_from(STREAMS), st.integers(0, 12))


@given(places, positions)
def test_only_the_contiguous_part_from_the_position_on_is_pending(
    there: set[tuple[int, int]], position: dict[str, int]
) -> None:
    store = MemoryStore()
    store.objects = {name(*place).path: b"x" for place in there}
    expected = []
    for stream in range(3):
        sequence = position.get(STREAMS[stream], 0)
        while (stream, sequence) in there:
            expected.append((stream, sequence))
            sequence += 1
    reader = WalReader(store)
    assert found(reader, at(position)) == expected
    assert places_of(chain(*reader.pending_by_stream("logs", at(position)))) == expected


def test_streams_are_listed_side_by_side() -> None:
    """Each listing waits for the others: one after another they would never end."""
    store = MemoryStore()
    store.objects = {name(stream, sequence).path: b"x" for stream in range(3) for sequence in range(2)}
    together, real = threading.Barrier(3), store.list

    def list_together(prefix: str, after: str | None = None) -> Iterator[Entry]:
        together.wait(60)
        return real(prefix, after)

    store.list = list_together  # type: ignore[method-assign]
    found = WalReader(store).pending_by_stream("logs", NOTHING_LANDED)
    assert [len(list(stream)) for stream in found] == [2, 2, 2]


def test_a_listing_that_fails_beside_others_is_told() -> None:
    store = MemoryStore()
    store.objects = {name(stream, 0).path: b"x" for stream in range(3)}
    real = store.list

    def fail(prefix: str, after: str | None = None) -> Iterator[Entry]:
        if STREAMS[1] in prefix:
            raise StoreUnavailable("no answer")
        return real(prefix, after)

    store.list = fail  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        WalReader(store).pending_by_stream("logs", NOTHING_LANDED)


def test_a_stream_is_listed_from_its_position_on_and_a_closed_one_not_at_all() -> None:
    store = MemoryStore()
    store.objects = {name(stream, sequence).path: b"x" for stream in range(3) for sequence in range(100)}
    position = WalPosition(
        {STREAMS[0]: StreamPosition(98), STREAMS[1]: StreamPosition(50, closed=True)}
    ).with_streams({STREAMS[2]: StreamPosition(100)})
    assert found(WalReader(store), position) == [(0, 98), (0, 99)]
    assert store.listed == [name(0, 98).path, name(0, 99).path]


def test_a_gap_ends_the_listing_too() -> None:
    store = MemoryStore()
    store.objects = {name(0, sequence).path: b"x" for sequence in (0, 5, 6, 7, 8)}
    assert found(WalReader(store)) == [(0, 0)]
    assert store.listed == [name(0, 0).path, name(0, 5).path]


def test_what_will_never_land_is_named() -> None:
    reader = holding(
        name(0, 4), name(0, 5), *(name(1, sequence) for sequence in (0, 1, 3)), name(2, 6), name(2, 7)
    )
    without_beginning = [(0, 4), (0, 5)]
    assert places_of(reader.strays("logs", at({STREAMS[2]: 7}))) == without_beginning
    closed = at({STREAMS[2]: 7}, closed=True)
    assert places_of(reader.strays("logs", closed)) == [*without_beginning, (2, 7)]
    assert list(reader.strays("spans", closed)) == []
    assert places_of(reader.strays("logs", at({STREAMS[0]: 3, STREAMS[2]: 6}))) == []  # a gap is waited for


def test_a_stream_that_begins_while_one_looks_is_no_stray() -> None:
    """A listing that is under way sees 1, and not 0, which was created behind its back."""
    reader = holding(name(0, 0), name(0, 1))
    store = reader._store
    whole = store.list
    looks = iter([name(0, 0).path])
    store.list = lambda prefix, after=None: whole(prefix, next(looks, after))  # type: ignore[method-assign]
    assert list(reader.strays("logs", NOTHING_LANDED)) == []
    assert next(looks, None) is None


def test_a_gap_ends_a_stream_and_no_other() -> None:
    reader = holding(name(0, 0), name(0, 2), name(1, 0), name(1, 1))
    assert found(reader) == [(0, 0), (1, 0), (1, 1)]
    assert [item.name.sequence for item in reader.segments("logs")] == [0, 2, 0, 1]


def test_foreign_files_and_other_signals_are_passed_over() -> None:
    reader = holding(name(0, 0))
    store = reader._store
    for foreign in ("logs/readme.txt", "logs/backup/00000000000000000000.parquet", f"{name(0, 0).path}.bak"):
        store.objects[foreign] = b"hello"  # type: ignore[attr-defined]
    store.objects[SegmentName("spans", STREAMS[0], 0).path] = b"x"  # type: ignore[attr-defined]
    assert found(reader) == [(0, 0)]


def test_rows_and_facts_are_read_by_name_and_a_vanished_segment_is_not_corrupt() -> None:
    reader = holding(name(0, 0))
    facts, rows = reader.rows(name(0, 0), DECODER.spec)
    assert facts == reader.facts(name(0, 0))
    assert rows.num_rows == facts.rows == 2
    with pytest.raises(FileNotFoundError):
        reader.facts(name(0, 1))


def test_a_corrupt_segment_is_kept_aside_with_its_reason_and_once() -> None:
    reader = holding(name(0, 0))
    store = reader._store
    store.objects[name(0, 0).path] = b"damaged"  # type: ignore[attr-defined]
    for _ in range(2):
        with pytest.raises(SegmentCorrupt) as caught:
            reader.facts(name(0, 0))
        aside = reader.set_aside(name(0, 0), caught.value)
    assert store.read(aside) == b"damaged"
    ((path, facts),) = set_aside_copies(store)
    assert path == aside
    assert facts["segment"] == name(0, 0).path
    assert "not a complete Parquet file" in facts["reason"]
    assert found(reader) == [(0, 0)]  # until clean-up; its copy is no segment
