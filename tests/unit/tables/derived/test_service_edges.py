"""Edges between services are the same however the spans of calls are cut, ordered and settled."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from frazil.tables.derived.combine import combine, rolled_up
from frazil.tables.derived.rules import OPEN, PENDING_RESOLUTIONS, SETTLED
from frazil.tables.derived.service_edges import SERVICE_EDGES, service_edge_rows, settle_calls
from tests.support.calls import (
    CONSUMER,
    DAY,
    HOUR,
    MICROS,
    MIDNIGHT,
    NOON,
    PRODUCER,
    SERVER,
    Span,
    edges_seen,
    expected_edges,
    hex16,
    span_table,
    spans_of_calls,
)

LATER = NOON + 30 * DAY
CALL = Span(hex16(1))
ANSWER = Span(hex16(2), hex16(1), SERVER, "cart")


def derived(*tasks: Sequence[Span], coded: bool = False) -> pa.Table:
    """The rows of the table after these tasks, each of which derives some spans."""
    parts = [rolled_up(service_edge_rows(span_table(spans, coded=coded)), SERVICE_EDGES) for spans in tasks]
    return pa.concat_tables(parts)


def nodes(rows: pa.Table, now: float = LATER) -> list[tuple[Any, ...]]:
    """Caller, callee, connection, protocol, calls and errors of each edge."""
    found = edges_seen(rows, now).items()
    return sorted(((*key[2:6], *row[:2]) for key, row in found if key[1] == DAY), key=str)


def pending(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.is_in(rows["resolution"], pa.array(PENDING_RESOLUTIONS, pa.int32())))


def settled(rows: pa.Table, until: float) -> pa.Table:
    """As compaction does with the pending rows of each tenant and day."""
    waiting = combine(pending(rows), SERVICE_EDGES)
    is_result = pc.greater(rows["resolution"], SETTLED)
    kept = [rows.filter(is_result)]
    days = pc.divide(waiting["time"].cast(pa.int64()), DAY * MICROS)
    for tenant in pc.unique(waiting["tenant_id"]).to_pylist():
        for day in pc.unique(days).to_pylist():
            of_day = waiting.filter(pc.and_(pc.equal(days, day), pc.equal(waiting["tenant_id"], tenant)))
            edges, left = settle_calls(of_day, int(until * MICROS))
            kept += [rolled_up(edges, SERVICE_EDGES), combine(left, SERVICE_EDGES)]
    return pa.concat_tables(kept)


@given(spans_of_calls(), st.data())
@settings(max_examples=300, deadline=None)
def test_edges_do_not_depend_on_how_the_spans_were_cut(spans: list[Span], data: st.DataObject) -> None:
    task_of = [data.draw(st.integers(0, 2)) for _ in spans]
    tasks = [[span for span, of in zip(spans, task_of, strict=True) if of == task] for task in range(3)]
    rows = derived(*tasks, coded=data.draw(st.booleans()))
    now = MIDNIGHT + data.draw(st.integers(-3 * HOUR, 20 * HOUR))
    expected = expected_edges(spans, now)
    event(f"edges: {min(len(expected) // 4, 5)}")
    assert edges_seen(rows, now) == expected
    assert edges_seen(combine(rows, SERVICE_EDGES), now) == expected, "after merging"


@given(spans_of_calls(), st.data())
@settings(max_examples=300, deadline=None)
def test_settling_changes_no_edge_in_whatever_steps(spans: list[Span], data: st.DataObject) -> None:
    rows = pa.table({}, schema=None)
    rows = derived([])
    for _ in range(3):
        task, spans = spans[: len(spans) // 2], spans[len(spans) // 2 :]
        rows = pa.concat_tables([rows, derived(task)])
        until = MIDNIGHT + data.draw(st.integers(-2 * HOUR, 20 * HOUR))
        now = until + DAY
        before = edges_seen(rows, now)
        rows = settled(rows, until)
        assert edges_seen(rows, now) == before
        again = settled(rows, until)
        assert sorted(map(str, again.to_pylist())) == sorted(map(str, rows.to_pylist())), "it is done once"


def test_both_sides_in_one_task_are_a_call_and_leave_no_half() -> None:
    rows = derived([CALL, ANSWER])
    assert nodes(rows) == [("web", "cart", "service", None, 1, 0)]
    assert pending(rows).num_rows == 0


@pytest.mark.parametrize("order", [(CALL, ANSWER), (ANSWER, CALL)])
def test_sides_that_are_derived_apart_are_a_call(order: tuple[Span, Span]) -> None:
    rows = derived(*([span] for span in order))
    assert pending(rows).num_rows == 2
    assert nodes(rows) == [("web", "cart", "service", None, 1, 0)]
    assert nodes(settled(rows, LATER)) == nodes(rows)
    assert pending(settled(rows, LATER)).num_rows == 0


def test_a_client_without_a_server_calls_a_virtual_node_after_five_minutes_and_a_match_replaces_that() -> (
    None
):
    call = dataclasses.replace(CALL, received=NOON, attributes={"server_address": "pay.example.com"})
    rows = derived([call])
    assert nodes(rows, NOON + 299) == []
    assert nodes(rows, NOON + 300) == [("web", "pay.example.com", "external", None, 1, 0)]
    late = derived([call], [dataclasses.replace(ANSWER, received=NOON + 23 * HOUR)])
    assert nodes(late) == [("web", "cart", "service", None, 1, 0)]
    assert nodes(settled(late, LATER)) == nodes(late)


def test_a_server_whose_caller_never_comes_is_no_edge_and_is_dropped() -> None:
    rows = derived([ANSWER])
    assert nodes(rows) == []
    assert settled(rows, LATER).num_rows == 0


def test_a_server_span_below_a_span_of_its_own_service_is_no_call() -> None:
    internal = Span(hex16(1), None, 1, "cart")
    assert nodes(derived([internal, ANSWER])) == []
    assert nodes(derived([internal], [ANSWER])) == []


def test_a_message_is_a_call_to_each_consumer_whenever_it_is_derived() -> None:
    send = Span(hex16(1), kind=PRODUCER, attributes={"messaging_destination_name": "orders"})
    mail, stock = (Span(hex16(2 + at), hex16(1), CONSUMER, name) for at, name in enumerate(("mail", "stock")))
    calls = [("web", "mail", "messaging", None, 1, 0), ("web", "stock", "messaging", None, 1, 0)]
    for tasks in (
        [[send, mail, stock]],
        [[send, mail], [stock]],
        [[send], [mail], [stock]],
        [[mail], [stock, send]],
    ):
        rows = derived(*tasks)
        assert nodes(rows) == calls
        assert nodes(settled(rows, LATER)) == calls
    assert nodes(derived([send])) == [("web", "orders", "messaging", None, 1, 0)]


def test_a_database_is_a_virtual_node_at_once() -> None:
    query = dataclasses.replace(CALL, attributes={"db_system_name": "postgresql", "db_namespace": "orders"})
    rows = derived([query, ANSWER])
    assert nodes(rows, NOON) == [("web", "postgresql/orders", "database", "postgresql", 1, 0)]
    assert pending(rows)["side"].to_pylist() == ["server"], "whose caller does not wait"


@pytest.mark.parametrize(
    ("attributes", "callee"),
    [
        ({"peer_service": "pay", "server_address": "h", "db_system_name": "redis"}, "pay"),
        ({"db_system_name": "redis", "server_address": "h"}, "redis"),
        ({"db_namespace": "orders", "server_address": "h"}, "h"),
        ({"messaging_destination_name": "q", "server_address": "h"}, "q"),
        ({"server_address": "h", "rpc_service": "Cart"}, "h"),
        ({"rpc_service": "Cart"}, "Cart"),
        ({"server_address": "", "rpc_service": "Cart"}, "Cart"),
        ({}, "unknown"),
        ({"server_address": "ä" * 300}, "ä" * 256),
    ],
)
def test_a_virtual_node_is_named_after_the_attributes_of_its_client(
    attributes: dict[str, str], callee: str
) -> None:
    found = nodes(derived([dataclasses.replace(CALL, attributes=attributes)]))
    assert [each[1] for each in found] == [callee]


@pytest.mark.parametrize(
    ("attributes", "protocol"),
    [
        ({"http_request_method": "GET", "rpc_system": "grpc"}, "http"),
        ({"rpc_system": "grpc", "messaging_system": "kafka"}, "grpc"),
        ({"messaging_system": "kafka"}, "kafka"),
        ({}, None),
    ],
)
def test_the_protocol_is_that_of_the_client(attributes: dict[str, str], protocol: str | None) -> None:
    found = nodes(derived([dataclasses.replace(CALL, attributes=attributes), ANSWER]))
    assert [each[3] for each in found] == [protocol]


@pytest.mark.parametrize(("client", "server", "errors"), [(0, 0, 0), (2, 0, 1), (0, 2, 1), (2, 2, 1)])
def test_a_call_fails_if_one_side_does(client: int, server: int, errors: int) -> None:
    call, answer = (
        dataclasses.replace(CALL, status_code=client),
        dataclasses.replace(ANSWER, status_code=server),
    )
    for rows in (
        derived([call, answer]),
        derived([call], [answer]),
        settled(derived([call], [answer]), LATER),
    ):
        assert nodes(rows) == [("web", "cart", "service", None, 1, errors)]


def test_equal_ids_of_two_tenants_are_never_a_call() -> None:
    others = dataclasses.replace(ANSWER, tenant_id="globex")
    for rows in (derived([CALL, others]), derived([CALL], [others])):
        assert nodes(rows) == [("web", "unknown", "external", None, 1, 0)]
        assert {key[0] for key in edges_seen(rows, LATER)} == {"acme"}


def test_services_without_a_name_are_unknown() -> None:
    rows = derived(
        [dataclasses.replace(CALL, service_name=None), dataclasses.replace(ANSWER, service_name=None)]
    )
    assert nodes(rows) == [("unknown", "unknown", "service", None, 1, 0)]


def test_spans_that_were_sent_twice_are_one_call() -> None:
    once = nodes(derived([CALL, ANSWER]))
    assert nodes(derived([CALL, CALL, ANSWER, ANSWER])) == once
    assert nodes(derived([CALL], [CALL], [ANSWER])) == once
    alone = [("web", "unknown", "external", None, 1, 0)]
    assert nodes(derived([CALL, CALL])) == nodes(derived([CALL], [CALL])) == alone
    moved = dataclasses.replace(CALL, at=NOON + 600)  # its clock is wrong, and it was received twice
    assert nodes(derived([CALL, moved, ANSWER])) == nodes(derived([CALL], [moved], [ANSWER])) == once
    assert nodes(settled(derived([CALL], [moved], [CALL], [ANSWER]), LATER)) == once


@pytest.mark.parametrize("hours", [-2, 2])
def test_sides_whose_clocks_are_far_apart_are_not_a_call(hours: int) -> None:
    far = dataclasses.replace(ANSWER, at=NOON + hours * HOUR)
    alone = [("web", "unknown", "external", None, 1, 0)]
    rows = derived([CALL], [far])
    assert nodes(derived([CALL, far])) == nodes(rows) == nodes(settled(rows, LATER)) == alone


def test_halves_near_midnight_wait_for_those_of_the_other_day_when_a_day_is_settled() -> None:
    before = dataclasses.replace(CALL, at=MIDNIGHT - 10)
    after = dataclasses.replace(ANSWER, at=MIDNIGHT + 10)
    rows = settled(derived([before]), LATER)
    assert pending(rows)["resolution"].to_pylist() == [SETTLED]
    assert nodes(rows) == [("web", "unknown", "external", None, 1, 0)]
    both = settled(pa.concat_tables([rows, derived([after])]), LATER)
    assert pending(both).num_rows == 2
    assert nodes(both) == [("web", "cart", "service", None, 1, 0)]
    assert nodes(settled(both, LATER)) == nodes(both)


def test_halves_that_arrived_late_stay_open_with_the_other_side() -> None:
    rows = derived([CALL], [dataclasses.replace(ANSWER, received=NOON + 5 * HOUR)])
    still = settled(rows, NOON + 2 * HOUR)
    assert pending(still)["resolution"].to_pylist() == [OPEN, OPEN]
    assert pending(settled(still, NOON + 6 * HOUR)).num_rows == 0


def test_spans_without_ids_wait_for_nothing() -> None:
    for strange in (None, "", "abc", "f" * 32):
        rows = derived([dataclasses.replace(CALL, span_id=strange or "", trace_id="a" * 32)])
        assert pending(rows).num_rows == 0
        assert nodes(rows, NOON) == [("web", "unknown", "external", None, 1, 0)]
        assert derived([dataclasses.replace(ANSWER, parent_span_id=strange)]).num_rows == 0
