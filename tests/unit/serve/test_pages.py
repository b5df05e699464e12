"""Tables, health, the OpenAPI description and its page, and what every answer carries."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from pydantic import TypeAdapter

from frazil import __version__
from frazil.serve import describe
from frazil.sql.merging import Dialect, merging_select
from frazil.tables import table_specs
from tests.support.query.read_telemetry import BEGIN, logs, spans
from tests.support.serve.requests import Client
from tests.support.serve.stand_in import StandIn


def test_tables_are_described(client: Client, queries: StandIn) -> None:
    queries.add("logs", logs({}, {}))
    (table,) = client.get("/api/v1/tables").json()["tables"]
    assert (table["name"], table["rows"]) == ("logs", 2)
    assert table["last_time"] == "1970-01-01T00:00:01.000000Z"
    assert table["newest_time"] == "1970-01-01T00:00:02.000000Z"
    assert table["first_time"] is None
    assert table["snapshot_id"] == str(2**60)
    assert {"name", "type", "doc", "source"} == set(table["columns"][0])
    assert client.get("/api/v1/tables/logs").json() == table
    assert client.get("/api/v1/tables/otel.logs").json() == table
    missing = client.get("/api/v1/tables/log")
    assert missing.status_code == 404
    assert "Did you mean `logs`?" in missing.json()["error"]["message"]


@pytest.mark.parametrize("dialect", ["spark", "trino", "duckdb"])
def test_the_view_of_a_derived_table_is_sql_for_another_engine(client: Client, dialect: Dialect) -> None:
    answer = client.get(f"/api/v1/tables/service_edges/merging-view?dialect={dialect}&table=lake.otel.edges")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text == merging_select(table_specs()["service_edges"], dialect, "lake.otel.edges") + "\n"


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("log_rollup/merging-view", 404, "Did you mean `log_rollups`?"),
        ("logs/merging-view", 404, "unknown derived table `logs`"),
        ("log_rollups/merging-view?dialect=oracle", 400, "dialect `oracle` is not valid"),
        ("log_rollups/merging-view?tabel=x", 400, "unknown parameter `tabel`"),
    ],
)
def test_a_view_that_does_not_exist_is_refused(client: Client, path: str, status: int, message: str) -> None:
    answer = client.get(f"/api/v1/tables/{path}")
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]


def test_tables_say_how_their_files_do(client: Client, queries: StandIn) -> None:
    queries.add("logs", logs({}, {}))
    queries.add("logs", logs({}), tenant="other")
    (table,) = client.get("/api/v1/tables").json()["tables"]
    health, whole = table["health"], table["health"]["whole"]
    assert (health["files"], health["bytes"], health["rows"]) == (2, 2000, 2)
    assert (whole["files"], whole["bytes"], whole["rows"]) == (3, 3000, 3)
    assert health["oldest_time"] == "1970-01-01T00:00:00.000000Z"
    assert health["sizes"][0] == {"bytes_max": 65_536, "files": 2, "bytes": 2000}
    assert (whole["snapshots"], whole["manifests"], whole["old_bytes"]) == (7, 3, 100)
    assert whole["runs"] == {"expired_at": "1970-01-01T00:00:05.000000Z"}
    assert "whole" not in table
    assert "table" not in health


def test_every_field_of_a_tables_health_is_in_the_openapi_example(client: Client, queries: StandIn) -> None:
    queries.add("logs", logs({}))
    (table,) = client.get("/api/v1/tables").json()["tables"]
    answers = client.get("/api/openapi.json").json()["paths"]["/api/v1/tables"]["get"]["responses"]
    (example,) = answers["200"]["content"]["application/json"]["example"]["tables"]
    assert set(table) == set(example)
    assert set(table["health"]) == set(example["health"])
    assert set(table["health"]["whole"]) == set(example["health"]["whole"])


def test_health_says_why(client: Client, queries: StandIn) -> None:
    well = {"ok": True, "role": "api", "version": __version__, "problems": {}}
    assert client.get("/healthz").json() == well
    text = client.get("/healthz", headers={"accept": "text/plain"})
    assert text.text == f"frazil {__version__} api: ok\n"
    queries.trouble = {"stale": "the catalog has not responded for 5 s"}
    assert (client.get("/healthz").status_code, client.get("/readyz").status_code) == (503, 200)
    assert client.get("/readyz").json()["problems"] == queries.trouble
    queries.trouble = {"catalog": "does not respond"}
    assert (client.get("/healthz").status_code, client.get("/readyz").status_code) == (503, 503)
    text = client.get("/readyz", headers={"accept": "text/plain"})
    assert text.text.endswith("api: not ready: catalog: does not respond\n")
    queries.trouble = {"workers": "none runs"}
    assert client.get("/readyz").status_code == 503
    assert client.get("/livez").status_code == 200


def test_the_query_service_lives_as_long_as_the_application(client: Client, queries: StandIn) -> None:
    async def live() -> None:
        async with client.app.router.lifespan_context(client.app):
            assert queries.started
            assert not queries.closed

    asyncio.run(live())
    assert queries.closed
    assert client.get("/readyz").status_code == client.get("/healthz").status_code == 503
    assert "shutting down" in client.get("/readyz").text
    refused = client.post("/api/v1/sql", json={"sql": "SELECT 1"})
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")


def test_requests_are_counted_by_route_not_by_path(client: Client) -> None:
    for number in range(3):
        client.get(f"/api/v1/traces/{number:032x}")
        client.get(f"/nowhere/{number}")
    text = client.get("/metrics").text
    counted = 'frazil_api_requests_total{route="/api/v1/traces/{trace_id}",status="404"} 3.0'
    assert counted in text
    assert 'frazil_api_requests_total{route="none",status="404"} 3.0' in text


def test_unknown_paths_and_methods_are_told_in_the_same_form(client: Client) -> None:
    assert client.get("/api/v2/sql").json()["error"]["code"] == "not_found"
    wrong = client.get("/api/v1/sql")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert "POST" in wrong.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/api/v1/tables", "/api/docs", "/livez", "/nowhere", "/api/v1/logs?x=1"])
def test_every_answer_keeps_browsers_careful(client: Client, path: str) -> None:
    headers = client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cache-control"] == "no-store"
    assert headers["content-security-policy"].startswith("default-src 'none'")


class Seen(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.mark.parametrize("path", ["/", "/api", "/api/docs"])
def test_pages_load_nothing_from_elsewhere(client: Client, path: str) -> None:
    answer = client.get(path)
    assert answer.headers["content-type"].startswith("text/html")
    seen = Seen()
    seen.feed(answer.text)
    assert not {"script", "link", "img", "iframe", "form"} & {tag for tag, _ in seen.tags}
    for _, attributes in seen.tags:
        assert "src" not in attributes
        assert (attributes.get("href") or "/").startswith("/")
        assert not any(name.startswith("on") or name == "style" for name in attributes)
    style = re.search("<style>(.*)</style>", answer.text, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"'sha256-{digest}'" in answer.headers["content-security-policy"]


def operations(client: Client) -> list[tuple[str, str, dict[str, Any]]]:
    paths = client.get("/api/openapi.json").json()["paths"]
    return [
        (path, method, operation)
        for path, methods in paths.items()
        if not path.startswith("/iceberg")
        for method, operation in methods.items()
    ]


def test_the_description_is_whole(client: Client) -> None:
    found = operations(client)
    assert {f"{method} {path}" for path, method, _ in found} == {
        "post /api/v1/sql",
        "get /api/v1/queries/{query_id}",
        "delete /api/v1/queries/{query_id}",
        "get /api/v1/tables",
        "get /api/v1/tables/{name}",
        "get /api/v1/tables/{name}/merging-view",
        "get /api/v1/traces",
        "get /api/v1/traces/durations",
        "get /api/v1/traces/{trace_id}",
        "get /api/v1/logs",
        "get /api/v1/logs/counts",
        "get /api/v1/spans",
        "get /api/v1/spans/counts",
        "get /api/v1/status",
        "get /healthz",
        "get /status",
        "get /readyz",
        "get /livez",
        "get /metrics",
    }
    for path, method, operation in found:
        assert operation["summary"], path
        assert operation["description"], path
        assert all(parameter.get("description") for parameter in operation.get("parameters", [])), path
        assert all(response["description"] for response in operation["responses"].values()), path
        if path.startswith("/api/v1"):
            assert operation["security"], path
            assert "401" in operation["responses"], path
            good = operation["responses"].get("200") or operation["responses"]["204"]
            assert method == "delete" or any("example" in c for c in good["content"].values()), path


def test_answers_have_the_schema_that_the_description_gives(client: Client, queries: StandIn) -> None:
    """Bodies are written without the models: each is read by its model, and nothing is lost or added."""
    queries.add("logs", logs({"trace_id": b"\1" * 16}, {}))
    for number in range(22):
        queries.add("spans", spans({}, service=f"s{number}"))
    whole = f"from={BEGIN - 10}&to={BEGIN + 10}"
    answers = {
        f"/api/v1/logs?limit=1&{whole}": describe.RecordPage,
        f"/api/v1/spans?{whole}": describe.RecordPage,
        f"/api/v1/logs/counts?{whole}": describe.CountsOverTime,
        f"/api/v1/spans/counts?by=service&{whole}": describe.CountsOverTime,
        f"/api/v1/traces?{whole}": describe.TraceList,
        f"/api/v1/traces/durations?{whole}": describe.DurationsOverTime,
        f"/api/v1/traces/{'01' * 16}?logs=true": describe.TraceData,
        "/api/v1/logs?from=never": describe.ErrorBody,
    }
    found = {path: (client.get(path).json(), model) for path, model in answers.items()}
    result = client.post("/api/v1/sql", json={"sql": "SELECT 1 AS a, [2] AS b"}).json()
    found["/api/v1/sql"] = (result, describe.SqlResult)
    paths = client.get("/api/openapi.json").json()["paths"]
    for path, (body, model) in found.items():
        adapter: TypeAdapter[Any] = TypeAdapter(model)
        again = adapter.dump_python(
            adapter.validate_python(body), mode="json", by_alias=True, exclude_none=True
        )
        assert again == without_none(body), path
        route = path.partition("?")[0].replace("01" * 16, "{trace_id}")
        operation = next(iter(paths[route].values()))
        status = "400" if model is describe.ErrorBody else "200"
        schema = operation["responses"][status]["content"]["application/json"]["schema"]
        assert schema == {"$ref": f"#/components/schemas/{model.__name__}"}


def without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_none(each) for name, each in value.items() if each is not None}
    return [without_none(each) for each in value] if isinstance(value, list) else value


def test_the_page_shows_each_endpoint_with_a_command_to_try(client: Client) -> None:
    page = client.get("/api/docs").text
    for path, _, _ in operations(client):
        assert f"<code>{path}</code>" in page
    assert page.count("curl -s") >= len(operations(client))
    assert "http://127.0.0.1:4380/api/v1/sql" in page
