"""Reading on in a list of logs."""

from __future__ import annotations

from typing import Any

from frazil.dashboard.logs.listing import Listing, missing_of


def answer(first: int, count: int, after: str | None, missing: tuple[str, ...] = ()) -> dict[str, Any]:
    records = [
        {"time": f"2026-11-15T10:{number // 60:02d}:{number % 60:02d}.000000Z", "body": str(number)}
        for number in range(first, first - count, -1)
    ]
    return {"records": records, "next": after, "stats": {"missing": missing}}


def bodies(listing: Listing) -> list[str]:
    return [record["body"] for record in listing.records.values()]


def test_the_newest_page_takes_the_place_of_the_one_before() -> None:
    listing = Listing("q")
    listing.restart({"to": "a"}, answer(10, 2, "more"))
    listing.restart({"to": "b"}, answer(12, 2, "more"))

    assert bodies(listing) == ["12", "11"]
    assert listing.parameters == {"to": "b"}
    assert listing.has_older
    assert not listing.is_frozen


def test_who_reads_older_records_keeps_what_is_there() -> None:
    listing = Listing("q")
    listing.restart({}, answer(10, 2, "more"))
    listing.append(answer(8, 2, None))

    assert bodies(listing) == ["10", "9", "8", "7"]
    assert listing.is_frozen
    assert not listing.has_older


def test_equal_records_on_two_pages_are_two() -> None:
    listing = Listing("q")
    listing.restart({}, answer(10, 1, "more"))
    listing.append(answer(10, 1, None))

    assert bodies(listing) == ["10", "10"]


def test_a_list_ends_somewhere() -> None:
    listing = Listing("q")
    listing.restart({}, answer(3000, 1999, "more"))
    assert listing.has_older
    listing.append(answer(1001, 1, "more"))

    assert listing.is_full
    assert not listing.has_older


def test_what_could_not_be_read_is_said_until_the_list_begins_anew() -> None:
    listing = Listing("q")
    listing.restart({}, answer(10, 1, "more", ("2 files of tier", "1 segment")))
    listing.append(answer(9, 1, None))

    assert listing.warning == "Incomplete result: 2 files of tier; 1 segment"
    listing.restart({}, answer(10, 1, "more"))
    assert listing.warning == ""
    assert missing_of({"records": []}) == ""
