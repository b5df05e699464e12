"""Following logs: nothing that arrives late is lost, and nothing is shown twice."""

from __future__ import annotations

import datetime as dt
from typing import Any

from frazil.dashboard.logs.listing import Tail

NOW = dt.datetime(2026, 11, 15, 10, 0, 0, tzinfo=dt.UTC)


def record(happened: float, arrived: float, body: str = "") -> dict[str, Any]:
    """Seconds after NOW."""
    times = [NOW + dt.timedelta(seconds=seconds) for seconds in (happened, arrived)]
    written = [time.isoformat(timespec="microseconds").replace("+00:00", "Z") for time in times]
    return {"time": written[0], "received_time": written[1], "body": body or f"{happened} {arrived}"}


def after(seconds: float) -> dt.datetime:
    return NOW + dt.timedelta(seconds=seconds)


def bodies(tail: Tail) -> list[str]:
    return [found["body"] for found in tail.records.values()]


def test_what_has_arrived_since_the_last_answer_is_asked_for_with_an_overlap() -> None:
    tail = Tail([record(-3, -2)], NOW)

    assert tail.parameters(after(0.5)) == {
        "from": "2026-11-15T09:59:00+00:00",
        "to": "2026-11-15T11:00:00.500000+00:00",
        "received_from": "2026-11-15T09:59:53+00:00",
        "limit": 200,
    }


def test_a_record_that_comes_in_two_answers_is_shown_once() -> None:
    tail = Tail([record(-3, -2)], NOW)

    assert tail.add([record(-3, -2), record(-1, 0)], after(1), is_more=False) == 1
    assert tail.add([record(-3, -2), record(-1, 0)], after(2), is_more=False) == 0
    assert bodies(tail) == ["-1 0", "-3 -2"]


def test_a_late_record_is_shown_where_it_belongs() -> None:
    tail = Tail([record(-30, -30), record(-1, 0)], NOW)

    assert tail.add([record(-20, 1)], after(1), is_more=False) == 1
    assert bodies(tail) == ["-1 0", "-20 1", "-30 -30"]


def test_one_that_was_acked_after_a_newer_arrival_is_within_the_next_question() -> None:
    tail = Tail([record(0, 0)], NOW)
    tail.add([record(3, 3)], after(3), is_more=False)

    asked = tail.parameters(after(3.5))
    assert dt.datetime.fromisoformat(asked["received_from"]) <= after(-1.9)


def test_after_a_pause_the_question_begins_where_it_ended() -> None:
    tail = Tail([record(-1, 0)], NOW)

    assert tail.parameters(after(3600))["from"] == "2026-11-15T09:59:00+00:00"


def test_the_newest_five_hundred_are_kept() -> None:
    tail = Tail([record(second, second) for second in range(-400, 0)], NOW)
    tail.add([record(second, second) for second in range(200)], after(200), is_more=False)

    assert bodies(tail) == [f"{second} {second}" for second in reversed(range(-300, 200))]


def test_a_gap_is_noticed_and_forgotten_when_it_is_past() -> None:
    tail = Tail([record(0, 0)], NOW)

    tail.add([record(2, 2)], after(2), is_more=True)
    assert tail.is_skipping
    tail.add([record(2, 2), record(3, 3)], after(3), is_more=True)
    assert not tail.is_skipping


def test_records_of_one_microsecond_are_in_the_order_of_their_nanoseconds() -> None:
    early, late = (
        record(0, 0, body) | {"time_unix_nano": nanos} for body, nanos in (("a", "99"), ("b", "100"))
    )

    assert bodies(Tail([early, late], NOW)) == ["b", "a"]
