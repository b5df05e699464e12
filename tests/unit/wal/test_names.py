"""Names in the WAL: sortable, never used twice, and read back exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.tables import SIGNALS
from frazil.wal import SegmentName, new_stream
from frazil.wal.names import is_stream

STREAM = "20261115T081823123-9f86d081884c7d65"
names = st.builds(
    SegmentName,
    st.sampled_from(SIGNALS),
    st.floats(0, 4e9).map(new_stream),
    st.integers(0, 10**20 - 1),
)


@given(names)
def test_a_name_is_what_its_path_says(name: SegmentName) -> None:
    assert SegmentName.parse(name.path) == name


@given(names, names)
def test_paths_sort_as_sequences_do(one: SegmentName, other: SegmentName) -> None:
    same_stream = SegmentName(one.signal, one.stream, other.sequence)
    assert (one.path < same_stream.path) == (one.sequence < other.sequence)


@given(st.integers(0, 4 * 10**12), st.integers(1, 10**9))
def test_streams_sort_by_age(milliseconds: int, later: int) -> None:
    assert new_stream(milliseconds / 1000) < new_stream((milliseconds + later) / 1000 + 0.0005)


def test_two_streams_of_the_same_moment_differ() -> None:
    assert len({new_stream(1.5) for _ in range(1000)}) == 1000


def test_a_stream_reads_as_its_time() -> None:
    assert new_stream(1_794_730_703.123).startswith("20261115T081823123-")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "logs",
        f"logs/{STREAM}/1.parquet",
        f"logs/{STREAM}/{1:020d}.parquet.tmp",
        f"logs/{STREAM}/{1:020d}.parquet\n",
        f"logs/{STREAM}/{1:021d}.parquet",
        f"traces/{STREAM}/{1:020d}.parquet",
        f"/logs/{STREAM}/{1:020d}.parquet",
        f"logs/../{STREAM}/{1:020d}.parquet",
        f"logs/{STREAM.upper()}/{1:020d}.parquet",
        f"logs/{STREAM}/{'٣' * 20}.parquet",
        f"set-aside/logs/{STREAM}/{1:020d}.parquet",
    ],
)
def test_anything_else_is_not_a_segment(path: str) -> None:
    assert SegmentName.parse(path) is None


def test_the_next_name_is_the_next_sequence_of_the_same_stream() -> None:
    assert SegmentName("spans", STREAM, 9).next == SegmentName("spans", STREAM, 10)


def test_a_stream_is_told_from_other_folders() -> None:
    assert is_stream(STREAM)
    assert is_stream(new_stream())
    for other in ("", "backup", STREAM + "x", STREAM.upper(), f"{STREAM}\n", f"./{STREAM}"):
        assert not is_stream(other)
