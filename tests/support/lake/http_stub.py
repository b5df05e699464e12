"""An HTTP server on 127.0.0.1 that keeps what it was asked and answers what a test wants."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes


@dataclass
class HttpStub:
    url: str = ""
    requests: list[Request] = field(default_factory=list)
    hangs: bool = False
    """Whether answers wait until the server ends."""
    _over: threading.Event = field(default_factory=threading.Event)


Answer = Callable[[Request], tuple[int, Any]]


@contextlib.contextmanager
def http_stub(answer: Answer) -> Iterator[HttpStub]:
    """`answer` gives the status, and the body as bytes or as what becomes JSON."""
    served = HttpStub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            # A client that gave up waiting is what some tests are about.
            with contextlib.suppress(ConnectionError):
                super().handle_one_request()

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, self.path, headers, body)
            served.requests.append(request)
            if served.hangs:
                served._over.wait()
            status, content = answer(request)
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.send_header("etag", '"1"')
            self.send_header("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        served.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield served
        finally:
            served._over.set()
            server.shutdown()
            thread.join()
