"""The process behind `proxy.FaultyProxy`: an HTTP/1.1 proxy that misbehaves on request.

Usage: python proxy_process.py TARGET_HOST TARGET_PORT. Commands come in on stdin and are answered on stdout,
one JSON object a line; the process ends when stdin does. Standard library only, to start quickly.

A request is read whole before anything happens to it: what the target sees of it, it sees entirely.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

HEAD_BYTES_MAX = 256 * 1024
COPY_BYTES = 256 * 1024


@dataclass(frozen=True)
class Message:
    """One HTTP request or response: the start line, header lines as they came, and a request's body."""

    start: str
    headers: tuple[str, ...]
    body: bytes = b""

    def value(self, name: str) -> str:
        wanted = name.lower()
        return next(
            (v.strip() for k, _, v in (h.partition(":") for h in self.headers) if k.lower() == wanted), ""
        )

    def without(self, *names: str) -> Message:
        dropped = {name.lower() for name in names}
        kept = (h for h in self.headers if h.partition(":")[0].lower() not in dropped)
        return Message(self.start, tuple(kept), self.body)

    @property
    def method(self) -> str:
        return self.start.split(" ", 1)[0]

    @property
    def status(self) -> int:
        return int(self.start.split(" ", 2)[1])

    @property
    def chunked(self) -> bool:
        return "chunked" in self.value("Transfer-Encoding").lower()

    @property
    def closes(self) -> bool:
        """Whether the connection ends after this message."""
        asked = self.value("Connection").lower()
        return "close" in asked or ("HTTP/1.0" in self.start and "keep-alive" not in asked)

    def head(self) -> bytes:
        return "\r\n".join([self.start, *self.headers, "", ""]).encode("latin-1")


@dataclass
class Behaviour:
    latency_seconds: float = 0.0
    # "passed" to the target, "ignored" (header taken away), or "racy" (looked up, a gap, then written).
    conditional_puts: str = "passed"
    race_gap_seconds: float = 0.0
    # By method: ways in which the next responses get lost ("close", "hang"), and answers given without asking
    # the target.
    drops: dict[str, list[str]] = field(default_factory=dict)
    answers: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)


class ConnectionEndedError(Exception):
    """The other side ended the connection between two messages."""


class Upstream:
    """One client connection's connection to the target; opened again when the target has closed it.

    A bare socket and no asyncio stream: a target may refuse a large upload before having read it and then
    close, and a stream whose writing failed no longer gives out what had arrived.
    """

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._socket: socket.socket | None = None
        self._arrived = bytearray()

    async def send(self, request: Message) -> None:
        loop = asyncio.get_running_loop()
        if self._socket is None or self._ended():
            self.close()
            self._socket = socket.socket()
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(self._socket, self._address)
        with contextlib.suppress(ConnectionError):  # there may be an answer all the same
            await loop.sock_sendall(self._socket, request.head() + request.body)

    async def readuntil(self, separator: bytes) -> bytes:
        while (at := self._arrived.find(separator)) < 0:
            await self._more()
        return self._taken(at + len(separator))

    async def readexactly(self, size: int) -> bytes:
        while len(self._arrived) < size:
            await self._more()
        return self._taken(size)

    async def read(self, size_max: int) -> bytes:
        """What there is; nothing at the end."""
        if not self._arrived:
            with contextlib.suppress(ConnectionEndedError):
                await self._more()
        return self._taken(size_max)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._arrived.clear()

    async def _more(self) -> None:
        assert self._socket is not None
        piece = await asyncio.get_running_loop().sock_recv(self._socket, COPY_BYTES)
        if not piece:
            raise ConnectionEndedError
        self._arrived += piece

    def _taken(self, size_max: int) -> bytes:
        taken = bytes(self._arrived[:size_max])
        del self._arrived[:size_max]
        return taken

    def _ended(self) -> bool:
        """Whether the idle connection is of no more use: closed, or saying something unasked."""
        assert self._socket is not None
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True


