"""The API over what was received a moment ago: a real receiver, a real `frazil serve`, nothing has landed."""

from __future__ import annotations

import csv
import json
import re
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from frazil.keys import hash_key
from frazil.otlp.json import request_from_json
from tests.components.process import free_port, wait_until
from tests.support.integration import messages
from tests.support.integration.api import Api, running_api
from tests.support.integration.authority import Authority
from tests.support.integration.clients import JSON, post
from tests.support.integration.messages import new_service
from tests.support.otlp_canonical import canonical_spans
from tests.support.receiver import Receiver

KEYS = {
    "fz_first": {"name": "one", "tenant": "first", "roles": ["read", "write"]},
    "fz_second": {"name": "two", "tenant": "second", "roles": ["read", "write", "admin"]},
    "fz_writer": {"name": "writer", "tenant": "first", "roles": ["write"]},
}
RANGE = {"from": "-1h", "to": str(int(time.time()) + 3600)}
Pair = tuple[Api, Receiver]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


FIRST, SECOND = bearer("fz_first"), bearer("fz_second")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    keys = [{**key, "hash": hash_key(text)} for text, key in KEYS.items()]
    settings = {"auth": {"keys": keys}, "query": {"seconds_max": 20}}
    with running_api(tmp_path_factory.mktemp("api"), settings) as running:
        yield running


def logs(service: str, count: int = 1) -> Any:
    """As if they were just written; times beyond the horizon would be replaced."""
    request, now = messages.logs(service, count), time.time_ns()
    for index, record in enumerate(request.resource_logs[0].scope_logs[0].log_records):
        record.time_unix_nano = now + index
    return request


def spans(service: str, count: int = 1) -> Any:
    request, now = messages.spans(service, count), time.time_ns()
    for span in request.resource_spans[0].scope_spans[0].spans:
        span.start_time_unix_nano, span.end_time_unix_nano = now, now + 1_000
    return request


def sent(receiver: Receiver, signal_name: Any, request: Any, headers: dict[str, str] = FIRST) -> None:
    answer = post(receiver, signal_name, request.SerializeToString(), headers=headers)
    assert answer.status_code == 200, answer.text


def test_what_was_acked_is_in_the_next_answer(pair: Pair) -> None:
    api, receiver = pair
    service = new_service()
    for count in (1, 2, 3):
        sent(receiver, "logs", logs(service))
        sql = "SELECT count(*) FROM logs WHERE service_name = ?"
        assert api.rows(sql, service, headers=FIRST) == [[count]]
        assert api.rows(sql.replace("logs", "otel.logs"), service, headers=FIRST) == [[count]]


def test_every_format_holds_the_rows(pair: Pair, tmp_path: Path) -> None:
    api, receiver = pair
    service = new_service()
    sent(receiver, "logs", logs(service, 3))
    sql = "SELECT body FROM logs WHERE service_name = ? ORDER BY time_unix_nano"
    expected = ["record 0", "record 1", "record 2"]

    def content(format: str) -> bytes:
        body = {"sql": sql, "params": [service]}
        return api.post(f"/api/v1/sql?format={format}", json=body, headers=FIRST).content

    assert [row[0] for row in json.loads(content("json"))["rows"]] == expected
    assert [row[0] for row in csv.reader(content("csv").decode().splitlines())] == ["body", *expected]
    assert pa.ipc.open_stream(content("arrow")).read_all()["body"].to_pylist() == expected
    (tmp_path / "x.parquet").write_bytes(content("parquet"))
    assert pq.read_table(tmp_path / "x.parquet")["body"].to_pylist() == expected


def test_a_trace_comes_back_as_it_was_sent(pair: Pair) -> None:
    api, receiver = pair
    request = spans(new_service(), 3)
    trace_id = request.resource_spans[0].scope_spans[0].spans[0].trace_id
    for span in request.resource_spans[0].scope_spans[0].spans:
        span.trace_id = trace_id
    sent(receiver, "spans", request)
    answer = api.get(f"/api/v1/traces/{trace_id.hex()}?logs=true", headers=FIRST)
    back = ExportTraceServiceRequest.FromString(
        request_from_json(
            "spans", json.dumps({"resourceSpans": answer.json()["resourceSpans"]}).encode(), depth_max=32
        )
    )
    assert canonical_spans(back) == canonical_spans(request)
    assert api.get(f"/api/v1/traces/{trace_id.hex()}", headers=SECOND).status_code == 404


