"""Access control: the login page, and the middleware that refuses requests without a session."""

from __future__ import annotations

import contextlib
import html
import ipaddress
import re
from collections import Counter
from collections.abc import Iterator
from string import Template
from urllib.parse import urlencode, urlsplit

import structlog
from anyio import to_thread
from prometheus_client import Counter as CounterMetric
from prometheus_client import Gauge
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from frazil.dashboard.api_client import ApiError
from frazil.dashboard.app_state import COOKIE, AppState
from frazil.dashboard.format import message_html

_MONITORING_PATHS = ("/livez", "/readyz", "/healthz", "/metrics", "/status", "/_stcore/health")
"""Allowed for any host name: they contain no telemetry."""
_OPEN_PATHS = {"/login", "/logout", *_MONITORING_PATHS}
_OPEN_FOLDER = "/static/"
"""Streamlit's scripts and styles, which contain no data."""
_STREAMLIT = "/_stcore/"
_STREAMLIT_USED = ("/_stcore/health", "/_stcore/host-config", "/_stcore/stream", "/_stcore/bidi-components/")
"""The only paths that pages need. Among the others, uploads would fill the memory."""
_LOOPBACK = {"localhost", "127.0.0.1", "[::1]"}
_FORM_BYTES_MAX = 8 * 1024

SOCKETS = Gauge("frazil_dashboard_sockets", "Open websockets of dashboard pages.")
REFUSED = CounterMetric(
    "frazil_dashboard_refused_total",
    "Requests and websockets refused by the dashboard, by reason: path (not used by any page), host (a host "
    "name other than localhost without API keys, or a foreign origin), session (not logged in), or the name "
    "of the exceeded limit on open websockets.",
    ["reason"],
)
for _reason in ("path", "host", "session", "dashboard.sockets_max", "dashboard.sockets_per_address_max"):
    REFUSED.labels(_reason)

log = structlog.get_logger("frazil.dashboard")

_PAGE = Template("""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>frazil: log in</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
:root{color-scheme:light dark;--ink:#0f2333;--paper:#f6f9fb;--card:#fff;--edge:#d5e0e7;--ice:#0b7a99;
--bad:#7d353b;--bad-ground:#ff2b2b17}
@media (prefers-color-scheme:dark){
:root{--ink:#e3edf3;--paper:#0b141c;--card:#111e29;--edge:#25394a;--ice:#4cc3e0;--bad:#ffdede;
--bad-ground:#ff6c6c33}
}
body{margin:0;min-height:100vh;display:grid;place-items:center;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,sans-serif}
form{background:var(--card);border:1px solid var(--edge);border-radius:12px;padding:2rem;
width:min(24rem,86vw)}
h1{margin:0 0 .25rem;font-size:1.4rem}p{margin:.25rem 0 1rem;opacity:.8;font-size:.95rem}
label{display:block;font-size:.85rem;margin-bottom:.3rem}
input{box-sizing:border-box;width:100%;padding:.6rem .7rem;border:1px solid var(--edge);border-radius:8px;
background:var(--paper);color:inherit;font:inherit}
button{margin-top:1rem;width:100%;padding:.6rem;border:0;border-radius:8px;background:var(--ice);color:#fff;
font:inherit;font-weight:600;cursor:pointer}
.error{margin:.5rem 0 1rem;padding:.6rem .8rem;border-radius:8px;opacity:1;color:var(--bad);
background:var(--bad-ground)}
code{font-size:.9em}</style></head><body>
<form method="post" action="/login"><h1>frazil</h1>
<p>Log in with an API key that has the role <code>read</code>.</p>$error
<label for="key">API key</label>
<input id="key" name="key" type="password" autocomplete="current-password" placeholder="fz_…" autofocus
required>
<input type="hidden" name="next" value="$next"><button type="submit">Log in</button>
<p style="margin:1rem 0 0">No key yet? Create one with <code>frazil keys new --tenant NAME</code>.</p>
</form></body></html>""")

_NO_KEYS = Template("""Without API keys, the dashboard is only available at localhost and 127.0.0.1. Either
- open $scheme://127.0.0.1:$port on its host, or here after `ssh -L $port:127.0.0.1:$port HOST`, or
- create a key with `frazil keys new --tenant NAME`, add it to the configuration and restart frazil.
""")


class Sockets:
    """Counts open websockets, in total and per address. IPv6 addresses of one /64 network count as one."""

    def __init__(self, sockets_max: int, per_address_max: int) -> None:
        self._max, self._per_address_max = sockets_max, per_address_max
        self._open: Counter[str] = Counter()

    @contextlib.contextmanager
    def opened(self, address: str) -> Iterator[str | None]:
        """Counts a socket while it is open. Yields the name of the exceeded limit, or None."""
        address = _network(address)
        if self._open.total() >= self._max:
            yield "dashboard.sockets_max"
            return
        if self._open[address] >= self._per_address_max:
            yield "dashboard.sockets_per_address_max"
            return
        self._open[address] += 1
        SOCKETS.inc()
        try:
            yield None
        finally:
            SOCKETS.dec()
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if (mapped := getattr(found, "ipv4_mapped", None)) is not None:
        return str(mapped)
    return str(ipaddress.ip_network((found, 64), strict=False)) if found.version == 6 else address


