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
streams = st.dictionaries(
    st.from_regex(r"[0-9]{8}T[0-9]{9}-[0-9a-f]{16}", fullmatch=True),
    st.builds(StreamPosition, counts, counts, counts, st.booleans()),
    max_size=80,
)
topics = st.dictionaries(
    st.text(string.ascii_letters + "._-", min_size=1),
    st.builds(
        TopicPosition,
        st.text(max_size=22),
        st.dictionaries(
            st.integers(0, 2**31 - 1),
            st.builds(PartitionPosition, counts, counts, counts, counts, counts),
            max_size=5,
        ),
    ),
    max_size=4,
)
positions = st.builds(Position, streams, st.builds(Left, counts, counts, counts), topics)


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
    assert after.rows == position.rows
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


@pytest.mark.parametrize("text", ["", "{", '{"v": 2}', "{}"])
def test_what_is_no_position_or_a_later_one_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        Position.from_text(text)


@pytest.mark.parametrize("text", ["z:", "z:AAAA", "[]", '{"v":1,"streams":{"a":[1]}}', "not JSON", '{"v":2}'])
def test_damaged_text_is_no_position(text: str) -> None:
    with pytest.raises(ValueError):
        Position.from_text(text)