def test_logs_are_paged_while_more_arrive(pair: Pair) -> None:
    """Among them records that are equal in everything, across the boundaries of pages."""
    api, receiver = pair
    service = new_service()
    request = logs(service, 20)
    records = request.resource_logs[0].scope_logs[0].log_records
    for record in records[5:12]:
        record.CopyFrom(records[5])
    sent(receiver, "logs", request)
    shown: list[str] = []
    cursor: str | None = None
    for _ in range(100):
        more = {} if cursor is None else {"cursor": cursor}
        page = api.get("/api/v1/logs", params=RANGE | {"service": service, "limit": 3} | more, headers=FIRST)
        assert page.status_code == 200, page.text
        shown += [record["body"] for record in page.json()["records"]]
        cursor = page.json()["next"]
        if cursor is None:
            break
        newer = logs(service)
        newer.resource_logs[0].scope_logs[0].log_records[0].body.string_value = "newer"
        sent(receiver, "logs", newer)
    assert sorted(shown) == sorted(record.body.string_value for record in records)
    assert shown[0] == "record 19"


def test_spans_are_found_by_their_filters(pair: Pair) -> None:
    api, receiver = pair
    service = new_service()
    request = spans(service, 2)
    slow = request.resource_spans[0].scope_spans[0].spans[1]
    slow.end_time_unix_nano = slow.start_time_unix_nano + 2 * 10**9
    slow.status.code = 2
    slow.attributes.add(key="http.response.status_code").value.int_value = 502
    sent(receiver, "spans", request)
    for more in (
        {"duration_min": "1.5s"},
        {"status": "error"},
        {"attr": "http.response.status_code:502"},
        {"q": "RECORD 1"},
        {"regex": "1$"},
        {"name": "record 1"},
        {"trace_id": slow.trace_id.hex()},
    ):
        page = api.get("/api/v1/spans", params=RANGE | {"service": service} | more, headers=FIRST).json()
        assert [record["name"] for record in page["records"]] == ["record 1"], more
        assert page["records"][0]["attributes"] == {"http.response.status_code": 502}


