"""Each component does what it says: the tests that stand on them can then blame frazil."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, PermissionDeniedError

from . import fixtures
from .cache import ComponentMissingError, built_once
from .fixtures import FaultyProxyFactory
from .otelcol import running_collector
from .process import ComponentDiedError, answers, free_port, serving, wait_until
from .s3 import S3Server

NO_RETRIES = {"max_retries": 0}
HONEST = ["moto_s3", pytest.param("versitygw_s3", marks=[pytest.mark.go, pytest.mark.timeout(1800)])]


@pytest.fixture
def honest_s3(request: pytest.FixtureRequest) -> S3Server:
    server: S3Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> str:
    """A name no other test uses, whatever server it is made on."""
    return f"b{abs(hash(request.node.nodeid)):x}"


def creates_won(store: Any, path: str, *, writers: int) -> int:
    async def won(writer: int) -> bool:
        try:
            await store.put_async(path, str(writer).encode(), mode="create")
        except AlreadyExistsError:
            return False
        return True

    async def all_at_once() -> int:
        return sum(await asyncio.gather(*map(won, range(writers))))

    return asyncio.run(all_at_once())


# --- S3 ---


@pytest.mark.parametrize("honest_s3", HONEST, indirect=True)
def test_an_honest_store_refuses_a_second_create(honest_s3: S3Server, bucket: str) -> None:
    store = honest_s3.store(honest_s3.make_bucket(bucket))
    store.put("name", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        store.put("name", b"second", mode="create")
    assert bytes(store.get("name").bytes()) == b"first"


@pytest.mark.parametrize("honest_s3", HONEST, indirect=True)
def test_of_concurrent_creates_on_an_honest_store_one_wins(honest_s3: S3Server, bucket: str) -> None:
    store = honest_s3.store(honest_s3.make_bucket(bucket))
    assert [creates_won(store, f"name-{n}", writers=8) for n in range(10)] == [1] * 10


@pytest.mark.go
@pytest.mark.timeout(1800)
def test_versitygw_checks_signatures(versitygw_s3: S3Server, bucket: str) -> None:
    versitygw_s3.make_bucket(bucket)
    stranger = S3Server(versitygw_s3.endpoint, secret_key="wrong")
    with pytest.raises(PermissionDeniedError):
        stranger.store(bucket).put("name", b"")


def test_the_lying_store_lets_a_second_create_overwrite_the_first(lying_s3: S3Server, bucket: str) -> None:
    store = lying_s3.store(lying_s3.make_bucket(bucket))
    store.put("name", b"first", mode="create")
    store.put("name", b"second", mode="create")
    assert bytes(store.get("name").bytes()) == b"second"


def test_the_racy_store_refuses_creates_in_turn_but_not_side_by_side(racy_s3: S3Server, bucket: str) -> None:
    store = racy_s3.store(racy_s3.make_bucket(bucket))
    store.put("in-turn", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        store.put("in-turn", b"second", mode="create")
    assert creates_won(store, "side-by-side", writers=8) > 1


# --- processes ---


def http_server_command(port: int) -> list[str]:
    return [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_component_answers_inside_its_block_and_is_gone_after_it(tmp_path: Path) -> None:
    with serving("web", tmp_path, http_server_command, ready=answers) as port:
        assert answers(port)
    assert not accepts(port)
    assert "GET /" in (tmp_path / "web.log").read_text()


def test_a_component_dies_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    parent_code = f"""
import sys, time
from pathlib import Path
from tests.components.process import answers, serving
from tests.components.test_components import http_server_command
with serving("web", Path({str(tmp_path)!r}), http_server_command, ready=answers) as port:
    print(port, flush=True)
    sys.stdin.read()
