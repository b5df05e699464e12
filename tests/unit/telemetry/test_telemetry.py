"""One process's telemetry, with the real exporters, into an endpoint on loopback."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from prometheus_client import CollectorRegistry

from frazil import telemetry
from frazil.config import Config, LogConfig
from frazil.errors import QueryInvalid, StoreUnavailable
from frazil.log import configure_logging
from frazil.telemetry import note, past, refuse, server_span, span
from tests.components.process import free_port, wait_until
from tests.support.otlp_endpoint import Endpoint, facts, grpc_endpoint, http_endpoint

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with http_endpoint() as found:
        yield found


@pytest.fixture(autouse=True)
def printed() -> Iterator[io.StringIO]:
    """What frazil's own log prints. Telemetry is over at the end, whatever happened."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logging(LogConfig(level="info", format="json"), stream)
    yield stream
    telemetry.stop()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()


def config(endpoint: str, **settings: Any) -> Config:
    return Config.model_validate({"telemetry": {"enabled": True, "endpoint": endpoint, **settings}})


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    """Of frazil; a warning that Python gives when it collects garbage may be of an earlier test."""
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [line for line in found if line["logger"].startswith("frazil.")]


def counted(registry: CollectorRegistry, kind: str, outcome: str) -> float:
    labels = {"kind": kind, "outcome": outcome}
    return registry.get_sample_value("frazil_telemetry_records_total", labels) or 0.0


