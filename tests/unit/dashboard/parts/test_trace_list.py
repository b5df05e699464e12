from __future__ import annotations

from typing import Any

from frazil.dashboard.parts.traces import trace_rows
from frazil.dashboard.theme import service_colours


def found(duration_ms: float, *services: str, **given: Any) -> dict[str, Any]:
    return {
        "trace_id": "ab" * 16,
        "start_time": "2026-11-15T10:00:00.123456Z",
        "duration_ms": duration_ms,
        "root_service": services[0],
        "root_name": "GET /",
        "root_missing": False,
        "spans": 12,
        "errors": 1,
        "services": [{"name": name, "spans": 3, "errors": int(name == "bad")} for name in services],
    } | given


def test_a_row_has_its_time_its_part_of_the_longest_and_the_services_that_failed() -> None:
    colours = service_colours(["shop", "bad"])
    row = trace_rows([found(50, "shop", "bad"), found(200, "shop")])[0]
    assert row == {
        "id": "ab" * 16,
        "day": "15 Nov",
        "clock": "10:00:00.123",
        "service": "shop",
        "name": "GET /",
        "colour": colours["shop"],
        "rootless": False,
        "duration": "50.0 ms",
        "part": 0.25,
        "spans": 12,
        "errors": 1,
        "services": [["shop", colours["shop"], False], ["bad", colours["bad"], True]],
        "more": "",
        "more_count": 0,
    }


def test_more_than_four_services_are_counted_and_named_together() -> None:
    (row,) = trace_rows([found(0, *"abcdef")])
    assert [name for name, _, _ in row["services"]] == ["a", "b", "c", "d"]
    assert (row["more_count"], row["more"]) == (2, "e, f")
    assert row["part"] == 0


def test_what_has_no_name_is_said_to_have_none() -> None:
    (row,) = trace_rows([found(1, "", root_name="")])
    assert (row["service"], row["name"], row["services"][0][0]) == (
        "(no service)",
        "(no name)",
        "(no service)",
    )


def test_nothing_found_is_an_empty_list() -> None:
    assert trace_rows([]) == []
