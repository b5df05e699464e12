"""Who is let in, and as whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from frazil.keys import hash_key
from tests.support.query.read_telemetry import BEGIN, logs, spans
from tests.support.serve.requests import Client
from tests.support.serve.stand_in import StandIn

KEYS = {
    "fz_one": {"name": "one", "tenant": "first", "roles": ["read"]},
    "fz_two": {"name": "two", "tenant": "second", "roles": ["read", "write", "admin"]},
    "fz_writer": {"name": "writer", "tenant": "first", "roles": ["write"]},
}
SETTINGS = {"auth": {"keys": [{**key, "hash": hash_key(text)} for text, key in KEYS.items()]}}
TRACE = "01" * 16
RANGE = f"from={BEGIN - 1}&to={BEGIN + 9}"
READ_PATHS = [
    "/api/v1/tables",
    "/api/v1/tables/logs",
    "/api/v1/tables/log_rollups/merging-view",
    f"/api/v1/logs?{RANGE}",
    f"/api/v1/spans?{RANGE}",
    f"/api/v1/logs/counts?{RANGE}",
    f"/api/v1/spans/counts?{RANGE}",
    f"/api/v1/traces?{RANGE}",
    f"/api/v1/traces/durations?{RANGE}",
    f"/api/v1/traces/{TRACE}",
    "/api/v1/queries/some",
]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def keyed(asking: Callable[..., Client]) -> Client:
    return asking(**SETTINGS)


@pytest.mark.parametrize(
    "headers",
    [{}, bearer("fz_wrong"), bearer(""), {"authorization": "Basic fz_one"}, {"x-api-key": "x" * 1000}],
)
def test_without_a_valid_key_nothing_is_answered(keyed: Client, headers: dict[str, str]) -> None:
    for path in READ_PATHS:
        answer = keyed.get(path, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthenticated"), path
        assert answer.headers["www-authenticate"] == "Bearer"
    sql = keyed.post("/api/v1/sql", json={"sql": "SELECT 1"}, headers=headers)
    assert sql.status_code == 401


def test_a_key_that_may_only_write_reads_nothing(keyed: Client) -> None:
    for path in READ_PATHS:
        answer = keyed.get(path, headers=bearer("fz_writer"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden"), path
    assert keyed.delete("/api/v1/queries/x", headers=bearer("fz_writer")).status_code == 403


def test_both_headers_carry_a_key_and_any_case_of_bearer(keyed: Client) -> None:
    for headers in (bearer("fz_one"), {"x-api-key": "fz_one"}, {"authorization": "bEaReR fz_one"}):
        assert keyed.get("/api/v1/tables", headers=headers).status_code == 200


def test_the_tenant_is_the_keys_whatever_else_is_said(keyed: Client, queries: StandIn) -> None:
    headers = bearer("fz_one") | {"x-scope-orgid": "second", "x-tenant": "second"}
    keyed.post("/api/v1/sql", json={"sql": "SELECT 1"}, headers=headers)
    assert (queries.asked[-1].tenant, queries.asked[-1].who) == ("first", "one")
    refused = keyed.post("/api/v1/sql", json={"sql": "SELECT 1", "tenant": "second"}, headers=headers)
    assert refused.status_code == 400
    assert keyed.get("/api/v1/tables?tenant=second", headers=headers).status_code == 400


def test_no_endpoint_shows_another_tenants_records(keyed: Client, queries: StandIn) -> None:
    queries.add("logs", logs({"body": "of the second"}), tenant="second")
    queries.add("spans", spans({"name": "of the second"}), tenant="second")

    def seen(key: str) -> dict[str, Any]:
        return {path: keyed.get(path, headers=bearer(key)) for path in READ_PATHS}

    mine, theirs = seen("fz_one"), seen("fz_two")
    assert theirs[f"/api/v1/traces/{TRACE}"].status_code == 200
    assert mine[f"/api/v1/traces/{TRACE}"].status_code == 404
    assert len(theirs[f"/api/v1/logs?{RANGE}"].json()["records"]) == 1
    assert mine[f"/api/v1/logs?{RANGE}"].json()["records"] == []
    assert theirs[f"/api/v1/traces/durations?{RANGE}"].json()["total"] == 1
    assert mine[f"/api/v1/traces/durations?{RANGE}"].json()["cells"] == []
    assert theirs["/api/v1/tables/logs"].json()["rows"] == 1
    assert mine["/api/v1/tables/logs"].json()["rows"] == 0
    assert not any("of the second" in answer.text for answer in mine.values())


def test_only_an_admin_learns_how_much_others_have(keyed: Client, queries: StandIn) -> None:
    queries.add("logs", logs({}, {}), tenant="second")
    queries.add("logs", logs({}), tenant="first")
    for path in ("/api/v1/tables", "/api/v1/tables/logs"):
        mine, theirs = (keyed.get(path, headers=bearer(key)).json() for key in ("fz_one", "fz_two"))
        mine, theirs = (found.get("tables", [found])[0]["health"] for found in (mine, theirs))
        assert (mine["files"], mine["whole"]) == (1, None)
        assert (theirs["files"], theirs["whole"]["files"]) == (2, 3)


def test_rows_without_a_tenant_are_for_admins(keyed: Client, queries: StandIn) -> None:
    for key, unowned in (("fz_one", False), ("fz_two", True)):
        keyed.post("/api/v1/sql", json={"sql": "SELECT 1"}, headers=bearer(key))
        assert queries.asked[-1].unowned == unowned
    asked = {"sql": "SELECT 1", "unowned": True}
    assert keyed.post("/api/v1/sql", json=asked, headers=bearer("fz_one")).status_code == 400


def test_without_keys_rows_without_a_tenant_are_for_everyone(client: Client, queries: StandIn) -> None:
    client.post("/api/v1/sql", json={"sql": "SELECT 1"})
    assert queries.asked[-1].unowned


def test_the_iceberg_catalog_is_for_admins(keyed: Client) -> None:
    assert keyed.get("/iceberg/v1/config").status_code == 401
    assert keyed.get("/iceberg/v1/config", headers=bearer("fz_one")).status_code == 403
    assert keyed.get("/iceberg/v1/config", headers=bearer("fz_two")).status_code == 200


def test_health_and_pages_need_no_key(keyed: Client) -> None:
    for path in (
        "/livez",
        "/readyz",
        "/healthz",
        "/metrics",
        "/status",
        "/",
        "/api",
        "/api/docs",
        "/api/openapi.json",
    ):
        assert keyed.get(path).status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1:4380", "localhost", "localhost:1", "[::1]:4380", "[::1]"])
def test_without_keys_this_machine_may_ask(client: Client, host: str) -> None:
    assert client.get("/api/v1/tables", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:4380", "127.0.0.1.evil.example", "10.0.0.1", ""]
)
def test_without_keys_a_name_that_leads_here_is_not_enough(client: Client, host: str) -> None:
    """A web page can make its own name lead to 127.0.0.1, and then read what it gets."""
    answer = client.get("/api/v1/tables", headers={"host": host})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")


def test_without_keys_strange_web_pages_cannot_ask(asking: Callable[..., Client]) -> None:
    client = asking(serve={"cors_origins": ["https://app.example.com"]})

    def status(origin: str) -> int:
        headers = {"origin": origin, "content-type": "text/plain"}
        return client.post("/api/v1/sql", content="SELECT 1", headers=headers).status_code

    assert status("https://app.example.com") == status("http://127.0.0.1:4380") == 200
    assert status("https://evil.example") == status("null") == 403


def test_cors_names_the_configured_origins_alone(asking: Callable[..., Client]) -> None:
    client = asking(**SETTINGS, serve={"cors_origins": ["https://app.example.com"]})

    def preflight(origin: str) -> Any:
        headers = {
            "origin": origin,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type",
        }
        return client.request("OPTIONS", "/api/v1/sql", headers=headers).headers

    allowed = preflight("https://app.example.com")
    assert allowed["access-control-allow-origin"] == "https://app.example.com"
    assert "access-control-allow-origin" not in preflight("https://evil.example")
    headers = bearer("fz_one") | {"origin": "https://app.example.com"}
    answer = client.post("/api/v1/sql", json={"sql": "SELECT 1"}, headers=headers)
    assert "X-Frazil-Stats" in answer.headers["access-control-expose-headers"]
