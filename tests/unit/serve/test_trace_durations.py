"""`GET /api/v1/traces/durations`: the traces of the list, counted over the whole range."""

from __future__ import annotations

from typing import Any

import pytest

from frazil.keys import hash_key
from tests.support.query.read_telemetry import BEGIN, exception, spans
from tests.support.serve.requests import Client
from tests.support.serve.stand_in import StandIn

MS = 10**6
SECOND = 10**9
WHOLE = {"from": str(BEGIN), "to": str(BEGIN + 60)}
PATH = "/api/v1/traces/durations"


def counted(client: Client, **parameters: Any) -> Any:
    answer = client.get(PATH, params=WHOLE | parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def span(trace: int, number: int, parent: int = 0, **fields: Any) -> dict[str, Any]:
    above = {"parent_span_id": parent.to_bytes(8)} if parent else {}
    return {"trace_id": trace.to_bytes(16), "span_id": number.to_bytes(8), **above, **fields}


@pytest.fixture
def shop(queries: StandIn) -> None:
    """Ten traces of two services; the third and the fifth have failed."""
    for n in range(1, 11):
        error = {"status": {"code": 2}, "events": [exception("Gone", "kaboom")]} if n in (3, 5) else {}
        root = span(n, n, name="GET /", nanos=n * SECOND, took=n * 100 * MS)
        child = span(n, 100 + n, n, nanos=n * SECOND + MS, took=n * MS, attributes={"n": str(n)}, **error)
        queries.add("spans", spans(root, service="shop"))
        queries.add("spans", spans(child, service="db"))


@pytest.mark.usefixtures("shop")
def test_a_cell_says_when_how_long_how_many_and_how_many_failed(client: Client, queries: StandIn) -> None:
    found = counted(client, buckets=6)
    assert found["from"] == "2026-09-21T14:13:20.000000Z"
    assert (found["first_bucket"], found["bucket_seconds"]) == ("2026-09-21T14:13:20.000000Z", 10)
    bins = found["bins_ms"]
    cells = [(c["bucket"], bins[c["bin"]], c["traces"], c["errors"], c["longest_ms"]) for c in found["cells"]]
    assert cells == [
        (0, 100, 1, 0, 100),
        (0, 200, 1, 0, 200),
        (0, 300, 2, 1, 400),
        (0, 500, 2, 1, 600),
        (0, 700, 3, 0, 900),
        (1, 1000, 1, 0, 1000),
    ]
    assert (found["total"], found["stats"]["rows"]) == (10, 6)
    assert len(queries.asked) == 1


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("filter", "traces"),
    [
        ({}, 10),
        ({"service": "db"}, 10),
        ({"service": "elsewhere"}, 0),
        ({"status": "error"}, 2),
        ({"duration_min": "650ms"}, 4),
        ({"duration_max": "2ms"}, 2),
        ({"service": "db", "duration_min": "650ms"}, 0),
        ({"name": "GET /", "duration_max": "250ms"}, 2),
        ({"attr": "n=7"}, 1),
        ({"q": "kaboom"}, 2),
        ({"regex": "^kab"}, 2),
        ({"trace_id": f"{4:032x}"}, 1),
        ({"from": str(BEGIN + 4), "to": str(BEGIN + 8)}, 4),
    ],
)
def test_filters_choose_the_traces_that_the_list_shows(
    client: Client, filter: dict[str, str], traces: int
) -> None:
    listed = client.get("/api/v1/traces", params=WHOLE | filter).json()["traces"]
    found = counted(client, **filter)
    assert found["total"] == len(listed) == traces
    assert sum(cell["traces"] for cell in found["cells"]) == traces
    assert sum(cell["errors"] for cell in found["cells"]) == sum(trace["errors"] > 0 for trace in listed)
    longest = max((cell["longest_ms"] for cell in found["cells"]), default=None)
    assert longest == max((trace["duration_ms"] for trace in listed), default=None)


@pytest.mark.usefixtures("shop")
def test_an_empty_range_has_no_cells(client: Client) -> None:
    found = counted(client, **{"from": "0", "to": "60"})
    assert (found["cells"], found["total"], found["bucket_seconds"]) == ([], 0, 1)


def test_a_trace_of_several_tenants_counts_each_its_own_part(asking: Any, queries: StandIn) -> None:
    keys = [
        {"name": tenant, "tenant": tenant, "roles": ["read"], "hash": hash_key(f"fz_{tenant}")}
        for tenant in ("first", "second", "third")
    ]
    client = asking(auth={"keys": keys})
    queries.add("spans", spans(span(1, 1, name="mine", took=MS)), tenant="first")
    theirs = span(1, 2, 1, name="theirs", nanos=MS, took=SECOND, status={"code": 2})
    queries.add("spans", spans(theirs), tenant="second")

    def seen_by(tenant: str, **parameters: Any) -> list[tuple[int, float]]:
        answer = client.get(
            PATH, params=WHOLE | parameters, headers={"authorization": f"Bearer fz_{tenant}"}
        ).json()
        return [(cell["errors"], cell["longest_ms"]) for cell in answer["cells"]]

    assert seen_by("first") == [(0, 1)]
    assert seen_by("second") == [(1, 1000)]
    assert seen_by("third") == seen_by("first", name="theirs") == seen_by("second", name="mine") == []


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"buckets": "0"}, "buckets: "),
        ({"buckets": "201"}, "buckets: "),
        ({"bucket": "5"}, "Did you mean `buckets`?"),
        ({"order": "newest"}, "unknown parameter `order`"),
        ({"duration_min": "long"}, "duration_min is not a duration"),
        ({"from": str(BEGIN + 60)}, "`from` must be before `to`"),
    ],
)
def test_a_mistake_in_a_parameter_is_named(
    client: Client, queries: StandIn, parameters: dict[str, Any], says: str
) -> None:
    answer = client.get(PATH, params=WHOLE | parameters)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "request_invalid")
    assert says in answer.json()["error"]["message"]
    assert not queries.asked


@pytest.mark.parametrize("hostile", ["'; DROP TABLE spans; --", "\\", "') OR 1=1 --"])
def test_what_a_client_sends_is_never_part_of_the_sql(client: Client, queries: StandIn, hostile: str) -> None:
    queries.add("spans", spans({}))
    assert counted(client, service=hostile, name=hostile, q=hostile, attr=f"{hostile}=x")["cells"] == []
    assert all(hostile not in asked.sql for asked in queries.asked)