def test_counts_and_traces_come_from_what_was_just_acked(pair: Pair) -> None:
    api, receiver = pair
    service = new_service()
    request = spans(service, 3)
    root, child, other = request.resource_spans[0].scope_spans[0].spans
    child.trace_id, child.parent_span_id = root.trace_id, root.span_id
    child.end_time_unix_nano += 2 * 10**9
    child.status.code = 2
    sent(receiver, "spans", request)
    sent(receiver, "logs", logs(service, 5))

    def asked(path: str, headers: dict[str, str] = FIRST, **more: str) -> Any:
        answer = api.get(f"/api/v1/{path}", params=RANGE | {"service": service} | more, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    for path, by, expected in (
        ("logs", "severity", {"unset": 5}),
        ("logs", "service", {service: 5}),
        ("spans", "status", {"unset": 2, "error": 1}),
        ("spans", "none", {"all": 3}),
    ):
        series = asked(f"{path}/counts", by=by)["series"]
        assert {each["name"]: sum(each["counts"]) for each in series} == expected
    assert asked("logs/counts", SECOND)["total"] == 0
    for order in ("newest", "slowest"):
        (found,) = asked("traces", order=order, status="error")["traces"]
        assert (found["trace_id"], found["root_name"]) == (root.trace_id.hex(), "record 0")
        assert (found["spans"], found["matched"], found["duration_ms"]) == (2, 1, 2000.001)
        ids = [trace["trace_id"] for trace in asked("traces", order=order)["traces"]]
        assert sorted(ids) == sorted([root.trace_id.hex(), other.trace_id.hex()])
    assert asked("traces", SECOND)["traces"] == []


def test_tenants_see_their_own_alone(pair: Pair) -> None:
    api, receiver = pair
    service = new_service()
    sent(receiver, "logs", logs(service, 2), FIRST)
    sent(receiver, "logs", logs(service, 5), SECOND)
    for headers, count in ((FIRST, 2), (SECOND, 5)):
        assert api.rows("SELECT count(*) FROM logs WHERE service_name = ?", service, headers=headers) == [
            [count]
        ]
        page = api.get("/api/v1/logs", params=RANGE | {"service": service}, headers=headers).json()
        assert len(page["records"]) == count
    tables = {
        key: {t["name"]: t for t in api.get("/api/v1/tables", headers=headers).json()["tables"]}
        for key, headers in (("first", FIRST), ("second", SECOND))
    }
    assert set(tables["first"]) >= {"logs", "spans", "metrics", "events"}
    assert tables["second"]["logs"]["tail_rows"] == 5
    assert api.get("/api/v1/tables/spans", headers=FIRST).json()["name"] == "spans"


def test_roles_and_keys_are_asked_for(pair: Pair) -> None:
    api, _ = pair
    assert api.sql("SELECT 1").status_code == 401
    assert api.sql("SELECT 1", headers=bearer("fz_writer")).status_code == 403
    assert api.sql("SELECT 1", headers={"x-api-key": "fz_first"}).status_code == 200
    assert api.get("/iceberg/v1/config", headers=FIRST).status_code == 403
    assert api.get("/iceberg/v1/config", headers=SECOND).status_code == 200


@pytest.mark.parametrize(
    ("sql", "status", "code"),
    [
        ("SELEC 1", 400, "query_invalid"),
        ("SELECT servce_name FROM logs", 400, "query_invalid"),
        ("SELECT * FROM nowhere", 400, "query_invalid"),
        ("SELECT * FROM read_csv('/etc/passwd')", 403, "query_refused"),
    ],
)
def test_each_error_has_its_status_and_code(pair: Pair, sql: str, status: int, code: str) -> None:
    answer = pair[0].sql(sql, headers=FIRST)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text


def test_an_answer_that_hits_a_limit_on_its_way_is_not_taken_for_a_whole_one(pair: Pair) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        pair[0].sql("SELECT range FROM range(3000000)", headers=FIRST)


BOMB = "SELECT count(*) FROM range(10000000000) a, range(100000) b WHERE a.range + b.range = 7"


def test_a_query_can_be_watched_and_cancelled_and_its_limit_holds(pair: Pair) -> None:
    api, _ = pair
    limited = api.post("/api/v1/sql", json={"sql": BOMB, "seconds_max": 0.5}, headers=FIRST)
    assert (limited.status_code, limited.json()["error"]["limit"]) == (422, "query.seconds_max")
    with _asking(api, "watched"):
        assert api.get("/api/v1/queries/watched", headers=FIRST).json()["state"] in ("running", "planning")
        assert api.get("/api/v1/queries/watched", headers=SECOND).status_code == 404
        delete = httpx.delete(f"{api.url}/api/v1/queries/watched", headers=FIRST, verify=False)
        assert delete.status_code == 204
        assert wait_until(lambda: not _runs(api, "watched"), seconds_max=20)


def test_a_client_that_hangs_up_ends_its_query(pair: Pair) -> None:
    api, _ = pair
    with _asking(api, "left"):
        pass
    assert wait_until(lambda: not _runs(api, "left"), seconds_max=15)
    assert api.rows("SELECT 1", headers=FIRST) == [[1]]


def _runs(api: Api, id: str) -> bool:
    return api.get(f"/api/v1/queries/{id}", headers=FIRST).status_code == 200


class _asking:  # noqa: N801
    """A connection on which a long query was asked; it is closed at the end, answered or not."""

    def __init__(self, api: Api, id: str) -> None:
        self.api, self.id = api, id

    def __enter__(self) -> None:
        body = json.dumps({"sql": BOMB, "id": self.id}).encode()
        url = httpx.URL(self.api.url)
        self.connection = socket.create_connection((url.host, url.port), timeout=20)
        head = (
            f"POST /api/v1/sql HTTP/1.1\r\nhost: {url.host}\r\nauthorization: Bearer fz_first\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self.connection.sendall(head.encode() + body)
        assert wait_until(lambda: _runs(self.api, self.id), seconds_max=20)

    def __exit__(self, *_: object) -> None:
        self.connection.close()


def test_pages_and_health_and_metrics_are_served(pair: Pair) -> None:
    api, _ = pair
    page = api.get("/api/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "/api/v1/sql" in page.text
    assert "/api/v1/sql" in api.get("/api/openapi.json").json()["paths"]
    for path in ("/", "/api", "/healthz", "/readyz", "/livez"):
        assert api.get(path).status_code == 200, path
    assert "frazil_api_requests_total" in api.get("/metrics").text


def test_http_2_is_spoken(pair: Pair) -> None:
    api, _ = pair
    with httpx.Client(http1=False, http2=True, verify=False) as client:
        answer = client.post(f"{api.url}/api/v1/sql", json={"sql": "SELECT 1"}, headers=FIRST)
    assert (answer.http_version, answer.json()["rows"]) == ("HTTP/2", [[1]])


def test_no_payload_and_no_key_is_in_the_log(pair: Pair) -> None:
    api, receiver = pair
    service = new_service()
    sent(receiver, "logs", logs(service))
    api.rows("SELECT * FROM logs WHERE service_name = ?", service, headers=FIRST)
    api.get("/api/v1/logs", params=RANGE | {"service": service, "q": "secret words"}, headers=FIRST)
    log = api.log()
    assert service not in log
    assert "secret words" not in log
    assert not any(key in log for key in KEYS)


def test_without_keys_this_machine_asks_and_strange_names_do_not(tmp_path: Path) -> None:
    with running_api(tmp_path) as (api, receiver):
        body = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"hello"}}]}]}]}'
        assert post(receiver, "logs", body, JSON).status_code == 200
        assert api.rows("SELECT body FROM logs") == [["hello"]]
        with httpx.Client(http1=False, http2=True, verify=False) as client:
            assert client.get(f"{api.url}/api/v1/tables").status_code == 200
        assert api.get("/api/v1/tables", headers={"host": "evil.example"}).status_code == 403
        begin = time.monotonic()
        with _stuck(api):
            assert api.stop(signal.SIGTERM) == 0
        assert time.monotonic() - begin < 15
        assert "Traceback" not in api.log()


