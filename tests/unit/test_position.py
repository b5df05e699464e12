"""Positions as text: what goes in comes out, of every kind, and texts of earlier releases are still read."""

from __future__ import annotations

import json
import string
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.position import (
    KafkaPosition,
    LandingPosition,
    Left,
    NewRows,
    PartitionPosition,
    Position,
    SourcePosition,
    StreamPosition,
    TopicPosition,
    WalPosition,
    landing_position,
    parse_position,
    without,
)
from frazil.wal.names import new_stream

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
wals = st.builds(WalPosition, streams, st.builds(Left, counts, counts, counts, removed))
landings = st.builds(LandingPosition, wals, st.builds(KafkaPosition, topics))
sources = st.builds(SourcePosition, st.text(min_size=1), counts, landings, counts)


@settings(max_examples=100, deadline=None)
@given(landings | sources)
def test_a_position_comes_back_from_its_text(position: Position) -> None:
    assert parse_position(position.to_text()) == position


@given(landings)
@settings(max_examples=50, deadline=None)
def test_equal_positions_have_equal_texts(position: LandingPosition) -> None:
    shuffled = LandingPosition(
        WalPosition(dict(reversed(position.wal.streams.items())), position.wal.left),
        KafkaPosition(dict(reversed(position.kafka.topics.items()))),
    )
    assert shuffled.to_text() == position.to_text()
    assert SourcePosition("t", 1, shuffled).to_text() == SourcePosition("t", 1, position).to_text()


@given(wals, st.data())
@settings(max_examples=50, deadline=None)
def test_rows_stay_counted_when_streams_leave(position: WalPosition, data: st.DataObject) -> None:
    gone = set(data.draw(st.lists(st.sampled_from(sorted(position.streams)))) if position.streams else [])
    after = position.without_streams(gone)
    assert (after.rows, after.removed) == (position.rows, position.removed)
    assert set(after.streams) == set(position.streams) - gone
    assert after.left.streams == position.left.streams + len(gone)
    assert after.without_streams(gone) == after


def test_a_short_one_is_json_that_people_can_read() -> None:
    stream = StreamPosition(3, 10, 12, closed=True)
    position = LandingPosition(WalPosition({"20261115T081823123-9f86d081884c7d65": stream}))
    assert json.loads(position.to_text()) == {
        "v": 1,
        "streams": {"20261115T081823123-9f86d081884c7d65": [3, 10, 12, 1]},
    }
    assert json.loads(LandingPosition().to_text()) == {"v": 1}


@pytest.mark.parametrize("count", [100, 5_000])
def test_thousands_of_streams_are_packed_to_some_forty_characters_each(count: int) -> None:
    streams = {
        new_stream(1.8e9 + 60 * number): StreamPosition(number, 40 * number, 40 * number)
        for number in range(count)
    }
    position = LandingPosition(WalPosition(streams))
    text = position.to_text()
    assert landing_position(text) == position
    assert text.startswith("z:")
    assert len(text) < 45 * count


SOURCE = '{"v":3,"source":{"table":"spans","snapshot":7,"sequence":3,"landing":{"v":1}}}'


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "{}", "z:", "z:AAAA", "[]", '{"v":1,"streams":{"a":[1]}}', "not JSON", '{"v":3}'),
        *('{"v":3,"source":{"table":"spans","landing":{}}}', SOURCE.replace("7", "null")),
    ],
)
def test_damaged_text_is_no_position(text: str) -> None:
    with pytest.raises(ValueError):
        parse_position(text)


def test_text_of_a_later_release_is_refused_with_both_versions() -> None:
    with pytest.raises(ValueError, match="the position has version 4, but this release supports up to 3"):
        parse_position('{"v":4}')


def test_a_derived_table_is_at_a_snapshot_of_its_source_and_at_the_landing_position_of_that() -> None:
    position = SourcePosition("spans", 7, LandingPosition(), 3)
    assert position.to_text() == SOURCE
    with pytest.raises(ValueError, match="in the table spans"):
        landing_position(SOURCE)
    assert without({f"{ONE}/0": 3}, SOURCE) == SOURCE


def test_the_number_of_counted_rows_is_part_of_a_derived_position_and_follows_removals() -> None:
    position = SourcePosition("spans", 7, LandingPosition(), 3, counted=12, replacements=2)
    assert parse_position(position.to_text()) == position
    assert parse_position(without({"": 4}, position.to_text(), counted=5)) == replace(position, counted=7)
    assert without({"": 4}, position.to_text()) == position.to_text()
    assert without({"": 4}, SOURCE, counted=5) == SOURCE, "a table that does not count rows"


def test_rows_of_a_stream_that_ended_before_the_position_are_not_new() -> None:
    """Also if the stream began after all streams that go on."""
    since = LandingPosition(WalPosition({"20260101": StreamPosition(5, 50, 50)}, Left(2, 30, 30)))
    head = LandingPosition(WalPosition({"20260101": StreamPosition(6, 60, 60)}, Left(2, 30, 30)))
    new_rows = NewRows(since, head)
    assert not new_rows.is_new("20260501/0")
    assert not new_rows.is_uncertain("20260501/0")
    assert new_rows.is_new("20260101/5")
    assert not new_rows.is_new("20260101/4")


def test_only_the_name_tells_if_a_stream_is_new_when_streams_have_ended_since_the_position() -> None:
    since = LandingPosition(WalPosition({"20260101": StreamPosition(5, 50, 50)}, Left(2, 30, 30)))
    head = LandingPosition(WalPosition({"20260701": StreamPosition(1, 1, 1)}, Left(3, 80, 80)))
    new_rows = NewRows(since, head)
    assert new_rows.is_uncertain("20260501/0")
    assert [new_rows.is_uncertain(f"{name}/0") for name in ("20260101", "20260701")] == [False, False]
    assert not NewRows(LandingPosition(), head).is_uncertain("20260501/0")
    assert NewRows(LandingPosition(), head).is_new("20260501/0")


