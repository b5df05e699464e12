"""Positions as text: what goes in comes out, however many streams there are."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.wal.names import new_stream
from frazil.wal.position import Left, PartitionPosition, Position, StreamPosition, TopicPosition

counts = st.integers(0, 2**63 - 1)
removed = st.just(0) | counts
streams = st.dictionaries(
    st.from_regex(r"[0-9]{8}T[0-9]{9}-[0-9a-f]{16}", fullmatch=True),
    st.builds(StreamPosition, counts, counts, counts, st.booleans(), removed),
    max_size=80,
)
topics = st.dictionaries(
    st.text(string.ascii_letters + "._-", min_size=1),
    st.builds(
        TopicPosition,
        st.text(max_size=22),
        st.dictionaries(
            st.integers(0, 2**31 - 1),
            st.builds(PartitionPosition, counts, counts, counts, counts, counts, removed),
            max_size=5,
        ),
    ),
    max_size=4,
)
positions = st.builds(Position, streams, st.builds(Left, counts, counts, counts, removed), topics)


@settings(max_examples=100, deadline=None)
@given(positions)
def test_a_position_comes_back_from_its_text(position: Position) -> None:
    assert Position.from_text(position.to_text()) == position


@given(positions)
@settings(max_examples=50, deadline=None)
def test_equal_positions_have_equal_texts(position: Position) -> None:
    shuffled = Position(
        dict(reversed(position.streams.items())), position.left, dict(reversed(position.topics.items()))
    )
    assert shuffled.to_text() == position.to_text()


@given(positions, st.data())
@settings(max_examples=50, deadline=None)
def test_rows_stay_counted_when_streams_leave(position: Position, data: st.DataObject) -> None:
    gone = set(data.draw(st.lists(st.sampled_from(sorted(position.streams)))) if position.streams else [])
    after = position.without_streams(gone)
    assert (after.rows, after.removed) == (position.rows, position.removed)
    assert set(after.streams) == set(position.streams) - gone
    assert after.left.streams == position.left.streams + len(gone)
    assert after.without_streams(gone) == after


def test_a_short_one_is_json_that_people_can_read() -> None:
    position = Position({"20261115T081823123-9f86d081884c7d65": StreamPosition(3, 10, 12, closed=True)})
    assert json.loads(position.to_text()) == {
        "v": 1,
        "streams": {"20261115T081823123-9f86d081884c7d65": [3, 10, 12, 1]},
    }
    assert json.loads(Position().to_text()) == {"v": 1}


@pytest.mark.parametrize("count", [100, 5_000])
def test_thousands_of_streams_are_packed_to_some_forty_characters_each(count: int) -> None:
    position = Position(
        {
            new_stream(1.8e9 + 60 * number): StreamPosition(number, 40 * number, 40 * number)
            for number in range(count)
        }
    )
    text = position.to_text()
    assert Position.from_text(text) == position
    assert text.startswith("z:")
    assert len(text) < 45 * count


@pytest.mark.parametrize("text", ["", "{", '{"v": 3}', "{}"])
def test_what_is_no_position_or_a_later_one_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        Position.from_text(text)


@pytest.mark.parametrize("text", ["z:", "z:AAAA", "[]", '{"v":1,"streams":{"a":[1]}}', "not JSON", '{"v":3}'])
def test_damaged_text_is_no_position(text: str) -> None:
    with pytest.raises(ValueError):
        Position.from_text(text)


ONE, TWO = "20261115T081823123-9f86d081884c7d65", "20261115T081823123-0000000000000002"
COUNTED = Position(
    {ONE: StreamPosition(3, 10, 12), TWO: StreamPosition(1, 5, 5, closed=True)},
    Left(2, 30, 30),
    {"logs": TopicPosition("id", {0: PartitionPosition(9, 40, 9), 1: PartitionPosition(2, 7, 2)})},
)


def test_rows_that_go_are_counted_where_they_came_from() -> None:
    after = COUNTED.with_removed({f"{ONE}/0": 2, f"{ONE}/2": 1, "logs/1/0": 4, "forgotten/7": 6})
    assert after.streams == {
        ONE: StreamPosition(3, 10, 12, removed=3),
        TWO: StreamPosition(1, 5, 5, closed=True),
    }
    assert after.left == Left(2, 30, 30, removed=6)
    assert after.topics["logs"].partitions == {
        0: PartitionPosition(9, 40, 9),
        1: PartitionPosition(2, 7, 2, removed=4),
    }
    assert (after.rows, after.removed) == (COUNTED.rows, 13)
    assert after.with_removed({f"{ONE}/0": 1}).streams[ONE].removed == 4


def test_rows_that_nobody_of_us_has_landed_are_not_counted_when_they_go() -> None:
    assert COUNTED.with_removed({"by hand": 3, "": 1}) == COUNTED


def test_a_stream_that_leaves_takes_its_removed_rows_along() -> None:
    after = COUNTED.with_removed({f"{TWO}/0": 5, "forgotten/0": 1}).without_streams({TWO})
    assert after.left == Left(3, 35, 35, removed=6)


@given(positions, st.dictionaries(st.from_regex(r"[a-z]{1,3}/[0-9]{1,2}", fullmatch=True), counts))
@settings(max_examples=50, deadline=None)
def test_all_that_is_removed_is_counted_once(position: Position, rows: dict[str, int]) -> None:
    rows |= {f"{stream}/3": 5 for stream in position.streams}
    rows |= {f"{name}/{part}/8": 2 for name, at in position.topics.items() for part in at.partitions}
    after = position.with_removed(rows)
    assert after.removed == position.removed + sum(rows.values())
    assert after.rows == position.rows


def test_an_older_release_refuses_only_positions_that_count_what_it_would_forget() -> None:
    """It would land from such a one and write it back without the counts: the ledger would miss rows."""
    assert json.loads(COUNTED.to_text())["v"] == 1
    after = COUNTED.with_removed({f"{ONE}/0": 2})
    assert json.loads(after.to_text()) == {
        "v": 2,
        "streams": {TWO: [1, 5, 5, 1], ONE: [3, 10, 12, 0, 2]},
        "left": [2, 30, 30],
        "topics": {"logs": {"id": "id", "partitions": {"0": [9, 40, 9, 0, 0], "1": [2, 7, 2, 0, 0]}}},
    }
    assert COUNTED.with_removed({}).to_text() == COUNTED.to_text()
