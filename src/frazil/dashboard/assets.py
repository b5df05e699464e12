"""Streamlit's scripts, some megabytes that never change, compressed for browsers on other machines."""

from __future__ import annotations

import gzip
from ipaddress import ip_address

from anyio import to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_PATH = "/static/"
_TYPES = ("application/javascript", "text/javascript", "text/css", "application/json", "image/svg+xml")
_BYTES_MIN = 1024
_KEPT_BYTES_MAX = 32 << 20
_LEVEL = 6


class CompressedAssets:
    """Compresses an asset when it is first asked for, and keeps that: their names change with their content.

    Not for this machine, where bytes are cheaper than the time to compress them.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._kept: dict[str, bytes] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _is_wanted(scope):
            await self._app(scope, receive, send)
            return
        answer = _Answer(self._kept, scope["path"], send)
        await self._app(scope, receive, answer.send)


class _Answer:
    """Of the app within, held back until it is whole if it is to be compressed."""

    def __init__(self, kept: dict[str, bytes], path: str, send: Send) -> None:
        self._kept, self._path, self._send = kept, path, send
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
        found = self._kept.get(self._path)
        if found is None:
            body = b"".join(self._body)
            found = await to_thread.run_sync(lambda: gzip.compress(body, _LEVEL, mtime=0))
            if sum(map(len, self._kept.values())) + len(found) <= _KEPT_BYTES_MAX:
                self._kept[self._path] = found
        headers = MutableHeaders(raw=list(start["headers"]))
        headers["content-encoding"] = "gzip"
        headers["content-length"] = str(len(found))
        headers.add_vary_header("accept-encoding")
        if (tag := headers.get("etag")) is not None:  # other bytes than those without
            headers["etag"] = tag.removesuffix('"') + '-gzip"'
        del headers["accept-ranges"]
        await self._send({**start, "headers": headers.raw})
        await self._send({"type": "http.response.body", "body": found})


def _is_wanted(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] != "GET" or not scope["path"].startswith(_PATH):
        return False
    headers = Headers(scope=scope)
    if "range" in headers:
        return False
    encodings = {each.partition(";")[0].strip() for each in headers.get("accept-encoding", "").split(",")}
    return "gzip" in encodings and not _is_here(scope)


def _is_here(scope: Scope) -> bool:
    client = scope.get("client")
    try:
        return client is None or ip_address(client[0]).is_loopback
    except ValueError:  # a socket of this machine
        return True


def _is_compressible(start: Message) -> bool:
    headers = Headers(raw=start["headers"])
    kind = headers.get("content-type", "").partition(";")[0]
    size = int(headers.get("content-length", "0"))
    return (
        start["status"] == 200 and kind in _TYPES and size >= _BYTES_MIN and "content-encoding" not in headers
    )
