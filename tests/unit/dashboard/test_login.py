"""The way in: what is refused, what is remembered, and where one lands."""

from __future__ import annotations

import contextlib
import http.server
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from frazil.dashboard.api_client import ApiClient, ApiError, ApiSession
from frazil.dashboard.app_state import COOKIE, AppState, Sessions
from frazil.dashboard.login import Gate, Login, Sockets
from tests.support.event_loop import in_a_loop

KEY = "fz_" + "a" * 40


class Asked(http.server.BaseHTTPRequestHandler):
    """Knows one key, and says what it was asked."""

    def do_GET(self) -> None:
        is_known = self.headers.get("Authorization") == f"Bearer {KEY}"
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        self._answer(200, b'{"tables": []}') if is_known else self._answer(
            401, b'{"error": {"code": "unauthenticated", "message": "this key is not known"}}'
        )

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def http_stub() -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Asked)
    server.daemon_threads = True
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def state() -> Iterator[AppState]:
    with http_stub() as server:
        api_client = ApiClient(f"http://127.0.0.1:{server.server_port}")
        yield AppState(api_client, Sessions(60), has_keys=True, is_demo=False, otlp_http="", otlp_grpc="")
        api_client.close()


def client(state: AppState, **given: Any) -> httpx.AsyncClient:
    async def shown(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"page {request.url.path}")

    login = Login(state, secure=False)
    app = Starlette(
        routes=[
            Route("/login", login.show, methods=["GET"]),
            Route("/login", login.take, methods=["POST"]),
            Route("/logout", login.leave),
            Route("/{path:path}", shown),
        ],
        middleware=[Middleware(Gate, state=state, sockets=Sockets(10, 10))],
    )
    base = {"base_url": "http://localhost:8501"} | given
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), **base)


@in_a_loop
async def test_a_page_without_a_login_leads_to_the_login_and_back(state: AppState) -> None:
    async with client(state) as browser:
        away = await browser.get("/logs?q=a+b&service=cart")
        assert (away.status_code, away.headers["location"]) == (
            303,
            "/login?next=%2Flogs%3Fq%3Da%2Bb%26service%3Dcart",
        )
        form = await browser.get(away.headers["location"])
        assert 'value="/logs?q=a+b&amp;service=cart"' in form.text
        back = await browser.post("/login", data={"key": KEY, "next": "/logs?q=a+b&service=cart"})
        assert (back.status_code, back.headers["location"]) == (303, "/logs?q=a+b&service=cart")
        cookie = back.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert KEY not in cookie
        assert (await browser.get("/logs")).text == "page /logs"
        await browser.get("/logout")
        assert (await browser.get("/logs")).status_code == 303


@in_a_loop
async def test_a_wrong_key_is_told_so_and_gets_no_session(state: AppState) -> None:
    async with client(state) as browser:
        for key in ("fz_wrong", "schlüssel", "line\nbreak", ""):
            answer = await browser.post("/login", data={"key": key})
            assert answer.status_code == 401
            assert "set-cookie" not in answer.headers
        assert "is not known" in (await browser.post("/login", data={"key": "fz_wrong"})).text


@pytest.mark.parametrize(
    "wanted",
    [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "",
        "/login",
        "/logout",
    ],
)
@in_a_loop
async def test_a_login_leads_to_no_other_place(state: AppState, wanted: str) -> None:
    async with client(state) as browser:
        answer = await browser.post("/login", data={"key": KEY, "next": wanted})
        assert answer.headers["location"] == "/"


@in_a_loop
async def test_what_an_address_says_is_not_html(state: AppState) -> None:
    async with client(state) as browser:
        page = await browser.get("/login", params={"next": '/"><script>alert(1)</script>'})
        assert "<script>" not in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]


@in_a_loop
async def test_a_form_of_another_page_is_refused(state: AppState) -> None:
    async with client(state) as browser:
        data = {"key": KEY}
        refused = await browser.post("/login", data=data, headers={"origin": "http://evil.example"})
        assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)
        taken = await browser.post("/login", data=data, headers={"origin": "http://localhost:8501"})
        assert taken.status_code == 303


@in_a_loop
async def test_without_keys_only_names_of_this_machine_lead_here(state: AppState) -> None:
    state.has_keys = False
    state._locked = (float("inf"), False)
    for name, status in (("localhost", 200), ("127.0.0.1", 200), ("[::1]", 200), ("evil.example", 421)):
        async with client(state, base_url=f"http://{name}:8501") as browser:
            assert (await browser.get("/logs")).status_code == status


@in_a_loop
async def test_a_stranger_is_told_the_ways_in(state: AppState) -> None:
    state.has_keys = False
    state._locked = (float("inf"), False)
    async with client(state, base_url="http://frazil.example:8501") as browser:
        said = (await browser.get("/logs")).text
    for way in ("http://127.0.0.1:8501", "ssh -L 8501:127.0.0.1:8501", "frazil keys new"):
        assert way in said


