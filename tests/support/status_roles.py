"""Roles that say what a test wants them to."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client.parser import text_string_to_metric_families

from frazil.health import Health, Role
from frazil.role_status import RoleReport, RoleStatus
from frazil.status.stages import Endpoint, PolledRole

PORTS = {"receiver": 4318, "pipeline": 4381, "api": 4380, "dashboard": 8501}


def endpoint(role: Role, url: str | None = None) -> Endpoint:
    return Endpoint(role, url or f"http://127.0.0.1:{PORTS[role]}")


def reported(role: Role, text: str = "", **problems: str) -> RoleReport:
    """What a role of these metrics, in Prometheus' text, answers when it is first asked."""
    found = RoleStatus(lambda: text_string_to_metric_families(text)).report(Health(role, failing=problems))
    return found.model_copy(update={"version": "1.2.3"})


def page(role: Role, text: str = "", **problems: str) -> dict[str, tuple[int, bytes]]:
    return {"/status": (200, reported(role, text, **problems).model_dump_json().encode())}


@dataclass
class Speaker:
    """A role with counters that a test sets, as its metrics in Prometheus' text."""

    role: Role
    url: str | None = None
    text: str = ""
    now: float = 0.0
    status: RoleStatus = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.status = RoleStatus(lambda: text_string_to_metric_families(self.text), clock=lambda: self.now)

    def report(self, at: float, text: str) -> RoleReport:
        self.now, self.text = at, text
        found = self.status.report(Health(self.role))
        return found.model_copy(update={"version": "1.2.3"})


def down(role: Role) -> PolledRole:
    return PolledRole(endpoint(role), "down", ("connection refused: nothing listens at this address",))


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
