"""Groups are decoded in slices of bounded size, and each request is counted for itself."""

from __future__ import annotations

import pytest

from frazil.errors import RequestInvalid, RequestTooLarge
from frazil.otlp.decode import Decoder
from frazil.wal.slices import SLICE_BYTES, PendingRequest, SliceDecoder, Tally
from tests.support.otlp_wire import delimited, within

DECODER = Decoder("logs")
RECORD, BAD = delimited(2, b""), delimited(2, delimited(9, b"short"))


def padded(records: bytes, size: int) -> bytes:
    """A request of these records whose body alone is larger than `size`."""
    return within((1, 2), records + delimited(2, delimited(5, delimited(1, b"x" * size))))


def request(body: bytes) -> PendingRequest:
    return PendingRequest(body, "t", 7)


def test_small_requests_share_a_slice_and_large_ones_are_cut() -> None:
    half = padded(RECORD, SLICE_BYTES // 2 - 100)
    large = within((1, 2), delimited(2, delimited(3, b"x" * 1000)) * (3 * SLICE_BYTES // 1000))
    group = [request(body) for body in (half, half, half, large, within((1, 2), RECORD))]
    tallies = [Tally() for _ in group]
    found = [part for part in SliceDecoder(DECODER, 1_000_000).slices(group, tallies) if part is not None]
    assert all(sum(map(len, part.bodies)) <= SLICE_BYTES + 100 for part in found)
    owners = [part.owners for part in found]
    assert [0, 1] in owners
    assert owners.count([3]) > 1
    assert sum(part.decoded.table.num_rows for part in found) == sum(tally.seen for tally in tallies)
    assert [tally.seen for tally in tallies] == [2, 2, 2, 3 * SLICE_BYTES // 1000, 1]


def test_each_request_is_counted_for_itself() -> None:
    tallies = [Tally(), Tally()]
    group = [request(within((1, 2), RECORD * 2)), request(within((1, 2), RECORD + BAD))]
    [part] = SliceDecoder(DECODER, 10).slices(group, tallies)
    assert [(tally.accepted, tally.rejected) for tally in tallies] == [(2, 0), (1, 1)]
    assert [tally.reason("logs") for tally in tallies] == [
        "",
        "1 log records rejected: trace_id is not 16 bytes long",
    ]
    assert {owner: found.tolist() for owner, found in part.decoded.rejected_records.items()} == {1: [1]}


def test_parts_with_one_tally_are_one_request_to_the_bound() -> None:
    parts, tally = [request(within((1, 2), RECORD * 3))] * 2, Tally()
    list(SliceDecoder(DECODER, 6).slices(parts, [tally, tally]))
    assert tally.seen == 6
    with pytest.raises(RequestTooLarge):
        list(SliceDecoder(DECODER, 5).slices(parts, [other := Tally(), other]))


def test_a_defect_in_decoding_is_some_requests_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DECODER, "decode", lambda *_, **__: 1 // 0)
    with pytest.raises(RequestInvalid, match="ZeroDivisionError"):
        list(SliceDecoder(DECODER, 10).slices([request(b"")], [Tally()]))


ATTRIBUTE = delimited(6, b"")


def decoded(body: bytes) -> tuple[int, int]:
    """The rows of a request, and how many slices they came in."""
    found = [part for part in SliceDecoder(DECODER, 1_000_000).slices([request(body)], [Tally()]) if part]
    return sum(part.decoded.table.num_rows for part in found), len(found)


def test_records_with_very_many_attributes_are_decoded_in_smaller_slices() -> None:
    rows, slices = decoded(within((1, 2), delimited(2, ATTRIBUTE * 10_000) * 50))
    assert rows == 50
    assert slices > 2


def test_many_records_that_repeat_many_attributes_of_their_resource_are_decoded_in_smaller_slices() -> None:
    resource = b"".join(delimited(1, delimited(1, b"k%d" % n)) for n in range(80))
    body = delimited(1, delimited(1, resource) + delimited(2, RECORD * 60_000))
    rows, slices = decoded(body)
    assert rows == 60_000
    assert slices > 2


def test_very_many_records_that_repeat_very_many_attributes_are_refused() -> None:
    resource = b"".join(delimited(1, delimited(1, b"k%d" % n)) for n in range(1000))
    with pytest.raises(RequestTooLarge, match="share too large a resource"):
        decoded(delimited(1, delimited(1, resource) + delimited(2, RECORD * 20_000)))


@pytest.mark.parametrize(
    "record",
    [
        ATTRIBUTE * 400_000,
        ATTRIBUTE * 4_000_000,
        within((5, 5), delimited(1, b"") * 400_000),
        within((5, 6), delimited(1, b"") * 400_000),
    ],
    ids=["attributes", "more attributes than a slice", "array", "key-value list"],
)
def test_a_record_that_would_take_too_long_is_refused(record: bytes) -> None:
    with pytest.raises(RequestTooLarge, match="record"):
        decoded(within((1, 2, 2), record))


def test_a_record_with_a_very_long_text_is_not_too_much() -> None:
    assert decoded(within((1, 2, 2, 5, 1), b"\n" * (3 * SLICE_BYTES))) == (1, 1)


def test_a_large_malformed_body_is_refused_before_it_is_decoded() -> None:
    with pytest.raises(RequestInvalid, match="malformed"):
        decoded(within((1, 2), delimited(2, delimited(3, b"x" * 20)) * (SLICE_BYTES // 8)) + b"\xff")


def test_lines_of_text_in_a_nested_value_are_not_nested_values() -> None:
    text = within((6, 1), delimited(1, b"dump") + within((2, 1), b"line\n" * 70_000))
    assert decoded(within((1, 2, 2, 5), text)) == (1, 1)


def test_groups_as_of_protobuf_2_are_not_walked() -> None:
    """Each would count as one field, whatever is in it."""
    group = b"\x9b\x06" + b"\x08\x01" * 10_000 + b"\x9c\x06"
    with pytest.raises(RequestInvalid, match="malformed"):
        decoded(group * 220)


def test_very_many_data_points_are_counted_in_steps_and_refused() -> None:
    body = within((1, 2, 2, 5), b"\x0a\x00" * 1_200_000)
    steps = SliceDecoder(Decoder("metrics"), 1_000_000).slices([PendingRequest(body, "t", 7, 1)], [Tally()])
    assert [next(steps) for _ in range(3)] == [None] * 3
    with pytest.raises(RequestTooLarge, match="records_per_request_max"):
        list(steps)