def test_rows_are_new_if_they_landed_after_a_position() -> None:
    topic = TopicPosition("id", {0: PartitionPosition(10), 1: PartitionPosition(0)})
    since = LandingPosition(
        WalPosition({"20261001T08-a": StreamPosition(3, 10, 10)}), KafkaPosition({"otlp_logs": topic})
    )
    one_ended = WalPosition({"20261001T07-b": StreamPosition(5, 20, 20)}, Left(1, 9, 9))
    head = LandingPosition(one_ended, since.kafka)
    new = NewRows(since, head)
    assert [new.is_new(f"20261001T08-a/{number}") for number in (2, 3)] == [False, True]
    assert new.is_new("20261001T07-b/0"), "a stream that only the later position has"
    assert not new.is_new("20261001T06-c/9"), "a stream that ended before"
    assert new.is_new("20261001T09-d/9"), "a stream that began after, and has ended"
    assert [new.is_new(f"otlp_logs/0/{offset}") for offset in (9, 10)] == [False, True]
    assert [new.is_new(f"otlp_logs/{part}/0") for part in (1, 2)] == [True, True]
    assert not new.is_new("not a source")
    assert NewRows(LandingPosition(), head).is_new("20261001T06-c/9")


WRITTEN_BEFORE = {
    '{"v":1}': LandingPosition(),
    '{"v":1,"streams":{"a":[3,10,12],"b":[1,5,5,1]},"left":[2,30,31]}': LandingPosition(
        WalPosition(
            {"a": StreamPosition(3, 10, 12), "b": StreamPosition(1, 5, 5, closed=True)}, Left(2, 30, 31)
        )
    ),
    '{"v":1,"topics":{"logs":{"id":"x","partitions":{"0":[9,40,8,1,2],"12":[2,7,2,0,0]}}}}': LandingPosition(
        kafka=KafkaPosition(
            {
                "logs": TopicPosition(
                    "x", {0: PartitionPosition(9, 40, 8, 1, 2), 12: PartitionPosition(2, 7, 2)}
                )
            }
        )
    ),
    '{"v":2,"streams":{"a":[3,10,12,0,4]},"left":[2,30,31,5],'
    '"topics":{"t":{"id":"x","partitions":{"0":[9,40,8,1,2,6]}}}}': LandingPosition(
        WalPosition({"a": StreamPosition(3, 10, 12, removed=4)}, Left(2, 30, 31, 5)),
        KafkaPosition({"t": TopicPosition("x", {0: PartitionPosition(9, 40, 8, 1, 2, 6)})}),
    ),
    "z:eNqrVipTsjLUUSouKUpNzC1WsqpWSlSyijbWMTTQMTSKra0FAKXbCaU=": LandingPosition(
        WalPosition({"a": StreamPosition(3, 10, 12)})
    ),
}
"""Texts as releases before the position of derived tables wrote them into tables."""


@pytest.mark.parametrize("text", WRITTEN_BEFORE)
def test_texts_of_earlier_releases_are_read_and_written_as_before(text: str) -> None:
    position = parse_position(text)
    assert position == landing_position(text) == WRITTEN_BEFORE[text]
    assert text.startswith("z:") or position.to_text() == text


ONE, TWO = "20261115T081823123-9f86d081884c7d65", "20261115T081823123-0000000000000002"
COUNTED = LandingPosition(
    WalPosition({ONE: StreamPosition(3, 10, 12), TWO: StreamPosition(1, 5, 5, closed=True)}, Left(2, 30, 30)),
    KafkaPosition(
        {"logs": TopicPosition("id", {0: PartitionPosition(9, 40, 9), 1: PartitionPosition(2, 7, 2)})}
    ),
)


def test_rows_that_go_are_counted_where_they_came_from() -> None:
    after = COUNTED.with_removed({f"{ONE}/0": 2, f"{ONE}/2": 1, "logs/1/0": 4, "forgotten/7": 6})
    assert after.wal.streams == {
        ONE: StreamPosition(3, 10, 12, removed=3),
        TWO: StreamPosition(1, 5, 5, closed=True),
    }
    assert after.wal.left == Left(2, 30, 30, removed=6)
    assert after.kafka.topics["logs"].partitions == {
        0: PartitionPosition(9, 40, 9),
        1: PartitionPosition(2, 7, 2, removed=4),
    }
    assert (after.rows, after.removed) == (COUNTED.rows, 13)
    assert after.with_removed({f"{ONE}/0": 1}).wal.streams[ONE].removed == 4


def test_rows_that_nobody_of_us_has_landed_are_not_counted_when_they_go() -> None:
    assert COUNTED.with_removed({"by hand": 3, "": 1}) == COUNTED


def test_a_stream_that_leaves_takes_its_removed_rows_along() -> None:
    after = COUNTED.with_removed({f"{TWO}/0": 5, "forgotten/0": 1}).wal.without_streams({TWO})
    assert after.left == Left(3, 35, 35, removed=6)


@given(landings, st.dictionaries(st.from_regex(r"[a-z]{1,3}/[0-9]{1,2}", fullmatch=True), counts))
@settings(max_examples=50, deadline=None)
def test_all_that_is_removed_is_counted_once(position: LandingPosition, rows: dict[str, int]) -> None:
    rows |= {f"{stream}/3": 5 for stream in position.wal.streams}
    rows |= {f"{name}/{part}/8": 2 for name, at in position.kafka.topics.items() for part in at.partitions}
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
