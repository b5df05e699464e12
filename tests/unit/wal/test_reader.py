"""Reading the WAL back: contiguous, in order, and what cannot be read is set aside with its reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import SegmentCorrupt
from frazil.wal import SegmentName
from frazil.wal.reader import WalReader
from tests.unit.wal.test_segment import DECODER, segment, table
from tests.wal_stores import MemoryStore

STREAMS = [f"20261115T08182312{n}-9f86d081884c7d65" for n in range(3)]


def name(stream: int, sequence: int) -> SegmentName:
    return SegmentName("logs", STREAMS[stream], sequence)


def holding(*names: SegmentName) -> WalReader:
    store = MemoryStore()
    for one in names:
        store.objects[one.path] = segment(table(2), name=one)
    return WalReader(store)


def found(reader: WalReader, position: dict[str, int] | None = None) -> list[tuple[int, int]]:
    segments = [item.name for item in reader.pending("logs", position)]
    return [(STREAMS.index(item.stream), item.sequence) for item in segments]


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
    assert found(WalReader(store), position) == expected


def test_a_gap_ends_a_stream_and_no_other() -> None:
    reader = holding(name(0, 0), name(0, 2), name(1, 0), name(1, 1))
    assert found(reader) == [(0, 0), (1, 0), (1, 1)]
    assert [item.name.sequence for item in reader.segments("logs")] == [0, 2, 0, 1]


def test_foreign_files_and_other_signals_are_passed_over() -> None:
    reader = holding(name(0, 0))
    store = reader._store
    store.objects["logs/readme.txt"] = b"hello"  # type: ignore[attr-defined]
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
    assert store.read(aside.path) == b"damaged"
    assert list(reader.set_aside_segments()) == [aside]
    assert "not a whole Parquet file" in aside.reason
    assert found(reader) == [(0, 0)]  # until clean-up; its copy is no segment