@in_a_loop
async def test_who_watches_it_may_use_any_name(state: AppState) -> None:
    state.has_keys = False
    state._locked = (float("inf"), False)
    async with client(state, base_url="http://10.1.2.3:8501") as browser:
        for path, status in (
            ("/livez", 200),
            ("/metrics", 200),
            ("/status", 200),
            ("/_stcore/health", 200),
            ("/metrics/x", 421),
        ):
            assert (await browser.get(path)).status_code == status


@in_a_loop
async def test_a_form_that_is_none_of_this_page_takes_no_memory(state: AppState) -> None:
    async with client(state) as browser:
        many = await browser.post("/login", data={str(number): "x" for number in range(5)})
        assert many.status_code == 400
        files = await browser.post("/login", files={"key": b"x"})
        assert files.status_code == 400


def test_a_session_that_has_ended_asks_nothing_more(state: AppState) -> None:
    token = state.sessions.begin(KEY)
    api = ApiSession(state.api_client, lambda: state.key_of(token))
    assert api.get("tables") == {"tables": []}
    state.sessions.end(token)
    with pytest.raises(ApiError, match="log in") as caught:
        api.get("tables")
    assert caught.value.is_auth_error


@in_a_loop
async def test_a_socket_that_a_page_elsewhere_opens_is_closed(state: AppState) -> None:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})

    for origin, first in (
        ("http://evil.example", "websocket.close"),
        ("http://localhost:8501", "websocket.accept"),
    ):
        cookie = f"{COOKIE}={state.sessions.begin(KEY)}"
        headers = [(b"host", b"localhost:8501"), (b"origin", origin.encode()), (b"cookie", cookie.encode())]
        scope = {"type": "websocket", "path": "/_stcore/stream", "headers": headers, "query_string": b""}
        await Gate(app, state, Sockets(10, 10))(scope, receive, send)
        assert sent.pop()["type"] == first


def test_sockets_are_bounded_in_all_and_for_each_address() -> None:
    sockets = Sockets(3, 2)
    with sockets.opened("10.0.0.1") as first, sockets.opened("10.0.0.1") as second:
        assert (first, second) == (None, None)
        with sockets.opened("10.0.0.1") as third:
            assert third == "dashboard.sockets_per_address_max"
        with sockets.opened("10.0.0.2") as other, sockets.opened("10.0.0.3") as last:
            assert (other, last) == (None, "dashboard.sockets_max")
    with sockets.opened("10.0.0.1") as again:
        assert again is None
    assert not sockets._open


def test_addresses_of_one_ipv6_network_are_one_client() -> None:
    sockets = Sockets(10, 1)
    with sockets.opened("2001:db8:0:1::1"), sockets.opened("2001:db8:0:1::2") as second:
        assert second == "dashboard.sockets_per_address_max"


def test_addresses_of_ipv4_stay_apart_when_they_are_written_as_ipv6() -> None:
    sockets = Sockets(10, 1)
    with sockets.opened("::ffff:10.1.2.3"), sockets.opened("::ffff:10.1.2.4") as second:
        assert second is None


def test_an_api_that_asks_for_a_key_locks_the_house_though_this_configuration_has_none(
    state: AppState,
) -> None:
    state.has_keys = False
    assert state.is_locked


def test_answers_are_remembered_as_long_as_they_are_fresh() -> None:
    with http_stub() as server:
        api_client = ApiClient(f"http://127.0.0.1:{server.server_port}")
        api = ApiSession(api_client, lambda: KEY)
        for _ in range(3):
            api.get("tables", {"a": [1, 2], "b": None, "c": ""}, cache_seconds=60)
        api.get("tables", cache_seconds=0)
        api.get("tables", cache_seconds=0)
        api.clear_cache()
        api.get("tables", {"a": [1, 2]}, cache_seconds=60)
        api_client.close()
        asked = server.asked  # type: ignore[attr-defined]
    assert asked == ["/api/v1/tables?a=1&a=2", "/api/v1/tables", "/api/v1/tables", "/api/v1/tables?a=1&a=2"]


def test_an_api_that_is_not_there_is_said_with_what_to_do() -> None:
    api_client = ApiClient("http://127.0.0.1:1")
    with pytest.raises(ApiError, match=r"does not answer.*frazil status") as caught:
        ApiSession(api_client, lambda: None).get("tables")
    assert caught.value.code == "unreachable"
    api_client.close()


def test_results_that_were_read_are_there_while_the_api_is_away() -> None:
    with http_stub() as server:
        api_client = ApiClient(f"http://127.0.0.1:{server.server_port}")
        api = ApiSession(api_client, lambda: KEY)
        read = api.get("tables", cache_seconds=0.001)
        api.get("status")
    away = ApiError("away", code="unreachable")
    last = api.last_results(away)
    time.sleep(0.01)  # then the result has expired
    assert last.get("tables", cache_seconds=0.001) is read
    for path, cache_seconds in (("status", 60.0), ("tables", 0.0), ("tables/logs", 60.0)):
        with pytest.raises(ApiError) as caught:
            last.get(path, cache_seconds=cache_seconds)
        assert caught.value is away
    with pytest.raises(ApiError, match="does not answer"):
        api.get("tables", cache_seconds=0.001)
    api_client.close()
