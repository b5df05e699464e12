"""Traces by what one of their spans is like."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from frazil.config import Config
from frazil.keys import hash_key
from frazil.serve.app import create_app
from tests.support.query.read_telemetry import BEGIN, exception, spans
from tests.support.serve.requests import Client
from tests.support.serve.stand_in import StandIn

MS = 10**6
SECOND = 10**9
HOUR = 3600 * SECOND
WHOLE = {"from": str(BEGIN - 10), "to": str(BEGIN + 100)}
ERROR = {"code": 2}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Client, StandIn]:
    """For tests with many examples, each of which begins with no rows: making the application takes longer
    than asking it.
    """
    queries = StandIn()
    config = Config.model_validate({"data_dir": str(tmp_path_factory.mktemp("shared"))})
    return Client(create_app(config, queries)), queries  # type: ignore[arg-type]


def found(client: Client, **parameters: Any) -> Any:
    answer = client.get("/api/v1/traces", params=WHOLE | parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ids(client: Client, **parameters: Any) -> list[int]:
    """In the answer's order, the numbers that `span` was given."""
    return [int(trace["trace_id"], 16) for trace in found(client, **parameters)["traces"]]


def span(trace: int, number: int, parent: int = 0, **fields: Any) -> dict[str, Any]:
    above = {"parent_span_id": parent.to_bytes(8)} if parent else {}
    return {"trace_id": trace.to_bytes(16), "span_id": number.to_bytes(8), **above, **fields}


def test_a_trace_is_summed_up_over_all_its_services(client: Client, queries: StandIn) -> None:
    root = span(7, 1, name="GET /", nanos=5, took=20 * MS)
    queries.add("spans", spans(root, span(7, 2, 1, took=MS, nanos=MS), service="shop"))
    late = span(7, 3, 2, name="SELECT", nanos=19 * MS, took=6 * MS, status=ERROR)
    queries.add("spans", spans(late, service="db"))
    queries.add("spans", spans(span(8, 9, name="another", nanos=-SECOND)))
    answer = found(client, name="SELECT")
    assert answer["traces"] == [
        {
            "trace_id": f"{7:032x}",
            "start_time": "2026-09-21T14:13:20.000000Z",
            "start_time_unix_nano": str(BEGIN * SECOND + 5),
            "duration_ms": 24.999995,
            "root_service": "shop",
            "root_name": "GET /",
            "root_missing": False,
            "spans": 3,
            "errors": 1,
            "services": [
                {"name": "shop", "spans": 2, "errors": 0},
                {"name": "db", "spans": 1, "errors": 1},
            ],
            "matched": 1,
        }
    ]
    assert (answer["complete"], answer["matched_is_exact"], answer["stats"]["rows"]) == (True, True, 1)


def test_all_filters_must_hold_for_one_and_the_same_span(client: Client, queries: StandIn) -> None:
    queries.add("spans", spans(span(1, 1, name="a", took=9 * MS), service="shop"))
    queries.add("spans", spans(span(1, 2, 1, name="b", took=MS, attributes={"k": "v"}), service="db"))
    assert ids(client, service="shop", name="a") == ids(client, service="db", name="b") == [1]
    assert ids(client, service="shop", name="b") == []
    assert ids(client, service="db", duration_min="5ms") == []
    assert ids(client, duration_min="5ms") == [1]
    assert ids(client, attr="k=v", q="b", regex="^b") == [1]
    assert ids(client, attr="k=v", name="a") == []
    assert found(client)["traces"][0]["matched"] == 2


def test_a_trace_is_found_by_an_exception_of_a_span(client: Client, queries: StandIn) -> None:
    failed = [exception("ValueError", "Kaboom in aisle 7"), Span.Event(name="gave up")]
    queries.add("spans", spans(span(1, 1, name="pay", events=failed), span(2, 2, name="pay")))
    queries.add("spans", spans(span(3, 3, events=[exception("KeyError", "aisle", retries=3)])))
    assert ids(client, q="kaboom") == [1]
    assert ids(client, q="aisle valueerror") == ids(client, q="pay kaboom gave") == [1]
    assert ids(client, q="kaboom keyerror") == []
    assert sorted(ids(client, q="aisle")) == [1, 3]
    assert ids(client, regex="^Kaboom in|^GET$") == ids(client, regex="aisle [0-9]+$") == [1]
    assert ids(client, regex="^pay$", attr="exception.type=ValueError") == [1]
    assert ids(client, attr="exception.message=Kaboom in aisle 7") == [1]
    assert ids(client, attr="exception.message=Kaboom") == ids(client, attr="name=exception") == []
    assert ids(client, attr=["exception.type=KeyError", "retries=3"]) == [3]


def test_an_empty_range_has_no_traces_and_takes_one_question(client: Client, queries: StandIn) -> None:
    queries.add("spans", spans({}))
    answer = found(client, **{"from": "0", "to": "60"})
    assert (answer["traces"], answer["complete"], answer["matched_is_exact"]) == ([], True, True)
    assert len(queries.asked) == 1
    found(client)
    assert len(queries.asked) == 3


