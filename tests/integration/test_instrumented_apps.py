"""Two real applications, instrumented by environment variables alone: FastAPI over gRPC, Express over HTTP.

Express calls FastAPI. What their instrumentation sends by default is asked for with SQL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.components.apps import SHOP, STOCK, Apps, running_apps
from tests.components.process import wait_until
from tests.support.integration.api import Api, running_api
from tests.support.receiver import Receiver

pytestmark = pytest.mark.slow

SERVER, CLIENT = 2, 3
ITEMS = ("pear", "plum", "quince")
ARRIVE_SECONDS_MAX = 60
COMPLETE = {
    f"SELECT service_name, count(*) FROM spans WHERE kind = {SERVER} GROUP BY ALL ORDER BY ALL": [
        [SHOP, len(ITEMS) + 1],
        [STOCK, len(ITEMS) + 1],
    ],
    "SELECT service_name, count(*) FROM logs WHERE trace_id IS NOT NULL GROUP BY ALL ORDER BY ALL": [
        [SHOP, len(ITEMS)],
        [STOCK, len(ITEMS)],
    ],
    "SELECT DISTINCT service_name FROM metrics ORDER BY ALL": [[SHOP], [STOCK]],
}


@dataclass
class Told:
    """An API and a receiver that have all that the applications sent."""

    api: Api
    receiver: Receiver

    def rows(self, sql: str, *params: Any) -> list[list[Any]]:
        return self.api.rows(sql, *params)


@pytest.fixture(scope="module")
def told(instrumented_apps: Apps, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    folder = tmp_path_factory.mktemp("apps")
    with (
        running_api(folder) as (api, receiver),
        running_apps(
            instrumented_apps, folder, http=receiver.http, grpc=f"http://127.0.0.1:{receiver.grpc_port}"
        ) as url,
    ):
        with httpx.Client(timeout=30, verify=False) as client:
            for item in ITEMS:
                answer = client.get(f"{url}/items/{item}")
                assert (answer.status_code, answer.json()) == (200, {"count": len(item)})
            assert client.get(f"{url}/broken").status_code == 500
        logs = "\n".join((folder / f"{name}.log").read_text()[-2000:] for name in (SHOP, STOCK))
        for sql, rows in COMPLETE.items():
            assert wait_until(lambda: api.rows(sql) == rows, seconds_max=ARRIVE_SECONDS_MAX), (  # noqa: B023
                f"{sql}: {api.rows(sql)}\n{logs}"
            )
        yield Told(api, receiver)


def test_one_trace_joins_a_node_server_its_client_and_the_python_server(told: Told) -> None:
    servers = told.rows(
        "SELECT trace_id, span_id FROM spans WHERE service_name = ? AND kind = 2 AND parent_span_id IS NULL",
        SHOP,
    )
    assert len(servers) == len(ITEMS) + 1
    for trace_id, server in servers:
        columns = ("span_id", "parent_span_id", "service_name", "kind", "name")
        found = told.rows(f"SELECT {', '.join(columns)} FROM spans WHERE trace_id = ?", trace_id)
        spans = {row[0]: dict(zip(columns, row, strict=True)) for row in found}
        [python] = [s for s in spans.values() if (s["service_name"], s["kind"]) == (STOCK, SERVER)]
        client = spans[python["parent_span_id"]]
        assert (client["service_name"], client["kind"]) == (SHOP, CLIENT)
        above = [client["parent_span_id"]]
        while spans[above[-1]]["parent_span_id"] is not None:
            above.append(spans[above[-1]]["parent_span_id"])
        assert above[-1] == server
        assert {spans[id]["service_name"] for id in above} == {SHOP}


def test_each_log_has_the_ids_of_the_span_in_which_it_was_written(told: Told) -> None:
    found = told.rows(
        """SELECT l.service_name, l.body, s.name FROM logs l
           JOIN spans s USING (trace_id, span_id, service_name) ORDER BY ALL"""
    )
    assert [row[:2] for row in found] == [
        *([SHOP, "item shown"] for _ in ITEMS),
        *([STOCK, f"{len(item)} items of {item} in stock"] for item in sorted(ITEMS, key=len)),
    ]
    assert {row[2] for row in found if row[0] == STOCK} == {"GET /stock/{item}"}


def test_server_spans_have_method_and_status_in_either_convention(told: Told) -> None:
    found = told.rows(
        """SELECT service_name, http_request_method, http_response_status_code, count(*) FROM spans
           WHERE kind = 2 GROUP BY ALL ORDER BY ALL"""
    )
    assert found == [[name, "GET", code, n] for name in (SHOP, STOCK) for code, n in ((200, 3), (500, 1))]
    conventions = told.rows(
        """SELECT service_name, attributes['http.method'], attributes['http.request.method'] FROM spans
           WHERE kind = 2 GROUP BY ALL ORDER BY ALL"""
    )
    assert conventions == [[SHOP, None, "GET"], [STOCK, "GET", None]]


def test_the_exceptions_of_failing_routes_are_in_the_events_of_their_spans(told: Told) -> None:
    found = told.rows(
        """SELECT DISTINCT service_name, a['exception.type'], a['exception.message'],
                  contains(a['exception.stacktrace'], a['exception.message'])
           FROM (SELECT service_name, event.attributes AS a
                 FROM (SELECT service_name, unnest(events) AS event FROM spans WHERE name LIKE '% /broken')
                 WHERE event.name = 'exception') ORDER BY ALL"""
    )
    assert found == [
        [SHOP, "Error", "the stock answered 500", True],
        [STOCK, "RuntimeError", "the stock is broken", True],
    ]


def test_metrics_of_both_services_count_the_requests(told: Told) -> None:
    """Under the names of either convention, and the SQL query is a span."""
    counted = """SELECT max(n) FROM (SELECT time, sum("count") AS n FROM metrics
                 WHERE service_name = ? AND metric_name = ? GROUP BY time)"""
    for service, metric in ((SHOP, "http.server.request.duration"), (STOCK, "http.server.duration")):
        assert wait_until(
            lambda: told.rows(counted, service, metric) == [[len(ITEMS) + 1]],  # noqa: B023
            seconds_max=ARRIVE_SECONDS_MAX,
        ), told.rows(counted, service, metric)
    assert told.rows("SELECT DISTINCT service_name, kind FROM spans WHERE db_system_name = 'sqlite'") == [
        [STOCK, CLIENT]
    ]


def test_nothing_is_refused(told: Told) -> None:
    requests, records = "frazil_receive_requests_total", "frazil_receive_records_total"
    sent = {"grpc": told.receiver.metric(requests, transport="grpc")}
    sent["http"] = told.receiver.metric(requests, transport="http")
    assert all(sent.values())
    assert told.receiver.metric(requests, outcome="ok") == told.receiver.metric(requests)
    assert told.receiver.metric(records, outcome="rejected") == 0
    assert told.receiver.metric(records, outcome="accepted") > 0