class _stuck:  # noqa: N801
    """A client that sends half a request, and waits."""

    def __init__(self, api: Api) -> None:
        self.url = httpx.URL(api.url)

    def __enter__(self) -> None:
        self.connection = socket.create_connection((self.url.host, self.url.port), timeout=20)
        self.connection.sendall(
            b"POST /api/v1/sql HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 10\r\n\r\n{"
        )

    def __exit__(self, *_: object) -> None:
        self.connection.close()


@pytest.mark.slow
def test_tls_is_spoken_and_renewed_certificates_are_used(tmp_path: Path) -> None:
    servers = Authority("servers")
    issued = servers.issue("api")
    paths = {name: tmp_path / name for name in ("api.crt", "api.key", "servers.crt")}
    paths["api.crt"].write_bytes(issued.certificate)
    paths["api.key"].write_bytes(issued.key)
    paths["servers.crt"].write_bytes(servers.certificate)
    trusted = ssl.create_default_context(cafile=str(paths["servers.crt"]))
    tls = {
        "cert_file": str(paths["api.crt"]),
        "key_file": str(paths["api.key"]),
        "reload_interval_seconds": 0.1,
    }
    with running_api(tmp_path / "data", {"serve": {"tls": tls}}, verify=trusted) as (api, _):
        assert api.rows("SELECT 1") == [[1]]
        renewed = servers.issue("api")
        paths["api.crt"].write_bytes(renewed.certificate)
        paths["api.key"].write_bytes(renewed.key)
        assert wait_until(lambda: _serial(api, trusted) == renewed.serial, seconds_max=60)
        # The worker before it may still take a connection, and then says that it is about to end.
        assert wait_until(lambda: api.sql("SELECT 1").status_code == 200, seconds_max=30)


def _serial(api: Api, trusted: ssl.SSLContext) -> int | None:
    url = httpx.URL(api.url)
    try:
        with (
            socket.create_connection((url.host, url.port), timeout=5) as raw,
            trusted.wrap_socket(raw, server_hostname="localhost") as wrapped,
        ):
            certificate = wrapped.getpeercert()
    except OSError:
        return None
    return int(str(certificate["serialNumber"]), 16) if certificate else None


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    from frazil.config import Config
    from frazil.errors import ConfigError
    from frazil.serve.run import run

    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        config = Config.model_validate({"data_dir": str(tmp_path), "serve": {"listen": f"127.0.0.1:{port}"}})
        with pytest.raises(ConfigError, match=r"serve\.listen"):
            run(config)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b'content-length: 1000\r\n\r\n{"sql":', b""),
        (b"transfer-encoding: chunked\r\n\r\nzz\r\n", b"400"),
    ],
    ids=["half a body", "a broken chunk"],
)
def test_a_body_that_does_not_come_to_its_end_is_no_defect(pair: Pair, sent: bytes, status: bytes) -> None:
    api, _ = pair
    answered = 'frazil_api_requests_total{route="/api/v1/sql",status="400"}'

    def refused() -> float:
        lines = api.get("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(answered))

    before, logged = refused(), len(api.log())
    address = httpx.URL(api.url)
    with socket.create_connection((address.host, address.port or 80), 30) as connection:
        head = f"POST /api/v1/sql HTTP/1.1\r\nhost: {address.host}\r\nauthorization: Bearer fz_first\r\n"
        connection.sendall(head.encode() + b"content-type: application/json\r\n" + sent)
        if status:
            assert connection.recv(4096).split(b" ")[1] == status
    assert wait_until(lambda: refused() == before + 1, seconds_max=30)
    assert not re.search("internal error|unmapped error", api.log()[logged:])
