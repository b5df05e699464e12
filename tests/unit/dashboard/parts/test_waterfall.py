from __future__ import annotations

from frazil.dashboard.parts.traces import waterfall_data
from frazil.dashboard.theme import SEVERITY_COLOURS, service_colours
from frazil.dashboard.traces.critical_path import critical_path
from frazil.dashboard.traces.read import CLIENT, SERVER, LogRecord, SpanRecord, Trace
from frazil.dashboard.traces.tree import build_tree
from frazil.query.reads.filters import SPAN_KINDS
from tests.unit.dashboard.traces.test_tree import span

US = 1_000
START = 1_794_700_000_000_000_000


def at(id: str, parent: str, start_us: int, end_us: int, **given: object) -> SpanRecord:
    return span(id, parent, START + start_us * US, START + end_us * US, **given)


def test_rows_have_what_is_drawn_in_microseconds_and_nothing_that_is_empty() -> None:
    event = {"timeUnixNano": str(START + 30 * US), "name": "exception"}
    spans = (
        at("a", "", 0, 100, kind=2),
        at("b", "a", 20, 60, is_error=True, service="cart", otlp={"events": [event]}),
        at("c", "gone", 40, 50),
    )
    logs = (LogRecord(START + 25 * US, "b", "cart", 17, "refused", []),)
    tree = build_tree(spans)
    drawn = waterfall_data(Trace("t", spans, logs), tree, critical_path(tree, 0))
    colours = service_colours(["cart", "shop"])
    assert drawn == {
        "length": 100.0,
        "services": [["shop", colours["shop"]], ["cart", colours["cart"]]],
        "kinds": list(SPAN_KINDS),
        "rows": [
            {
                "h": "a", "n": "a", "v": 0, "k": 2, "s": 0.0, "l": 100.0, "c": [[0, 20], [60, 40]],
                "d": 0, "b": 1,
            },
            {
                "h": "b", "n": "b", "v": 1, "k": 1, "s": 20.0, "l": 40.0, "e": True, "c": [[20, 40]],
                "t": [[30, True]], "g": [[25, SEVERITY_COLOURS["error"]]], "d": 1, "b": 0,
            },
            {"n": "missing parent gone", "s": 40.0, "l": 10.0, "d": 0, "b": 1},
            {"h": "c", "n": "c", "v": 0, "k": 1, "s": 40.0, "l": 10.0, "d": 1, "b": 0},
        ],
    }  # fmt: skip


def test_a_span_that_outlives_its_parent_has_the_time_when_its_parent_ended() -> None:
    spans = (at("a", "", 0, 50), at("b", "a", 10, 60), at("c", "a", 70, 80), at("d", "b", 20, 30))
    drawn = waterfall_data(Trace("t", spans, ()), build_tree(spans), [])
    assert {row["n"]: row.get("a") for row in drawn["rows"]} == {"a": None, "b": 50, "c": 50, "d": None}


def test_the_critical_path_is_drawn_on_the_bar_of_a_span_whose_clock_differs() -> None:
    hosts = [{"attributes": [{"key": "host.name", "value": {"stringValue": host}}]} for host in ("a", "b")]
    spans = (
        at("a", "", 0, 50, resource=hosts[0], kind=CLIENT),
        at("b", "a", 100, 130, resource=hosts[1], kind=SERVER),
    )
    tree = build_tree(spans)
    drawn = waterfall_data(Trace("t", spans, ()), tree, critical_path(tree, 0))
    assert [(row["s"], row["l"], row["c"]) for row in drawn["rows"]] == [
        (0, 50, [[0, 10], [40, 10]]),
        (100, 30, [[100, 30]]),
    ]


def test_what_is_odd_about_a_span_goes_with_its_row() -> None:
    spans = (at("early", "a", 0, 30), at("a", "", 10, 50))
    drawn = waterfall_data(Trace("t", spans, ()), build_tree(spans), [])
    assert [row.get("o") for row in drawn["rows"]] == [
        None,
        "starts 0.01 ms before its parent: their clocks differ",
    ]


def test_a_trace_without_length_can_be_drawn() -> None:
    spans = (at("a", "", 0, 0),)
    assert waterfall_data(Trace("t", spans, ()), build_tree(spans), [])["length"] == 0.001


def test_names_and_marks_are_bounded() -> None:
    events = [{"timeUnixNano": str(START + n)} for n in range(1_000)]
    spans = (at("a", "", 0, 9, name="n" * 10_000, otlp={"events": events}),)
    (row,) = waterfall_data(Trace("t", spans, ()), build_tree(spans), [])["rows"]
    assert len(row["n"]) == 160
    assert len(row["t"]) == 40
