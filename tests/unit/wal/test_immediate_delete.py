"""Segments that go at once, and the mark that says so."""

from __future__ import annotations

from frazil.position import StreamPosition, WalPosition
from frazil.wal.immediate_delete import (
    MARK_SECONDS,
    DeletionMark,
    delete_landed_segments,
    remove_old_marks,
    write_mark,
)
from frazil.wal.names import SegmentName
from frazil.wal.reader import WalReader
from tests.support.wal_stores import MemoryStore

A, B = (f"20261115T08182312{number}-9f86d081884c7d65" for number in range(2))
POSITION = WalPosition({A: StreamPosition(3, rows=30), B: StreamPosition(2, rows=12, closed=True)})


def filled() -> MemoryStore:
    store = MemoryStore()
    for stream in (A, B):
        for sequence in range(5):
            store.create(SegmentName("logs", stream, sequence).path, b"%d" % sequence)
    return store


def test_everything_below_the_position_goes_and_nothing_else() -> None:
    store = filled()
    deleted = delete_landed_segments(store, "logs", POSITION)
    assert len(deleted) == 5
    reader = WalReader(store)
    assert [each.name.sequence for each in reader.stream("logs", A)] == [3, 4]
    assert [each.name.sequence for each in reader.stream("logs", B)] == [2, 3, 4]
    assert delete_landed_segments(store, "logs", POSITION) == []


def test_a_mark_says_how_many_rows_had_landed_and_is_no_stream() -> None:
    store = filled()
    reader = WalReader(store)
    assert reader.streams_and_swept_rows("logs") == ([A, B], 0)
    write_mark(store, "logs", POSITION, 1000.0)
    write_mark(store, "logs", POSITION, 1000.0)
    assert reader.streams_and_swept_rows("logs") == ([A, B], 42)
    assert reader.streams("logs") == [A, B]
    assert len(list(reader.segments("logs"))) == 10
    assert reader.streams_and_swept_rows("spans") == ([], 0)
    write_mark(store, "logs", WalPosition({A: StreamPosition(9, rows=50)}), 1001.0)
    assert reader.streams_and_swept_rows("logs")[1] == 50


def test_marks_go_when_nobody_can_have_so_old_a_position() -> None:
    store = filled()
    write_mark(store, "logs", POSITION, 1000.0)
    assert remove_old_marks(store, "logs", 1000.0 + MARK_SECONDS) == 0
    assert WalReader(store).streams_and_swept_rows("logs")[1] == 42
    assert remove_old_marks(store, "logs", 1001.0 + MARK_SECONDS) == 1
    assert WalReader(store).streams_and_swept_rows("logs") == ([A, B], 0)


def test_names_that_are_no_marks_are_none() -> None:
    assert DeletionMark.parse(DeletionMark(42, 1000).name) == DeletionMark(42, 1000)
    for name in (A, "swept-", "swept-x", "swept-00000000000000000042", "swept"):
        assert DeletionMark.parse(name) is None