class Proxy:
    def __init__(self, target: tuple[str, int]) -> None:
        self.behaviour = Behaviour()
        self._target = target
        # Never listens; held for life, so that the port stays ours while connections to it are refused.
        self._port_holder = _bound(0)
        self._server: asyncio.Server | None = None
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def port(self) -> int:
        return int(self._port_holder.getsockname()[1])

    async def accept(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(
                self._serve, sock=_bound(self.port), limit=HEAD_BYTES_MAX, backlog=1024
            )

    async def refuse(self) -> None:
        """Connects are refused by the kernel; open connections are reset, requests under way included."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        cut = list(self._clients.items())
        for task, writer in cut:
            _reset(writer)
            task.cancel()
        await asyncio.gather(*(task for task, _ in cut), return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients[task] = writer
        upstream = Upstream(*self._target)
        try:
            while await self._serve_request(reader, writer, upstream):
                pass
        except (ConnectionEndedError, OSError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            pass  # refused, or the end: the task has nothing left to do
        finally:
            del self._clients[task]
            upstream.close()
            writer.close()

    async def _serve_request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: Upstream
    ) -> bool:
        """Whether the connection can carry another request."""
        behaviour = self.behaviour
        request = await _read_request(reader, writer)
        behaviour.requests[request.method] += 1
        await asyncio.sleep(behaviour.latency_seconds)
        if answers := behaviour.answers.get(request.method):
            status, body = answers.pop(0)
            return await _answer(writer, status, body)
        if (
            request.method == "PUT"
            and request.value("If-None-Match")
            and behaviour.conditional_puts != "passed"
        ):
            if behaviour.conditional_puts == "racy":
                if await self._exists(request):
                    return await _answer(writer, 412, "<Error><Code>PreconditionFailed</Code></Error>")
                await asyncio.sleep(behaviour.race_gap_seconds)
            request = request.without("If-None-Match")
        await upstream.send(request)
        if drops := behaviour.drops.get(request.method):
            how = drops.pop(0)
            await _copy_response(upstream, None, request.method)
            behaviour.dropped[request.method] += 1
            if how == "hang":
                await reader.read()  # until the client has had enough
            return False
        return await _copy_response(upstream, writer, request.method) and not request.closes

    async def _exists(self, request: Message) -> bool:
        lookup = Upstream(*self._target)
        try:
            start = request.start.replace("PUT ", "HEAD ", 1)
            headers = request.without("If-None-Match", "Content-Length", "Transfer-Encoding").headers
            await lookup.send(Message(start, headers))
            return (await _read_head(lookup)).status < 300
        finally:
            lookup.close()


def _bound(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # beside the port's holder
    bound.bind(("127.0.0.1", port))
    return bound


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _read_head(reader: asyncio.StreamReader | Upstream) -> Message:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        raise ConnectionEndedError from error
    start, *headers = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    return Message(start, tuple(headers))


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Message:
    """The whole request. A client that waits for "100 Continue" gets it from us, not from the target."""
    request = await _read_head(reader)
    if request.value("Expect"):
        request = request.without("Expect")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if request.chunked:
        body = b"".join([piece async for piece in _chunks(reader)])
    else:
        body = await reader.readexactly(int(request.value("Content-Length") or 0))
    return Message(request.start, request.headers, body)


async def _chunks(reader: asyncio.StreamReader | Upstream) -> AsyncIterator[bytes]:
    """A chunked body, framing included, piece by piece."""
    while True:
        line = await reader.readuntil(b"\r\n")
        yield line
        size = int(line.split(b";")[0], 16)
        if size == 0:
            break
        yield await reader.readexactly(size + 2)
    while (trailer := await reader.readuntil(b"\r\n")) != b"\r\n":
        yield trailer
    yield b"\r\n"


async def _copy_response(reader: Upstream, writer: asyncio.StreamWriter | None, method: str) -> bool:
    """Reads one response and passes it on (or not: no writer); whether the connection lives on."""

    async def pass_on(piece: bytes) -> None:
        if writer is not None:
            writer.write(piece)
            await writer.drain()

    response = await _read_head(reader)
    while response.status < 200:
        await pass_on(response.head())
        response = await _read_head(reader)
    await pass_on(response.head())
    if method == "HEAD" or response.status in (204, 304):
        return not response.closes
    if response.chunked:
        async for piece in _chunks(reader):
            await pass_on(piece)
        return not response.closes
    length = response.value("Content-Length")
    missing = int(length) if length else sys.maxsize
    while missing and (piece := await reader.read(min(missing, COPY_BYTES))):
        await pass_on(piece)
        missing -= len(piece)
    return missing == 0 and not response.closes


async def _answer(writer: asyncio.StreamWriter, status: int, body: str) -> bool:
    content = body.encode()
    head = (
        f"HTTP/1.1 {status} Proxy\r\nContent-Type: application/xml\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    writer.write(head.encode() + content)
    await writer.drain()
    return True


async def _obey(proxy: Proxy, command: dict) -> dict:
    behaviour = proxy.behaviour
    match command:
        case {"do": "refuse"}:
            await proxy.refuse()
        case {"do": "resume"}:
            await proxy.accept()
        case {"do": "set", "name": name, "value": value}:
            setattr(behaviour, name, value)
        case {"do": "drop", "method": method, "how": how}:
            behaviour.drops.setdefault(method, []).append(how)
        case {"do": "answer", "method": method, "status": status, "body": body, "times": times}:
            behaviour.answers.setdefault(method, []).extend([(status, body)] * times)
        case {"do": "counts"}:
            return {"requests": behaviour.requests, "dropped": behaviour.dropped}
        case _:
            return {"error": f"unknown command {command}"}
    return {}


async def main(target_host: str, target_port: str) -> None:
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(commands), sys.stdin.buffer
    )
    proxy = Proxy((target_host, int(target_port)))
    await proxy.accept()
    print(json.dumps({"port": proxy.port}), flush=True)
    while line := await commands.readline():
        print(json.dumps(await _obey(proxy, json.loads(line))), flush=True)
    await proxy.refuse()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
