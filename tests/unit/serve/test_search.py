"""Pages of logs and spans: the filters, and that no record is skipped or shown twice."""

from __future__ import annotations

import base64
import json
import math
import time
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from tests.support.query.read_telemetry import BEGIN, logs, pairs, spans
from tests.support.serve.requests import Client
from tests.support.serve.stand_in import StandIn

WHOLE = {"from": str(BEGIN - 10), "to": str(BEGIN + 100)}


def found(client: Client, path: str, **parameters: Any) -> Any:
    answer = client.get(f"/api/v1/{path}", params=WHOLE | parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def bodies(client: Client, **parameters: Any) -> set[Any]:
    return {record["body"] for record in found(client, "logs", **parameters)["records"]}


def names(client: Client, **parameters: Any) -> set[Any]:
    return {record["name"] for record in found(client, "spans", **parameters)["records"]}


def refused(client: Client, path: str, **parameters: Any) -> str:
    answer = client.get(f"/api/v1/{path}", params=WHOLE | parameters)
    assert answer.status_code == 400, answer.text
    return str(answer.json()["error"]["message"])


def pages(client: Client, path: str, **parameters: Any) -> Iterator[list[Any]]:
    cursor: dict[str, str] = {}
    while True:
        page = found(client, path, **parameters, **cursor)
        yield page["records"]
        if page["next"] is None:
            return
        cursor = {"cursor": page["next"]}


def test_logs_are_found_by_each_filter(client: Client, queries: StandIn) -> None:
    trace = bytes(range(16))
    queries.add(
        "logs",
        logs(
            {"body": "Connection refused by db", "severity_number": 17, "attributes": {"code": 502}},
            {"body": "all well", "severity_number": 9, "trace_id": trace, "span_id": b"\1" * 8},
            **{"k8s.pod.name": "cart-1"},
        ),
    )
    queries.add("logs", logs({"body": "connection open", "severity_number": 14}, service="pay"))
    assert bodies(client, service="pay") == {"connection open"}
    assert len(bodies(client, service=["pay", "cart"])) == 3
    assert bodies(client, severity="warn") == {"Connection refused by db", "connection open"}
    assert bodies(client, severity="15") == bodies(client, severity="ERROR") == {"Connection refused by db"}
    assert bodies(client, q="refused CONNECTION") == {"Connection refused by db"}
    assert bodies(client, regex="^all\\b") == {"all well"}
    assert bodies(client, trace_id=trace.hex().upper()) == {"all well"}
    assert bodies(client, attr="code:502") == bodies(client, attr="code=502") == {"Connection refused by db"}
    assert len(bodies(client, attr="k8s.pod.name:cart-1")) == 2
    assert bodies(client, attr=["k8s.pod.name:cart-1", "code=502"]) == {"Connection refused by db"}
    assert bodies(client, attr="code:500") == set()


def test_what_arrived_since_a_moment_is_found_whatever_its_own_time(client: Client, queries: StandIn) -> None:
    queries.add("logs", logs({"body": "early", "nanos": 5 * 10**9}), received=BEGIN + 10)
    queries.add("logs", logs({"body": "late"}), received=BEGIN + 11)
    assert bodies(client, received_from=str(BEGIN + 10)) == {"early", "late"}
    assert bodies(client, received_from="2026-09-21T14:13:30.000001Z") == {"late"}
    assert bodies(client, received_from=str(BEGIN + 12)) == set()
    assert "fixed time" in refused(client, "logs", received_from="-5s")
    assert "fixed time" in refused(client, "logs", received_from="now")


def test_spans_are_found_by_each_filter(client: Client, queries: StandIn) -> None:
    queries.add(
        "spans",
        spans(
            {"name": "slow", "took": 1_500_000_000, "kind": 2, "status": {"code": 2, "message": "timed out"}},
            {"name": "fast", "took": 80_000, "kind": 3, "status": {"code": 1}},
            {"name": "plain", "took": 250_000_000},
        ),
    )
    assert (
        names(client, name="fast") == names(client, kind="client") == names(client, status="ok") == {"fast"}
    )
    assert names(client, status="error") == names(client, kind="2") == names(client, q="timed") == {"slow"}
    assert names(client, status="unset") == {"plain"}
    assert names(client, duration_min="1.5s") == {"slow"}
    assert names(client, duration_min="250") == {"slow", "plain"}
    assert names(client, duration_max="80us") == {"fast"}
    assert names(client, duration_min="81us", duration_max="1s") == {"plain"}


def test_the_range_includes_its_begin_and_not_its_end(client: Client, queries: StandIn) -> None:
    queries.add("logs", logs({"body": "a"}, {"body": "b", "nanos": 10**9}))
    assert bodies(client, **{"from": str(BEGIN), "to": str(BEGIN + 1)}) == {"a"}
    assert bodies(client, **{"from": "2026-09-21T14:13:20Z", "to": "2026-09-21T16:13:21+02:00"}) == {"a"}


def test_the_last_hour_is_asked_for_when_nothing_is_said(client: Client, queries: StandIn) -> None:
    now = time.time_ns() - BEGIN * 10**9
    queries.add("logs", logs({"body": "now", "nanos": now}, {"body": "old", "nanos": now - 2 * 3600 * 10**9}))
    answer = client.get("/api/v1/logs").json()
    assert [record["body"] for record in answer["records"]] == ["now"]
    assert client.get("/api/v1/logs?from=-3h&limit=1").json()["next"] is not None


def test_values_come_in_the_types_that_their_sender_gave_them(client: Client, queries: StandIn) -> None:
    nested = AnyValue()
    nested.kvlist_value.values.extend(pairs({"a": 1, "b": "x"}))
    several = AnyValue()
    several.array_value.values.extend([AnyValue(int_value=1), AnyValue(string_value="x"), AnyValue()])
    attributes = {
        "text": "1", "int": -5, "big": 2**60, "double": 0.5, "nan": math.nan, "bool": True,
        "bytes": AnyValue(bytes_value=b"\xff"), "array": several, "nested": nested, "empty": AnyValue(),
    }  # fmt: skip
    queries.add("logs", logs({"body": nested, "attributes": attributes, "nanos": 123}))
    (record,) = found(client, "logs")["records"]
    assert record["attributes"] == {
        "text": "1", "int": -5, "big": str(2**60), "double": 0.5, "nan": "NaN", "bool": True,
        "bytes": base64.b64encode(b"\xff").decode(), "array": [1, "x", None],
        "nested": {"a": 1, "b": "x"}, "empty": None,
    }  # fmt: skip
    assert record["body"] == {"a": 1, "b": "x"}
    assert record["time_unix_nano"] == str(BEGIN * 10**9 + 123)
    assert record["time"] == "2026-09-21T14:13:20.000000Z"
    assert record["resource_attributes"] == {"service.name": "cart"}
    assert not {"tenant_id", "attribute_types", "trace_id", "_hash"} & set(record)


def test_events_and_links_of_spans_are_typed_too(client: Client, queries: StandIn) -> None:
    event = {"name": "retry", "time_unix_nano": 7, "attributes": pairs({"n": 3})}
    queries.add(
        "spans", spans({"events": [event], "links": [{"trace_id": b"\2" * 16, "span_id": b"\3" * 8}]})
    )
    (record,) = found(client, "spans")["records"]
    assert record["events"][0]["attributes"] == {"n": 3}
    assert record["events"][0]["time_unix_nano"] == "7"
    assert record["links"][0]["trace_id"] == "02" * 16


def test_equal_records_across_a_page_boundary_are_neither_lost_nor_repeated(
    client: Client, queries: StandIn
) -> None:
    """Five that are the same in everything, between two others, with pages of every size."""
    same = {"body": "same", "nanos": 5_000}
    queries.add(
        "logs", logs({"body": "first", "nanos": 4_000}, *[same] * 5, {"body": "last", "nanos": 6_000})
    )
    for limit in range(1, 8):
        for order, expected in (("desc", "last"), ("asc", "first")):
            shown = [r["body"] for page in pages(client, "logs", limit=limit, order=order) for r in page]
            assert sorted(shown) == ["first", "last", *["same"] * 5]
            assert shown[0] == expected


def test_a_relative_range_does_not_move_on_between_pages(client: Client, queries: StandIn) -> None:
    now = time.time_ns() - BEGIN * 10**9
    queries.add("logs", logs(*({"body": str(i), "nanos": now - i} for i in range(4))))
    first = client.get("/api/v1/logs?from=-15m&limit=2").json()
    client.get("/api/v1/logs", params={"from": "-15m", "limit": 2, "cursor": first["next"]})
    whole = [queries.asked[0].params[:2], queries.asked[2].params[:2]]
    assert whole[0][0] == whole[1][0]


@pytest.mark.parametrize("cursor", ["", "x", "AAAA", "%%%", "a" * 2000, base64.b64encode(b"[1,2]").decode()])
def test_a_broken_cursor_is_refused(client: Client, cursor: str) -> None:
    assert "cursor" in refused(client, "logs", cursor=cursor)


def test_a_cursor_with_strange_members_is_refused(client: Client, queries: StandIn) -> None:
    queries.add("logs", logs(*({"nanos": i} for i in range(3))))
    cursor = found(client, "logs", limit=1)["next"]
    good = orjson.loads(base64.urlsafe_b64decode(cursor + "=="))
    key = good[4]
    for number, strange in enumerate([1, "x", None, 5, [key[0], key[1], 1, key[3], key[4]], 0]):
        broken = [*good[:number], strange, *good[number + 1 :]]
        text = base64.urlsafe_b64encode(orjson.dumps(broken)).decode()
        assert "cursor" in refused(client, "logs", limit=1, cursor=text)
    for number, strange in enumerate([10**30, 2**63, None, {}, -1]):
        broken = [*good[:4], [*key[:number], strange, *key[number + 1 :]], good[5]]
        text = base64.urlsafe_b64encode(json.dumps(broken).encode()).decode()
        assert "cursor" in refused(client, "logs", limit=1, cursor=text)


def test_a_cursor_is_for_its_own_search(client: Client, queries: StandIn) -> None:
    queries.add("logs", logs(*({"nanos": i} for i in range(3))))
    cursor = found(client, "logs", limit=1)["next"]
    assert found(client, "logs", limit=2, cursor=cursor)["next"] is None
    for other in ({"service": "pay"}, {"order": "asc"}, {"from": "0"}):
        assert "another search" in refused(client, "logs", cursor=cursor, **other)
    assert "another search" in refused(client, "spans", cursor=cursor)


@pytest.mark.parametrize(
    ("path", "parameters", "says"),
    [
        ("logs", {"sevrity": "error"}, "Did you mean `severity`?"),
        ("logs", {"kind": "server"}, "unknown parameter `kind`"),
        ("logs", {"severity": "eror"}, "Did you mean `error`?"),
        ("logs", {"severity": "25"}, "severity"),
        ("logs", {"limit": ["1", "2"]}, "twice"),
        ("logs", {"limit": "0"}, "limit"),
        ("logs", {"limit": "1001"}, "limit"),
        ("logs", {"limit": "x"}, "limit"),
        ("logs", {"order": "up"}, "order"),
        ("logs", {"from": "yesterday"}, "from is not a time"),
        ("logs", {"from": "1790000000000"}, "from is"),
        ("logs", {"from": "2026-11-15", "to": "2026-11-14"}, "`from` must be before `to`"),
        ("logs", {"trace_id": "xyz"}, "32 hexadecimal"),
        ("logs", {"attr": "novalue"}, "key=value"),
        ("logs", {"regex": "("}, "regex"),
        ("logs", {"q": "x" * 2000}, "q: "),
        ("spans", {"duration_min": "long"}, "duration_min is not a duration"),
        ("spans", {"status": "failed"}, "status `failed`"),
        ("spans", {"kind": "servr"}, "Did you mean `server`?"),
    ],
)
def test_a_mistake_in_a_parameter_is_named(
    client: Client, path: str, parameters: dict[str, Any], says: str
) -> None:
    assert says in refused(client, path, **parameters) or (
        "regex" in parameters and "missing" in refused(client, path, **parameters)
    )


HOSTILE = ["'; DROP TABLE logs; --", "\\", "%", "\0", "?", "$1", "\u202e", "') OR 1=1 --"]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_what_a_client_sends_is_never_part_of_the_sql(client: Client, queries: StandIn, hostile: str) -> None:
    queries.add("logs", logs({"body": "x"}))
    queries.add("spans", spans({}))
    for path, more in (("logs", {}), ("spans", {"name": hostile})):
        page = found(client, path, service=hostile, q=hostile, attr=f"{hostile}={hostile}", **more)
        assert page["records"] == []
    assert all(hostile not in asked.sql or hostile in ("?", "%") for asked in queries.asked)


def test_a_tenant_finds_its_own_records_alone(client: Client, queries: StandIn) -> None:
    queries.add("logs", logs({"body": "mine"}))
    queries.add("logs", logs({"body": "theirs"}), tenant="other")
    assert bodies(client) == {"mine"}


@pytest.mark.parametrize(
    ("path", "parameter", "value"),
    [
        ("spans", "duration_min", "quick"),
        ("spans", "duration_max", "1 parsec"),
        ("spans", "attr", "cart"),
        ("spans", "status", "bad"),
        ("logs", "severity", "loud"),
        ("logs", "received_from", "-15m"),
        ("logs", "from", "yesterday"),
        ("logs", "q", "x" * 1001),
        ("logs", "limit", "0"),
    ],
)
def test_an_invalid_parameter_is_named_first_in_the_message_and_as_a_fact(
    client: Client, path: str, parameter: str, value: str
) -> None:
    answer = client.get(f"/api/v1/{path}", params=WHOLE | {parameter: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "request_invalid")
    assert error["parameter"] == parameter
    assert error["message"].startswith(parameter)
    assert f"{parameter}=" not in error["message"]
