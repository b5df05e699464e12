from __future__ import annotations

import pytest

from frazil.dashboard.traces.query import Operations, is_filtered, operations, parameters, trace_id

ID = "5b8efff798038103d269b633813fc60c"


def test_what_stands_in_the_filters_is_asked_and_nothing_else() -> None:
    filters = {
        "service": ["cart", "shop"], "name": "GET /", "min": " 250ms ", "max": "2s", "errors": True,
        "attr": ["http.route=/cart"], "q": " refused ",
    }  # fmt: skip
    assert parameters(filters, "slowest") == {
        "service": ["cart", "shop"],
        "name": "GET /",
        "duration_min": "250ms",
        "duration_max": "2s",
        "status": "error",
        "attr": ["http.route=/cart"],
        "q": "refused",
        "order": "slowest",
        "limit": 100,
    }
    empty = {"service": [], "name": None, "min": "", "max": None, "errors": False, "attr": [], "q": " "}
    assert parameters(empty, "newest") == {"order": "newest", "limit": 100}


def test_a_filter_is_one_that_holds_something() -> None:
    assert not is_filtered({"service": [], "errors": False, "q": "", "name": None})
    assert is_filtered({"errors": True})
    assert is_filtered({"attr": ["a=b"]})


def test_names_to_choose_from_are_those_of_the_chosen_services() -> None:
    records = [
        {"service_name": "cart", "name": "GET /", "spans": 9},
        {"service_name": "shop", "name": "GET /", "spans": 5},
        {"service_name": "shop", "name": "pay", "spans": 3},
        {"service_name": None, "name": None, "spans": 1},
    ]
    assert operations(records, []) == Operations(["cart", "shop"], ["GET /", "pay"])
    assert operations(records, ["cart"]) == Operations(["cart", "shop"], ["GET /"])


@pytest.mark.parametrize(
    ("written", "found"),
    [
        (ID, ID),
        (f"  {ID.upper()} ", ID),
        ("5b8efff7-9803-8103-d269-b633813fc60c", ID),
        (f"00-{ID}-eee19b7ec3c1b174-01", ID),
        (ID[:-1], None),
        (f"{ID}0", None),
        ("0" * 32, None),
        ("refused", None),
        ("", None),
        (None, None),
    ],
)
def test_a_trace_id_is_known_however_it_was_copied(written: str | None, found: str | None) -> None:
    assert trace_id(written) == found
