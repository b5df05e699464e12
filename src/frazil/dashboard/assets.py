"""Compresses Streamlit's static assets (several MB) for browsers on other machines."""

from __future__ import annotations

import gzip
from ipaddress import ip_address

from anyio import to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_PATH = "/static/"
_TYPES = ("application/javascript", "text/javascript", "text/css", "application/json", "image/svg+xml")
_BYTES_MIN = 1024
_CACHE_BYTES_MAX = 32 << 20
_LEVEL = 6


class CompressedAssets:
    """Middleware that compresses an asset at the first request and caches the result: the names of assets
    change with their content. Requests from this machine get uncompressed assets, which is faster.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._cache: dict[str, bytes] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _accepts_gzip(scope):
            await self._app(scope, receive, send)
            return
        response = _CompressedResponse(self._cache, scope["path"], send)
        await self._app(scope, receive, response.send)


class _CompressedResponse:
    """Buffers the response of the application until it is complete, if it is compressible."""

    def __init__(self, cache: dict[str, bytes], path: str, send: Send) -> None:
        self._cache, self._path, self._send = cache, path, send
        self._start: Message | None = None
        self._body: list[bytes] = []

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_compressible(message):
            self._start = message
        elif self._start is None or message["type"] != "http.response.body":
            await self._send(message)
        else:
            self._body.append(message.get("body", b""))
            if not message.get("more_body"):
                await self._finish(self._start)

    async def _finish(self, start: Message) -> None:
        found = self._cache.get(self._path)
        if found is None:
            body = b"".join(self._body)
            found = await to_thread.run_sync(lambda: gzip.compress(body, _LEVEL, mtime=0))
            if sum(map(len, self._cache.values())) + len(found) <= _CACHE_BYTES_MAX:
                self._cache[self._path] = found
        headers = MutableHeaders(raw=list(start["headers"]))
        headers["content-encoding"] = "gzip"
        headers["content-length"] = str(len(found))
        headers.add_vary_header("accept-encoding")
        if (tag := headers.get("etag")) is not None:  # the uncompressed bytes have another tag
            headers["etag"] = tag.removesuffix('"') + '-gzip"'
        del headers["accept-ranges"]
        await self._send({**start, "headers": headers.raw})
        await self._send({"type": "http.response.body", "body": found})


def _accepts_gzip(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] != "GET" or not scope["path"].startswith(_PATH):
        return False
    headers = Headers(scope=scope)
    if "range" in headers:
        return False
    encodings = {each.partition(";")[0].strip() for each in headers.get("accept-encoding", "").split(",")}
    return "gzip" in encodings and not _is_local(scope)


def _is_local(scope: Scope) -> bool:
    client = scope.get("client")
    try:
        return client is None or ip_address(client[0]).is_loopback
    except ValueError:  # a Unix socket
        return True


def _is_compressible(start: Message) -> bool:
    headers = Headers(raw=start["headers"])
    kind = headers.get("content-type", "").partition(";")[0]
    size = int(headers.get("content-length", "0"))
    return (
        start["status"] == 200 and kind in _TYPES and size >= _BYTES_MIN and "content-encoding" not in headers
    )
