"""The pipeline's HTTP server for health checks, status, metrics and commands."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from frazil.config import split_listen
from frazil.config.values import local_url
from frazil.errors import ConfigError, Forbidden, FrazilError, Overloaded, Refused, Stopped, Unauthenticated
from frazil.health import PATHS, Health
from frazil.pipeline.control.protocol import BODY_BYTES_MAX, PATH, error_line
from frazil.pipeline.control.server import Control
from frazil.role_status import RoleStatus

Problems = Callable[[], dict[str, str]]


_STATUS: Mapping[type[Exception], int] = {Unauthenticated: 401, Forbidden: 403, Stopped: 409, Overloaded: 429}


class HealthServer:
    """Serves /healthz, /readyz, /livez, /status and /metrics, and the commands of `control`. `problems`
    returns the reasons, by table, why the pipeline is not ready. `waiting` returns work that waits for an
    operator's decision: it is shown, and the response stays 200. `degraded` returns problems with which the
    pipeline is still ready: only /healthz fails.
    """

    def __init__(
        self,
        listen: str,
        registry: CollectorRegistry,
        problems: Problems,
        waiting: Problems = dict[str, str],
        control: Control | None = None,
        degraded: Problems = dict[str, str],
    ) -> None:
        class Handler(_Handler):
            pass

        Handler.registry = registry
        Handler.control = control
        Handler.status = self._status = RoleStatus(registry.collect)
        Handler.health = staticmethod(
            lambda: Health("pipeline", failing=problems(), degraded=degraded(), notices=waiting())
        )
        try:
            self._server = _Server(split_listen(listen), Handler)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {listen}: {error.strerror}. Stop the process that uses the port (`frazil "
                "doctor` may name it), or set pipeline.listen to another port"
            ) from None
        self._host = split_listen(listen)[0]
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """The URL for clients on this machine."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return local_url(f"{host}:{self.port}", tls=False)

    def start(self) -> None:
        self._status.begin()
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)


class _Handler(BaseHTTPRequestHandler):
    registry: CollectorRegistry
    control: Control | None
    status: RoleStatus
    health: Callable[[], Health]
    timeout = 10
    server_version = "frazil"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(200, CONTENT_TYPE_LATEST, generate_latest(self.registry))
        elif path == "/status":
            report = self.status.report(self.health())
            self._answer(200, "application/json", report.model_dump_json().encode())
        elif path in PATHS:
            found = Health("pipeline") if path == "/livez" else self.health()
            answer = found.response(path, self.headers.get("accept", ""))
            self._answer(answer.status, answer.content_type, answer.body)
        else:
            self._answer(404, "text/plain; charset=utf-8", b"try /healthz /readyz /livez /status /metrics\n")

    def do_POST(self) -> None:
        if self.control is None or not self.path.startswith(PATH):
            self._answer(404, "text/plain; charset=utf-8", b"not found\n")
            return
        try:
            caller = self.control.authorize(dict(self.headers.items()))
            length = int(self.headers.get("content-length", "0"))
            if not 0 <= length <= BODY_BYTES_MAX:
                raise Refused(f"the body must have at most {BODY_BYTES_MAX} bytes")
            lines = self.control.run(self.path, self.rfile.read(length), caller)
        except (FrazilError, ValueError) as error:
            status = next((each for kind, each in _STATUS.items() if isinstance(error, kind)), 400)
            self._answer(status, "application/json", json.dumps(error_line(error)).encode())
            return
        with contextlib.closing(lines), contextlib.suppress(OSError):  # the client has disconnected
            self.send_response(200)
            self.send_header("content-type", "application/x-ndjson")
            self.end_headers()
            for line in lines:
                self.wfile.write(line)

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        with contextlib.suppress(ConnectionError):  # the client has disconnected
            self.send_response(status)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Suppresses the log line per request."""