def test_a_trace_of_several_tenants_shows_each_its_own_part(asking: Any, queries: StandIn) -> None:
    keys = [
        {"name": tenant, "tenant": tenant, "roles": ["read"], "hash": hash_key(f"fz_{tenant}")}
        for tenant in ("first", "second", "third")
    ]
    client = asking(auth={"keys": keys})
    queries.add("spans", spans(span(1, 1, name="mine", took=MS), service="shop"), tenant="first")
    theirs = span(1, 2, 1, name="theirs", nanos=MS, took=SECOND, status=ERROR)
    queries.add("spans", spans(theirs, service="db"), tenant="second")

    def seen_by(tenant: str, **parameters: Any) -> list[Any]:
        headers = {"authorization": f"Bearer fz_{tenant}"}
        answer = client.get("/api/v1/traces", params=WHOLE | parameters, headers=headers)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["traces"])

    (first,) = seen_by("first")
    assert (first["spans"], first["errors"], first["duration_ms"]) == (1, 0, 1)
    assert [service["name"] for service in first["services"]] == ["shop"]
    (second,) = seen_by("second")
    assert (second["root_name"], second["root_missing"], second["spans"]) == ("theirs", True, 1)
    assert seen_by("first", name="theirs") == seen_by("second", service="shop") == seen_by("third") == []


SPANS = st.lists(
    st.fixed_dictionaries(
        {
            "trace": st.integers(1, 5),
            "nanos": st.integers(0, 50 * SECOND),
            "took": st.sampled_from([-MS, 0, MS, 20 * SECOND]),
            "name": st.sampled_from(["a", "b"]),
            "status": st.sampled_from([{}, ERROR]),
            "parent": st.sampled_from([0, 77]),
        }
    ),
    max_size=20,
)
FILTERS = st.fixed_dictionaries(
    {},
    optional={
        "service": st.sampled_from(["cart", "pay"]),
        "name": st.just("a"),
        "status": st.just("error"),
        "duration_min": st.just("1ms"),
        "to": st.just(str(BEGIN + 25)),
    },
)


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(cart=SPANS, pay=SPANS, filters=FILTERS, order=st.sampled_from(["newest", "slowest"]))
def test_traces_are_those_of_the_spans_that_the_same_filters_find(
    shared: tuple[Client, StandIn],
    cart: list[Any],
    pay: list[Any],
    filters: dict[str, Any],
    order: str,
) -> None:
    client, queries = shared
    queries.rows["spans"].clear()
    for service, made in (("cart", cart), ("pay", pay)):
        sent = [
            span(one["trace"], n, **{k: v for k, v in one.items() if k != "trace"})
            for n, one in enumerate(made, 1)
        ]
        queries.add("spans", spans(*sent, service=service))
    matching = client.get("/api/v1/spans", params={**WHOLE, **filters, "limit": 1000}).json()["records"]
    everything = client.get("/api/v1/spans", params={**WHOLE, "limit": 1000}).json()["records"]
    shown = found(client, **filters, order=order)["traces"]
    assert sorted(trace["trace_id"] for trace in shown) == sorted({one["trace_id"] for one in matching})
    for trace in shown:
        own = [record for record in everything if record["trace_id"] == trace["trace_id"]]
        start = min(int(record["start_time_unix_nano"]) for record in own)
        end = max(int(record["end_time_unix_nano"]) for record in own)
        assert trace["matched"] == sum(record["trace_id"] == trace["trace_id"] for record in matching)
        assert trace["spans"] == len(own) == sum(service["spans"] for service in trace["services"])
        assert trace["errors"] == sum(record.get("status_code") == 2 for record in own)
        assert trace["duration_ms"] == max(0, end - start) / MS
        assert trace["root_missing"] == all("parent_span_id" in record for record in own)
    durations = [trace["duration_ms"] for trace in shown]
    if order == "slowest":
        assert durations == sorted(durations, reverse=True)
    else:
        starts = [int(trace["start_time_unix_nano"]) for trace in shown]
        assert starts == sorted(starts, reverse=True)


@pytest.mark.parametrize("hostile", ["'; DROP TABLE spans; --", "\\", "\0", "') OR 1=1 --"])
def test_what_a_client_sends_is_never_part_of_the_sql(client: Client, queries: StandIn, hostile: str) -> None:
    queries.add("spans", spans({}))
    assert ids(client, service=hostile, name=hostile, q=hostile, attr=f"{hostile}={hostile}") == []
    assert all(hostile not in asked.sql for asked in queries.asked)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"order": "slow"}, "Did you mean `slowest`?"),
        ({"order": "desc"}, "Expected one of: newest, slowest."),
        ({"durationmin": "5ms"}, "Did you mean `duration_min`?"),
        ({"kind": "servr"}, "Did you mean `server`?"),
        ({"limit": "0"}, "limit: "),
        ({"limit": "201"}, "limit: "),
        ({"cursor": "x"}, "unknown parameter `cursor`"),
        ({"from": "yesterday"}, "from is not a time"),
        ({"duration_max": "long"}, "duration_max is not a duration"),
    ],
)
def test_a_mistake_in_a_parameter_is_named(
    client: Client, queries: StandIn, parameters: dict[str, Any], says: str
) -> None:
    answer = client.get("/api/v1/traces", params=WHOLE | parameters)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "request_invalid")
    assert says in answer.json()["error"]["message"]
    assert not queries.asked
