"""Roles that say what a test wants them to."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from frazil.status.ask import Heard, State
from frazil.status.places import Place, RoleName
from frazil.status.samples import SampleReader


def healthy(role: RoleName, **problems: str) -> bytes:
    report = {"ok": not problems, "role": role, "version": "1.2.3", "problems": problems}
    return json.dumps(report).encode()


PORTS = {"receiver": 4318, "pipeline": 4381, "api": 4380, "dashboard": 8501}


def place(role: RoleName, url: str | None = None) -> Place:
    return Place(role, url or f"http://127.0.0.1:{PORTS[role]}")


def heard(
    role: RoleName,
    text: str = "",
    *,
    state: State = "ok",
    reasons: tuple[str, ...] = (),
    url: str | None = None,
) -> Heard:
    """A role that answered, with these metrics."""
    return Heard(place(role, url), state, reasons, "1.2.3", SampleReader().read(text))


def down(role: RoleName) -> Heard:
    return Heard(place(role), "down", ("nothing listens there",))


@contextmanager
def serving(pages: dict[str, tuple[int, bytes]], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A real HTTP server on this machine with these pages; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = pages.get(self.path, (404, b"no such page"))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """A client that does not trust the certificate hangs up, as it should."""

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