"""
    root = Path(__file__).parents[2]
    parent = subprocess.Popen(
        [sys.executable, "-c", parent_code],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        port = int(parent.stdout.readline())
        assert accepts(port)
        parent.kill()
    assert wait_until(lambda: not accepts(port), seconds_max=10)


def test_a_component_that_ends_early_is_reported_with_its_log(tmp_path: Path) -> None:
    broken = [sys.executable, "-c", "import sys; sys.exit('no such luck')"]
    with (
        pytest.raises(ComponentDiedError, match="no such luck"),
        serving("broken", tmp_path, lambda port: broken, ready=answers),
    ):
        pass


def test_what_is_built_once_is_not_built_again(tmp_path: Path) -> None:
    def build(into: Path) -> None:
        (into / "program").write_text("built")

    def no_second_build(into: Path) -> None:
        raise AssertionError

    first = built_once("thing-1", "program", build, folder=tmp_path)
    assert built_once("thing-1", "program", no_second_build, folder=tmp_path) == first
    with pytest.raises(ZeroDivisionError):
        built_once("thing-2", "program", lambda into: 1 / 0, folder=tmp_path)  # type: ignore[arg-type,return-value]
    assert built_once("thing-2", "program", build, folder=tmp_path).read_text() == "built"


@pytest.mark.parametrize(("ci", "outcome"), [("1", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_missing_component_fails_in_ci_and_skips_elsewhere(
    ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise ComponentMissingError("a thing", "the package things")

    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="the package things"):
        fixtures._had(missing)


# --- the proxy ---


class Target(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bodies: list[bytes]

    def do_PUT(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"done")

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"3\r\nabc\r\n10000\r\n" + b"d" * 65536 + b"\r\n0\r\n\r\n")

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def target() -> Iterator[tuple[int, list[bytes]]]:
    """A small HTTP/1.1 server: its port, and the bodies that were PUT to it."""
    bodies: list[bytes] = []
    handler = type("TargetOfOneTest", (Target,), {"bodies": bodies})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port, bodies
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def connection_to(port: int, *, timeout_seconds: float = 10) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_seconds)
    try:
        yield connection
    finally:
        connection.close()


def exchange(
    connection: http.client.HTTPConnection, method: str, body: bytes | None = None
) -> tuple[int, bytes]:
    connection.request(method, "/x", body)
    response = connection.getresponse()
    return response.status, response.read()


def test_the_proxy_carries_one_request_after_another_on_one_connection(
    target: tuple[int, list[bytes]], faulty_proxy: FaultyProxyFactory
) -> None:
    port, bodies = target
    proxy = faulty_proxy("127.0.0.1", port)
    large = os.urandom(8 << 20)
    with connection_to(proxy.port) as connection:
        connection.connect()
        opened = connection.sock
        for _ in range(2):
            assert exchange(connection, "PUT", large) == (200, b"done")
            assert exchange(connection, "GET") == (200, b"abc" + b"d" * 65536)
            assert exchange(connection, "HEAD") == (200, b"")
        assert connection.sock is opened
    assert bodies == [large, large]
    assert [proxy.count(method) for method in ("PUT", "GET", "HEAD", "POST")] == [2, 2, 2, 0]


def test_the_proxy_tells_a_client_that_asks_first_to_continue(
    target: tuple[int, list[bytes]], faulty_proxy: FaultyProxyFactory
) -> None:
    port, bodies = target
    proxy = faulty_proxy("127.0.0.1", port)
    with (
        socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client,
        client.makefile("rb") as said,
    ):
        client.sendall(b"PUT /x HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
        assert said.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert said.readline() == b"\r\n"
        client.sendall(b"body")
        assert said.readline() == b"HTTP/1.1 200 OK\r\n"
    assert bodies == [b"body"]


def test_latency_is_added_once_per_request_however_large(
    target: tuple[int, list[bytes]], faulty_proxy: FaultyProxyFactory
) -> None:
    port, _ = target
    proxy = faulty_proxy("127.0.0.1", port, latency_seconds=0.3)

    def seconds(body: bytes) -> float:
        with connection_to(proxy.port) as connection:
            began = time.monotonic()
            assert exchange(connection, "PUT", body) == (200, b"done")
            return time.monotonic() - began

    assert seconds(b"small") >= 0.3
    assert 0.3 <= seconds(bytes(4 << 20)) < 3  # 64 segments or more: 19 s if each were delayed
    proxy.latency_seconds = 0
    assert seconds(b"small") < 0.3


def test_a_refusing_proxy_resets_what_is_open_and_takes_nothing_new_until_it_resumes(
    target: tuple[int, list[bytes]], faulty_proxy: FaultyProxyFactory
) -> None:
    port, bodies = target
    proxy = faulty_proxy("127.0.0.1", port)
    with connection_to(proxy.port) as connection:
        assert exchange(connection, "PUT", b"before") == (200, b"done")
        with proxy.refusing():
            assert not accepts(proxy.port)
            with pytest.raises((ConnectionError, http.client.RemoteDisconnected)):
                exchange(connection, "PUT", b"during")
        connection.close()
        assert exchange(connection, "PUT", b"after") == (200, b"done")
    assert bodies == [b"before", b"after"]


@pytest.mark.parametrize(
    ("how", "error"),
    [("close", http.client.RemoteDisconnected), ("hang", TimeoutError)],
    ids=["close", "hang"],
)
def test_a_dropped_response_hides_what_the_target_did(
    how: str, error: type[Exception], target: tuple[int, list[bytes]], faulty_proxy: FaultyProxyFactory
) -> None:
    port, bodies = target
    proxy = faulty_proxy("127.0.0.1", port)
    proxy.drop_response_once("PUT", how)
    with connection_to(proxy.port, timeout_seconds=1) as connection:
        assert exchange(connection, "GET")[0] == 200  # another method: untouched
        with pytest.raises(error):
            exchange(connection, "PUT", b"lost")
    assert bodies == [b"lost"]
    assert proxy.dropped("PUT") == 1
    with connection_to(proxy.port) as connection:
        assert exchange(connection, "PUT", b"told") == (200, b"done")


def test_the_proxy_can_answer_in_the_targets_stead(
    target: tuple[int, list[bytes]], faulty_proxy: FaultyProxyFactory
) -> None:
    port, bodies = target
    proxy = faulty_proxy("127.0.0.1", port)
    proxy.answer(503, body="slow down", times=2)
    with connection_to(proxy.port) as connection:
        assert [exchange(connection, "PUT", b"x")[0] for _ in range(3)] == [503, 503, 200]
    assert bodies == [b"x"]


@pytest.mark.go
@pytest.mark.timeout(1800)
def test_a_refusal_that_comes_before_the_upload_was_read_gets_through(
    versitygw_s3: S3Server, bucket: str, faulty_proxy: FaultyProxyFactory
) -> None:
    proxy = faulty_proxy(versitygw_s3.host, versitygw_s3.port)
    store = versitygw_s3.through(proxy).store(versitygw_s3.make_bucket(bucket), retry_config=NO_RETRIES)
    store.put("name", bytes(16 << 20), mode="create")
    with pytest.raises(AlreadyExistsError):
        store.put("name", bytes(16 << 20), mode="create")


# --- what obstore makes of it: frazil's S3 store is written for exactly this ---


@pytest.fixture
def proxied_moto(
    moto_s3: S3Server, bucket: str, faulty_proxy: FaultyProxyFactory
) -> tuple[Any, Callable[..., Any]]:
    """A proxy before moto, and a maker of stores on a fresh bucket behind it."""
    proxy = faulty_proxy(moto_s3.host, moto_s3.port)
    moto_s3.make_bucket(bucket)
    return proxy, lambda **options: moto_s3.through(proxy).store(bucket, **options)


def test_obstore_retries_a_create_whose_connection_broke_and_then_meets_its_own_object(
    proxied_moto: tuple[Any, Callable[..., Any]],
) -> None:
    proxy, store = proxied_moto
    proxy.drop_response_once("PUT")
    with pytest.raises(AlreadyExistsError):
        store().put("name", b"ours", mode="create")
    assert proxy.count("PUT") == 2


@pytest.mark.parametrize("how", ["close", "hang"])
def test_obstore_without_retries_leaves_the_fate_of_a_create_open(
    how: str, proxied_moto: tuple[Any, Callable[..., Any]]
) -> None:
    proxy, store = proxied_moto
    proxy.drop_response_once("PUT", how)
    hasty = store(retry_config=NO_RETRIES, client_options={"timeout": "1s"})
    with pytest.raises(GenericError, match="IncompleteMessage" if how == "close" else "kind: Timeout"):
        hasty.put("name", b"ours", mode="create")
    assert proxy.count("PUT") == 1
    assert bytes(hasty.get("name").bytes()) == b"ours"


def test_obstore_does_not_retry_a_create_that_timed_out(proxied_moto: tuple[Any, Callable[..., Any]]) -> None:
    proxy, store = proxied_moto
    proxy.drop_response_once("PUT", "hang")
    with pytest.raises(GenericError, match="kind: Timeout"):
        store(client_options={"timeout": "1s"}).put("name", b"ours", mode="create")
    assert proxy.count("PUT") == 1


def test_obstore_calls_a_conflict_already_exists_even_when_there_is_no_object(
    proxied_moto: tuple[Any, Callable[..., Any]],
) -> None:
    proxy, store = proxied_moto
    proxy.answer(409, body="<Error><Code>ConditionalRequestConflict</Code></Error>")
    with pytest.raises(AlreadyExistsError, match="409 Conflict"):
        store().put("name", b"ours", mode="create")
    with pytest.raises(FileNotFoundError):
        store().head("name")


def test_obstore_reports_a_refused_connection_as_a_generic_error(
    proxied_moto: tuple[Any, Callable[..., Any]],
) -> None:
    proxy, store = proxied_moto
    impatient = store(retry_config=NO_RETRIES)
    with proxy.refusing(), pytest.raises(GenericError, match="kind: Connect"):
        impatient.put("name", b"", mode="create")
    impatient.put("name", b"", mode="create")


# --- Go programs ---


@pytest.mark.go
@pytest.mark.timeout(1800)
def test_telemetrygens_logs_go_through_the_collector(
    tmp_path: Path, otel_collector: Path, telemetrygen: Path
) -> None:
    otlp = f"127.0.0.1:{free_port()}"
    config = {
        "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": otlp}}}},
        "exporters": {"debug": {"verbosity": "detailed"}},
        "service": {"pipelines": {"logs": {"receivers": ["otlp"], "exporters": ["debug"]}}},
    }
    with running_collector(tmp_path, config=config):
        subprocess.run(
            [
                telemetrygen,
                "logs",
                "--otlp-insecure",
                "--otlp-endpoint",
                otlp,
                "--logs",
                "7",
                "--rate",
                "0",
                "--body",
                "seven",
            ],
            check=True,
            capture_output=True,
        )
    assert (tmp_path / "collector.log").read_text().count("Body: Str(seven)") == 7