class Gate:
    """Middleware around the application. Without API keys it refuses host names other than localhost, with
    keys it refuses requests without a session. It always refuses uploads and other unused paths of Streamlit.
    """

    def __init__(self, app: ASGIApp, state: AppState, sockets: Sockets) -> None:
        self._app, self._state, self._sockets = app, state, sockets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        path = scope["path"]
        if path.startswith(_STREAMLIT) and not path.startswith(_STREAMLIT_USED):
            await _deny(scope, receive, send, 404, "Not found.\n", "path")
            return
        if (
            path not in _MONITORING_PATHS
            and _host(connection) not in _LOOPBACK
            and not await self._is_locked()
        ):
            # DNS rebinding: another site could point its host name at this address and read the data.
            await _refuse(scope, receive, send)
            return
        if scope["type"] == "websocket" and not _is_same_origin(connection):
            await _refuse(scope, receive, send)
            return
        is_open = path in _OPEN_PATHS or path.startswith(_OPEN_FOLDER)
        if not is_open and await self._needs_login(connection):
            await _redirect_to_login(connection, scope, receive, send)
            return
        if scope["type"] == "websocket":
            await self._open_socket(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _open_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        address, _ = scope.get("client") or ("", None)
        with self._sockets.opened(address) as bound:
            if bound is None:
                await self._app(scope, receive, send)
                return
        log.warning("websocket refused", bound=bound, address=address)
        await _deny(scope, receive, send, 429, f"Too many open pages: {bound} is reached.\n", bound)

    async def _needs_login(self, connection: HTTPConnection) -> bool:
        if self._state.sessions.use(connection.cookies.get(COOKIE)) is not None:
            return False
        return await self._is_locked()

    async def _is_locked(self) -> bool:
        if self._state.has_keys:
            return True
        return await to_thread.run_sync(lambda: self._state.is_locked)  # may call the API


def _host(connection: HTTPConnection) -> str:
    """Returns the host name without the port; IPv6 in brackets."""
    return re.sub(r":\d+$", "", connection.headers.get("host", "")).lower()


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    _, port = scope.get("server") or ("", None)
    text = _NO_KEYS.substitute(scheme=scope.get("scheme", "http"), port=port or 8501)
    await _deny(scope, receive, send, 421, text, "host")


async def _redirect_to_login(connection: HTTPConnection, scope: Scope, receive: Receive, send: Send) -> None:
    """Redirects pages to the login form. Denies everything else with 401."""
    path = scope["path"]
    if scope["type"] == "websocket" or path.startswith(_STREAMLIT) or scope["method"] not in ("GET", "HEAD"):
        await _deny(scope, receive, send, 401, "Log in first: open /login.\n", "session")
        return
    next_path = path + (f"?{connection.url.query}" if connection.url.query else "")
    redirect = RedirectResponse(f"/login?{urlencode({'next': next_path})}", status_code=303)
    await redirect(scope, receive, send)


async def _deny(scope: Scope, receive: Receive, send: Send, status: int, text: str, reason: str) -> None:
    """Responds in place of the application, without reading the request body."""
    REFUSED.labels(reason).inc()
    response = Response(text, status_code=status, media_type="text/plain")
    if scope["type"] == "http":
        response.headers["connection"] = "close"
        await response(scope, receive, send)
    elif "websocket.http.response" in scope.get("extensions", {}):
        await WebSocket(scope, receive, send).send_denial_response(response)
    else:
        await send({"type": "websocket.close", "code": 1008})


class Login:
    """`GET` and `POST /login`, and `GET /logout`."""

    def __init__(self, state: AppState, *, secure: bool) -> None:
        self._state, self._secure = state, secure

    async def show(self, request: Request) -> Response:
        return _page(_local_path(request.query_params.get("next", "/")))

    async def take(self, request: Request) -> Response:
        if not _is_same_origin(request):
            return _page("/", "The login form was submitted from another site.", status=403)
        if int(request.headers.get("content-length") or 0) > _FORM_BYTES_MAX:
            return _page("/", "The API key is too long.", status=413)
        try:
            form = await request.form(max_files=0, max_fields=4, max_part_size=_FORM_BYTES_MAX)
        except HTTPException:
            return _page("/", "The login form is invalid.", status=400)
        key, next_path = str(form.get("key", "")).strip(), _local_path(str(form.get("next", "/")))
        if not key.isascii() or not key.isprintable():
            return _page(next_path, "This is not an API key: API keys start with fz_.", status=401)
        try:
            await to_thread.run_sync(lambda: self._state.api_client.request("GET", "/api/v1/tables", key))
        except ApiError as error:
            return _page(next_path, error.message, status=401 if error.is_auth_error else 502)
        response = RedirectResponse(next_path, status_code=303)
        token = self._state.sessions.begin(key)
        # Lax, so that links from other sites work.
        response.set_cookie(COOKIE, token, httponly=True, samesite="lax", secure=self._secure, path="/")
        return response

    async def leave(self, request: Request) -> Response:
        self._state.sessions.end(request.cookies.get(COOKIE))
        response = RedirectResponse("/login", status_code=303)
        response.delete_cookie(COOKIE, path="/")
        return response


def _page(next_path: str, message: str = "", status: int = 200) -> Response:
    error = f'<p class="error" role="alert">{message_html(message)}</p>' if message else ""
    return HTMLResponse(
        _PAGE.substitute(error=error, next=html.escape(next_path, quote=True)),
        status_code=status,
        headers={
            "cache-control": "no-store",
            "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
            "frame-ancestors 'none'",
            "referrer-policy": "same-origin",  # with no-referrer, browsers hide the form's origin too
            "x-content-type-options": "nosniff",
        },
    )


def _local_path(next_path: str) -> str:
    """Returns the path if it is one of this dashboard, else /."""
    parts = urlsplit(next_path)
    is_local = next_path.startswith("/") and not next_path.startswith(("//", "/\\")) and not parts.netloc
    return (
        next_path
        if is_local and next_path.isprintable() and not parts.path.startswith(("/login", "/logout"))
        else "/"
    )


def _is_same_origin(connection: HTTPConnection) -> bool:
    """Prevents login CSRF, and scripts of other sites from opening a websocket with the user's cookie."""
    origin = connection.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == connection.headers.get("host")
