"""Health questions, metrics, and a receiver of two workers."""

from __future__ import annotations

import os
import signal as signals
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from frazil import __version__
from tests.components.process import wait_until
from tests.support.integration.clients import channel, export, post
from tests.support.integration.messages import logs, new_service, request, spans
from tests.support.receiver import Receiver, running_receiver


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    """A receiver of two workers."""
    settings = {"receive": {"workers": 2}, "wal": {"group_wait_seconds": 0.01}}
    with running_receiver(tmp_path_factory.mktemp("pair"), settings) as running:
        assert wait_until(lambda: running.metric("frazil_receive_ready_workers") == 2, seconds_max=60)
        yield running


def test_health_answers(receiver: Receiver) -> None:
    for path in ("/healthz", "/readyz", "/livez"):
        response = httpx.get(receiver.http + path)
        well = {"ok": True, "role": "receiver", "version": __version__, "problems": {}}
        assert (response.status_code, response.json()) == (200, well)
        assert response.headers["content-type"] == "application/json"
        response = httpx.get(receiver.http + path, headers={"accept": "text/plain"})
        assert (response.status_code, response.text) == (200, f"frazil {__version__} receiver: ok\n")
    for path in ("/healthz", "/readyz", "/livez"):
        response = httpx.head(receiver.http + path)
        assert (response.status_code, response.content) == (200, b"")


def test_metrics_count_what_was_received(receiver: Receiver) -> None:
    def counts() -> dict[str, float]:
        of_logs = {
            name: receiver.metric(f"frazil_{name}", signal="logs")
            for name in (
                "receive_bytes_total",
                "wal_segments_total",
                "wal_rows_total",
                "wal_bytes_total",
                "wal_encode_seconds_count",
                "wal_store_seconds_count",
            )
        }
        requests = {
            f"{transport} {outcome}": receiver.metric(
                "frazil_receive_requests_total", signal="logs", transport=transport, outcome=outcome
            )
            for transport in ("http", "grpc")
            for outcome in ("ok", "invalid", "content_type", "method")
        }
        acks = {
            f"ack {transport}": receiver.metric(
                "frazil_receive_ack_seconds_count", signal="logs", transport=transport
            )
            for transport in ("http", "grpc")
        }
        accepted = receiver.metric("frazil_receive_records_total", signal="logs", outcome="accepted")
        return of_logs | requests | acks | {"accepted": accepted}

    before = counts()
    body = logs(new_service(), 7).SerializeToString()
    assert post(receiver, "logs", body).status_code == 200
    with channel(receiver) as opened:
        export(opened, "logs", body)
    assert post(receiver, "logs", b"\xff").status_code == 400
    assert post(receiver, "logs", b"", "text/plain").status_code == 415
    assert httpx.get(f"{receiver.http}/v1/logs").status_code == 405
    after = counts()
    grown = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert grown.pop("wal_bytes_total") > 0
    assert grown == {
        "receive_bytes_total": 2 * len(body),
        "wal_segments_total": 2,
        "wal_rows_total": 14,
        "wal_encode_seconds_count": 2,
        "wal_store_seconds_count": 2,
        "http ok": 1,
        "grpc ok": 1,
        "http invalid": 1,
        "http content_type": 1,
        "http method": 1,
        "ack http": 1,
        "ack grpc": 1,
        "accepted": 14,
    }