def test_without_telemetry_no_process_loads_the_sdk() -> None:
    script = """
import sys
import frazil.cli, frazil.up, frazil.receive.worker, frazil.serve.middleware
from frazil import telemetry
from frazil.config import Config
telemetry.start(Config(), "api")
with telemetry.span("a", rows=1) as one, telemetry.server_span("b", {}) as two:
    telemetry.note(rows=2)
    telemetry.past("c", 0.0, 1.0)
assert one is two, "each span costs an object"
telemetry.stop()
print([name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_spans_carry_facts_and_belong_to_one_trace(endpoint: Endpoint) -> None:
    telemetry.start(config(endpoint.url, resource={"team": "ops"}), "pipeline")
    with span("land", table="logs") as land:
        with span("land.commit") as commit:
            commit.set(snapshot=7, nothing=None)
        now = time.monotonic()
        past("land.wait", now - 2.0, now - 1.0)
        note(rows=3)
        land.rename("landed")
    telemetry.stop()
    land_span, commit_span, wait = (endpoint.span(name) for name in ("landed", "land.commit", "land.wait"))
    assert facts(land_span.attributes) == {"frazil.table": "logs", "frazil.rows": 3}
    assert facts(commit_span.attributes) == {"frazil.snapshot": 7}
    assert {commit_span.parent_span_id, wait.parent_span_id} == {land_span.span_id}
    assert wait.end_time_unix_nano - wait.start_time_unix_nano == pytest.approx(1e9, rel=1e-3)
    (resource,) = endpoint.resources
    assert resource["service.name"] == "frazil-pipeline"
    assert resource["service.namespace"] == "frazil"
    assert resource["team"] == "ops"
    assert resource["process.pid"] == os.getpid()
    assert {"service.version", "service.instance.id"} <= resource.keys()


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_exports_are_marked_and_carry_the_key_and_headers(protocol: str) -> None:
    with (http_endpoint if protocol != "grpc" else grpc_endpoint)() as endpoint:
        given = {"protocol": protocol, "api_key": "fz_1", "headers": {"x-scope-orgid": "ops"}}
        telemetry.start(config(endpoint.url, **given), "api")
        with span("query"):
            structlog.get_logger("frazil.query").warning("slow")
        telemetry.stop()
    assert len(endpoint.headers) == 2
    for headers in endpoint.headers:
        assert headers[telemetry.SELF_HEADER] == "1"
        assert headers["authorization"] == "Bearer fz_1"
        assert headers["x-scope-orgid"] == "ops"


def test_a_request_that_carries_frazils_own_telemetry_leaves_no_trace_and_no_log(endpoint: Endpoint) -> None:
    telemetry.start(config(endpoint.url, receive_ratio=1.0), "receiver")
    log = structlog.get_logger("frazil.receive")

    async def request(headers: dict[str, str], name: str) -> None:
        with server_span(name, headers):
            await asyncio.create_task(work(name))

    async def work(name: str) -> None:
        with span(f"{name}.part"):
            past(f"{name}.past", 0.0, 1.0)
            log.error(f"{name} failed")
            refuse("store")

    async def both() -> None:
        await asyncio.gather(request({telemetry.SELF_HEADER: "1"}, "own"), request({}, "foreign"))

    asyncio.run(both())
    telemetry.stop()
    assert sorted(each.name for each in endpoint.spans) == ["foreign", "foreign.part", "foreign.past"]
    assert [record.body.string_value for record in endpoint.logs] == ["foreign failed"]


def test_a_log_record_has_its_facts_and_its_trace(endpoint: Endpoint) -> None:
    telemetry.start(config(endpoint.url), "pipeline")
    log = structlog.get_logger("frazil.land")
    with span("land"):
        log.warning("landing failed", table="logs", again_in_seconds=2.0)
    log.info("too little")
    logging.getLogger("library").error("slow %s", "disk")
    telemetry.stop()
    land, (warning, error) = endpoint.span("land"), endpoint.logs
    assert warning.body.string_value == "landing failed"
    assert (warning.severity_text, warning.severity_number) == ("WARNING", 13)
    assert facts(warning.attributes) == {
        "frazil.table": "logs",
        "frazil.again_in_seconds": 2.0,
        "logger.name": "frazil.land",
    }
    assert (warning.trace_id, warning.span_id) == (land.trace_id, land.span_id)
    assert (error.body.string_value, error.trace_id) == ("slow disk", b"")


def test_a_log_record_has_no_ids_of_an_unsampled_trace(endpoint: Endpoint) -> None:
    telemetry.start(config(endpoint.url, receive_ratio=0.0), "receiver")
    with server_span("receive", {"traceparent": PARENT}):
        structlog.get_logger("frazil.receive").warning("hm")
    telemetry.stop()
    assert endpoint.spans == []
    assert [record.trace_id for record in endpoint.logs] == [b""]


def test_the_api_follows_its_clients_trace(endpoint: Endpoint) -> None:
    telemetry.start(config(endpoint.url, api_ratio=0.0), "api")
    with server_span("GET", {"traceparent": PARENT}):
        pass
    with server_span("unasked", {}), span("part"):
        pass
    with server_span("unwanted", {"traceparent": PARENT[:-1] + "0"}):
        pass
    telemetry.stop()
    (found,) = endpoint.spans
    assert found.trace_id.hex() == PARENT.split("-")[1]
    assert found.parent_span_id.hex() == PARENT.split("-")[2]
    assert found.kind == Span.SPAN_KIND_SERVER


def test_neither_sql_nor_parameters_nor_keys_leave_the_process(endpoint: Endpoint) -> None:
    telemetry.start(config(endpoint.url, logs_level="info", api_key="fz_own"), "api")
    secret = {"sql": "SELECT 'hunter2'", "params": "hunter2", "api_key": "fz_hunter2", "password": "hunter2"}
    log = structlog.get_logger("frazil.query")

    def ask() -> None:
        with span("query", **secret):
            log.info("query", **secret)
            try:
                raise ValueError(secret["sql"])
            except ValueError:
                log.exception("defect")
            raise QueryInvalid(secret["sql"])

    with pytest.raises(QueryInvalid):
        ask()
    telemetry.stop()
    sent = "".join(str(each) for each in (*endpoint.spans, *endpoint.logs, *endpoint.resources))
    assert "hunter2" not in sent
    assert "fz_own" not in sent
    query = endpoint.span("query")
    assert facts(query.attributes) == {
        "error.type": "QueryInvalid",
        "frazil.api_key": "[hidden]",
        "frazil.password": "[hidden]",
    }
    assert query.status == Status(code=Status.STATUS_CODE_ERROR)
    defect = facts(endpoint.logs[1].attributes)
    assert defect["exception.type"] == "ValueError"
    assert "test_telemetry.py" in defect["exception.stacktrace"]


def test_sql_is_sent_if_enabled(endpoint: Endpoint) -> None:
    telemetry.start(config(endpoint.url, sql_text=True), "api")
    with span("query", sql="SELECT 1", params="[7]"):
        pass
    telemetry.stop()
    assert facts(endpoint.span("query").attributes) == {"frazil.sql": "SELECT 1"}


def test_an_error_message_is_sent_only_if_it_cannot_contain_user_data(endpoint: Endpoint) -> None:
    telemetry.start(config(endpoint.url), "pipeline")
    with pytest.raises(StoreUnavailable), span("land"):
        raise StoreUnavailable("the disk is full")
    with span("refused"):
        refuse("rate")
    telemetry.stop()
    assert endpoint.span("land").status.message == "the disk is full"
    refused = endpoint.span("refused")
    assert refused.status.code == Status.STATUS_CODE_ERROR
    assert facts(refused.attributes)["frazil.outcome"] == "rate"


def test_a_forgotten_span_is_not_sent(endpoint: Endpoint) -> None:
    telemetry.start(config(endpoint.url), "pipeline")
    with span("maintain.compact") as nothing:
        nothing.forget()

    def fail() -> None:
        with span("maintain.expire") as failed:
            failed.forget()
            raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        fail()
    telemetry.stop()
    assert [each.name for each in endpoint.spans] == ["maintain.expire"]


def test_a_full_queue_drops_and_counts_and_never_waits(endpoint: Endpoint) -> None:
    registry = CollectorRegistry()
    endpoint.status = 503
    telemetry.start(config(endpoint.url, queue_max=16, interval_seconds=60), "pipeline", registry)
    begin = time.monotonic()
    for _ in range(1000):
        with span("a"):
            pass
    assert time.monotonic() - begin < 1.0
    assert counted(registry, "spans", "dropped") >= 1000 - 2 * 16
    endpoint.status = 200
    telemetry.stop()
    total = sum(counted(registry, "spans", outcome) for outcome in ("sent", "failed", "dropped"))
    assert total == 1000


def test_an_unreachable_endpoint_is_logged_once_and_does_not_delay_the_shutdown(
    printed: io.StringIO, capfd: pytest.CaptureFixture[str]
) -> None:
    registry = CollectorRegistry()
    port = free_port()
    telemetry.start(config(f"http://127.0.0.1:{port}", interval_seconds=0.1), "api", registry)
    log = structlog.get_logger("frazil.serve")

    def fails_twice() -> bool:
        with span("query"):
            log.error("hm")
        return counted(registry, "spans", "failed") + counted(registry, "logs", "failed") >= 2

    assert wait_until(fails_twice, seconds_max=30)
    with span("last"):
        pass
    begin = time.monotonic()
    telemetry.stop()
    assert time.monotonic() - begin < 2.5
    said = [line for line in lines(printed) if line["event"] != "hm"]
    assert [(line["level"], line["logger"]) for line in said] == [("warning", "frazil.telemetry")]
    assert said[0]["endpoint"] == f"http://127.0.0.1:{port}"
    assert said[0]["reason"] == "Connection refused"
    assert capfd.readouterr().err == ""


def test_a_hanging_endpoint_does_not_delay_the_shutdown() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        telemetry.start(config(f"http://127.0.0.1:{silent.getsockname()[1]}"), "api")
        with span("query"):
            pass
        begin = time.monotonic()
        telemetry.stop()
        assert time.monotonic() - begin < 2.5


def test_sending_resumes_when_the_endpoint_recovers(endpoint: Endpoint, printed: io.StringIO) -> None:
    registry = CollectorRegistry()
    endpoint.status = 400
    telemetry.start(config(endpoint.url, interval_seconds=0.1), "api", registry)
    with span("lost"):
        pass
    assert wait_until(lambda: counted(registry, "spans", "failed") == 1, seconds_max=10)
    endpoint.status = 200
    with span("kept"):
        pass
    assert wait_until(lambda: bool(endpoint.spans), seconds_max=10)
    assert wait_until(lambda: len(lines(printed)) == 2, seconds_max=5), printed.getvalue()
    assert [line["level"] for line in lines(printed)] == ["warning", "info"]
    assert lines(printed)[1]["dropped"] == 1
    assert endpoint.logs == [], "sending tells of itself to the endpoint"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_sends_nothing(endpoint: Endpoint) -> None:
    telemetry.start(config(endpoint.url), "pipeline")
    with span("parent"):
        child = os.fork()
        if child == 0:
            with span("child"):
                logging.getLogger("child").error("hm")
            telemetry.stop()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    telemetry.stop()
    assert [each.name for each in endpoint.spans] == ["parent"]
    assert endpoint.logs == []


def test_a_process_runs_without_telemetry_if_it_cannot_start(printed: io.StringIO) -> None:
    given = {"receive": {"http": {"listen": "127.0.0.1:0"}}, "telemetry": {"enabled": True}}
    telemetry.start(Config.model_validate(given), "api")
    with span("query"):
        pass
    (line,) = lines(printed)
    assert "telemetry.endpoint" in line["reason"]


def test_stop_ends_the_thread_and_restores_the_logger(endpoint: Endpoint) -> None:
    telemetry.start(config(endpoint.url), "api")
    assert "frazil-telemetry" in {each.name for each in threading.enumerate()}
    telemetry.stop()
    telemetry.stop()
    assert "frazil-telemetry" not in {each.name for each in threading.enumerate()}
    assert logging.getLogger("opentelemetry").propagate
