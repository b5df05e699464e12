"""`GET /api/v1/status` over roles that answer real HTTP."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable

import pytest

from frazil.errors import CatalogUnavailable
from frazil.keys import hash_key, new_key
from tests.support.query.read_telemetry import logs
from tests.support.serve.requests import Client
from tests.support.serve.stand_in import StandIn
from tests.support.status_roles import page, serving

RECEIVER = page("receiver", 'frazil_receive_records_total{signal="logs",outcome="accepted"} 5\n')
NOBODY = "http://127.0.0.1:9"
ALONE = {"pipelines": [NOBODY], "apis": [NOBODY], "dashboard": [NOBODY]}


def test_the_status_tells_of_every_role_and_of_tables(
    asking: Callable[..., Client], queries: StandIn
) -> None:
    queries.add("logs", logs({}, {}))
    queries.add("logs", logs({}), tenant="other")
    with serving(RECEIVER) as url:
        answer = asking(status={"receivers": [url], **ALONE}).get("/api/v1/status")
    assert answer.status_code == 200
    status = answer.json()
    assert status["state"] == "degraded"
    assert [(role["name"], role["state"]) for role in status["roles"]] == [
        ("receiver", "ok"),
        ("pipeline", "down"),
        ("api", "down"),
        ("dashboard", "down"),
    ]
    assert status["roles"][1]["reasons"] == ["connection refused: nothing listens at this address"]
    (table,) = status["tables"]
    assert (table["rows"], table["health"]["whole"]["rows"]) == (2, 3)
    assert "columns" not in table
    assert status["ledger"] is None
    assert status["history"]["times"] == []


def test_the_ledger_comes_if_asked_for_and_history_can_be_left_out(client: Client) -> None:
    status = client.get("/api/v1/status?ledger=true&history=false").json()
    assert (status["ledger"]["state"], status["ledger"]["ok"]) == ("ready", True)
    assert status["history"] is None


def test_a_catalog_that_does_not_answer_leaves_the_rest_to_be_seen(
    client: Client, queries: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(tenant: str, *, whole: bool) -> None:
        raise CatalogUnavailable("the catalog does not respond")

    monkeypatch.setattr(queries, "tables", fails)
    status = client.get("/api/v1/status").json()
    assert (status["tables"], status["state"]) == (None, "down")


def test_with_keys_it_is_for_admins(asking: Callable[..., Client]) -> None:
    (admin, admin_hash), (reader, reader_hash) = new_key("ops"), new_key("shop")
    keys = [
        {"name": "ops", "tenant": "ops", "hash": admin_hash, "roles": ["admin"]},
        {"name": "shop", "tenant": "shop", "hash": reader_hash},
    ]
    assert hash_key(admin) == admin_hash
    client = asking(auth={"keys": keys})
    assert client.get("/api/v1/status").status_code == 401
    refused = client.get("/api/v1/status", headers={"x-api-key": reader})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
    assert client.get("/api/v1/status", headers={"x-api-key": admin}).status_code == 200


def test_a_mistyped_parameter_is_refused(client: Client) -> None:
    answer = client.get("/api/v1/status?ledgr=true")
    assert answer.status_code == 400
    assert "Did you mean `ledger`?" in answer.json()["error"]["message"]


def test_the_example_names_what_an_answer_has(client: Client) -> None:
    answers = client.get("/api/openapi.json").json()["paths"]["/api/v1/status"]["get"]["responses"]
    example = answers["200"]["content"]["application/json"]["example"]
    status = client.get("/api/v1/status").json()
    assert set(example) == set(status)
    assert set(example["roles"][0]) == set(status["roles"][0])
    assert set(example["objectives"][0]) == set(status["objectives"][0])
    assert set(example["history"]["series"][0]) == set(status["history"]["series"][0])


def test_the_api_looks_by_itself_and_a_look_that_fails_does_not_end_it(
    asking: Callable[..., Client], monkeypatch: pytest.MonkeyPatch, log: io.StringIO
) -> None:
    monkeypatch.setattr("frazil.status.poll.PAUSE_SECONDS_MIN", 0.01)
    with serving(RECEIVER) as url:
        client = asking(status={"receivers": [url], "sample_seconds": 1, **ALONE})
        sampler = client.app.state.sampler
        sampler._seconds = 0.01
        failing = [RuntimeError("out of threads")]
        real = sampler._poller.submit

        def asks(places: object) -> object:
            if failing:
                raise failing.pop()
            return real(places)

        monkeypatch.setattr(sampler._poller, "submit", asks)

        async def live() -> list[float]:
            async with client.app.router.lifespan_context(client.app):
                async with asyncio.timeout(10):
                    while len(sampler._watcher.status().history.times) < 3:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
                return list(sampler._watcher.status().history.times)

        times = asyncio.run(live())
    assert times == sorted(times)
    assert "polling the roles failed" in log.getvalue()