def test_metrics_are_in_the_format_of_prometheus(receiver: Receiver) -> None:
    response = httpx.get(f"{receiver.http}/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "# TYPE frazil_receive_requests_total counter" in response.text
    assert "# TYPE frazil_receive_ack_seconds histogram" in response.text


def test_whichever_worker_answers_the_metrics_are_those_of_the_whole_receiver(pair: Receiver) -> None:
    def told() -> dict[str, float]:
        """The store's calls are counted in each worker; the rest is looked at when asked."""
        return {
            "puts": pair.metric("frazil_store_seconds_count", store="wal", operation="put"),
            "acks": pair.metric("frazil_objective_events_total", objective="ack"),
            "objective": pair.metric("frazil_objective_seconds", objective="ack"),
            "build": pair.metric("frazil_build_info", role="receiver", version=__version__),
        }

    before = told()
    for _ in range(6):
        assert post(pair, "logs", logs(new_service()).SerializeToString()).status_code == 200
    after = told()
    assert after["puts"] >= before["puts"] + 6
    assert after["acks"] == before["acks"] + 6
    assert (after["objective"], after["build"]) == (0.4, 1)
    assert pair.metric("frazil_process_count") >= 3, "the parent and two workers"
    assert pair.metric("frazil_process_memory_bytes") > 100_000_000
    assert pair.metric("frazil_store_free_bytes", store="wal") > 0


@pytest.mark.slow
def test_an_empty_disk_budget_makes_it_not_ready_and_says_why(tmp_path: Path) -> None:
    settings = {"wal": {"local": {"free_bytes_min": "1000000GiB"}}}
    with running_receiver(tmp_path, settings, ready=False) as receiver:
        assert wait_until(lambda: _answers(receiver), seconds_max=60)
        for path in ("/healthz", "/readyz"):
            response = httpx.get(receiver.http + path)
            assert response.status_code == 503
            assert response.json()["problems"]["receiver"]
        assert httpx.get(f"{receiver.http}/livez").status_code == 200
        response = post(receiver, "logs", logs(new_service()).SerializeToString())
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1
        assert receiver.metric("frazil_receive_ready_workers") == 0


def _answers(receiver: Receiver) -> bool:
    try:
        return httpx.get(f"{receiver.http}/livez", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def test_both_workers_get_traffic_and_their_numbers_add_up(pair: Receiver) -> None:
    def accepted() -> float:
        return pair.metric("frazil_receive_records_total", signal="spans", outcome="accepted")

    before, sent = accepted(), 0
    services = []

    def send_by_new_connections() -> bool:
        nonlocal sent
        services.append(new_service())
        body = spans(services[-1], 3).SerializeToString()
        assert post(pair, "spans", body).status_code == 200
        with channel(pair) as opened:
            assert export(opened, "spans", body) == b""
        sent += 6
        streams = {segment.name for segment in (pair.config.wal_dir / "spans").iterdir()}
        return len(streams) >= 2 and len(services) >= 10

    assert wait_until(send_by_new_connections, seconds_max=30)
    assert accepted() - before == sent
    rows = pair.rows("spans").column("service_name").to_pylist()
    assert [rows.count(service) for service in services] == [6] * len(services)


def test_a_killed_worker_is_replaced_and_nothing_acked_is_lost(pair: Receiver) -> None:
    def send() -> bool:
        service = new_service()
        try:
            code = post(pair, "logs", request("logs", service).SerializeToString()).status_code
        except httpx.HTTPError:
            return False
        acked.extend([service] * (code == 200))
        return code == 200

    def ready() -> float:
        """-1 where the question went to the one that has just died."""
        try:
            return pair.metric("frazil_receive_ready_workers")
        except httpx.HTTPError:
            return -1

    acked: list[str] = []
    assert all(send() for _ in range(5))
    counted = pair.metric("frazil_receive_records_total", signal="logs")
    old = pair.worker_pids()
    os.kill(old[0], signals.SIGKILL)
    assert wait_until(send, seconds_max=10), "the other worker did not go on"
    # The dead one's gauge no longer counts, its counters do.
    assert wait_until(lambda: ready() == 1, seconds_max=10)
    assert wait_until(lambda: len(set(pair.worker_pids()) - {old[0]}) == 2, seconds_max=30)
    assert wait_until(lambda: ready() == 2, seconds_max=30)
    assert pair.metric("frazil_receive_records_total", signal="logs") >= counted
    assert all(send() for _ in range(5))
    names = pair.rows("logs").column("service_name").to_pylist()
    assert all(names.count(service) == 1 for service in acked)
