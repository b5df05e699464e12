"""A small real HTTP server that speaks the API's documented contract, with rows that the test chose."""

from __future__ import annotations

import csv
import io
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

TYPES = {"int64": "BIGINT", "double": "DOUBLE", "string": "VARCHAR", "bool": "BOOLEAN"}
TABLES = [
    {
        "name": "logs",
        "doc": "One row per log record.",
        "rows": 12,
        "tail_rows": 3,
        "files": 2,
        "bytes": 4_200_000,
        "first_time": "2026-11-01T00:00:00.000000Z",
        "last_time": None,
        "landed_at": "2026-11-15T10:00:02.000001Z",
        "snapshot_id": "1234",
        "is_view": False,
        "columns": [
            {"name": "time", "type": "TIMESTAMP", "doc": "When it happened", "source": "LogRecord"},
            {"name": "service_name", "type": "VARCHAR", "doc": "Promoted", "source": "the resource"},
        ],
    },
    {"name": "spans", "columns": [{"name": "duration_nano", "type": "BIGINT"}], "newer_member": 1},
]


@dataclass(frozen=True)
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def query(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass
class Api:
    """What it answers, and what it was asked."""

    table: pa.Table = field(default_factory=lambda: pa.table({"n": [1]}))
    stats: dict[str, Any] = field(default_factory=dict)
    refusals: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    """Given one after the other before any answer."""
    breaks_off: bool = False
    hold: threading.Event | None = None
    """Answers wait for it, or for the query to be cancelled."""
    percent: float | None = 40.0
    seen: list[Seen] = field(default_factory=list)
    asked: threading.Event = field(default_factory=threading.Event)
    watched: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def refuse(
        self, status: int, code: str, message: str, retry_after: str | None = None, **facts: Any
    ) -> None:
        body = json.dumps({"error": {"code": code, "message": message, **facts}}).encode()
        self.refusals.append((status, {} if retry_after is None else {"retry-after": retry_after}, body))

    def body(self, format: str) -> bytes:
        out = io.BytesIO()
        if format == "arrow":
            with pa.ipc.new_stream(out, self.table.schema) as writer:
                writer.write_table(self.table)
        elif format == "parquet":
            pq.write_table(self.table, out)
        elif format == "csv":
            text = io.StringIO()
            writer = csv.writer(text)
            writer.writerow(self.table.column_names)
            writer.writerows(_tuples(self.table))
            out.write(text.getvalue().encode())
        else:
            columns = [
                {"name": f.name, "type": TYPES.get(str(f.type), str(f.type))} for f in self.table.schema
            ]
            rows = _tuples(self.table)
            stats = {"rows": len(rows), "seconds": 0.01, **self.stats}
            out.write(json.dumps({"columns": columns, "rows": rows, "stats": stats}, default=str).encode())
        return out.getvalue()


def _tuples(table: pa.Table) -> list[list[Any]]:
    columns = [column.to_pylist(maps_as_pydicts="strict") for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a client may go when it has enough
            super().handle_error(request, client_address)


@contextmanager
def serving(api: Api) -> Iterator[Api]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self._note()
            if api.refusals:
                status, headers, text = api.refusals.pop(0)
                self._send(status, text, headers)
                return
            api.asked.set()
            if api.hold is not None:
                while not api.hold.wait(0.01) and not api.cancelled.is_set():
                    pass
                if api.cancelled.is_set():
                    self._send(400, b'{"error": {"code": "query_invalid", "message": "cancelled"}}')
                    return
            format = parse_qs(urlsplit(self.path).query)["format"][0]
            self._stream(api.body(format), json.loads(body)["id"])

        def do_GET(self) -> None:
            self._note()
            if self.path == "/api/v1/tables":
                self._send(200, json.dumps({"tables": TABLES}).encode())
            elif self.path.startswith("/api/v1/queries/"):
                api.watched.set()
                found = {"id": self.path.rpartition("/")[2], "state": "running", "percent": api.percent}
                self._send(200, json.dumps({**found, "seconds": 1.5}).encode())
            else:
                self._send(404, b"not here")

        def do_DELETE(self) -> None:
            self._note()
            api.cancelled.set()
            self._send(204, b"")

        def _note(self) -> bytes:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            headers = {name.lower(): value for name, value in self.headers.items()}
            api.seen.append(Seen(self.command, self.path, headers, body))
            return body

        def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _stream(self, body: bytes, id: str) -> None:
            self.send_response(200)
            self.send_header("x-frazil-query-id", id)
            self.send_header("x-frazil-stats", json.dumps({"id": id, **api.stats}))
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            middle = max(1, len(body) // 2)
            for piece in (body[:middle],) if api.breaks_off else (body[:middle], body[middle:]):
                if piece:
                    self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            if api.breaks_off:
                self.close_connection = True
            else:
                self.wfile.write(b"0\r\n\r\n")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    api.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
