"""Asks the API: one object for each browser session, with that person's key and what was answered lately."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import orjson
import pyarrow as pa
import urllib3
from prometheus_client import Counter, Histogram

from frazil.dashboard.tls_errors import why_distrusted
from frazil.http_client import HttpClient
from frazil.query.reads.statement import Statement
from frazil.tls import unusable_authorities

Answer = TypeVar("Answer")
Parameters = Mapping[str, Any]

_KEPT_MAX = 64
_SECONDS_MAX = 60.0
QUESTIONS = Counter("frazil_dashboard_questions", "API requests of dashboard pages.", ["page", "outcome"])
SECONDS = Histogram(
    "frazil_dashboard_question_seconds",
    "Duration of API requests of dashboard pages, in seconds.",
    ["page"],
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)


class ApiError(Exception):
    """The API did not answer the question: `message` is for the person who asked."""

    def __init__(self, message: str, *, code: str, status: int = 0, position: int | None = None) -> None:
        super().__init__(message)
        self.message, self.code, self.status, self.position = message, code, status, position

    @property
    def is_about_the_key(self) -> bool:
        return self.status in (401, 403)


@dataclass(frozen=True)
class Rows:
    """The answer to a question in SQL."""

    table: pa.Table
    stats: Mapping[str, Any] = field(default_factory=dict)

    def records(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.table.to_pylist()
        return rows


class ApiClient:
    """The way to the API, shared by all sessions."""

    def __init__(
        self,
        url: str,
        ca_file: Path | None = None,
        seconds_max: float = _SECONDS_MAX,
        own_certificate: Path | None = None,
    ) -> None:
        """`own_certificate`: what an API of the same configuration shows, which is known by it alone."""
        self.url = url.rstrip("/")
        self._ca_file = ca_file
        self._own_certificate = own_certificate
        self._seconds_max = seconds_max
        self._http = HttpClient(ca_file=ca_file, own_certificate=own_certificate, connections_max=16)

    def request(
        self,
        method: str,
        path: str,
        key: str | None,
        body: bytes | None = None,
        accept: str = "application/json",
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": accept, "User-Agent": "frazil-dashboard"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            answer = self._http.send(
                method, f"{self.url}{path}", read_seconds=self._seconds_max, headers=headers, body=body
            )
            data = answer.data  # reads it
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise ApiError(self._why_unreachable(error), code="unreachable") from None
        if answer.status >= 300:
            raise _trouble(answer.status, data)
        return answer

    def close(self) -> None:
        self._http.close()

    def _why_unreachable(self, error: Exception) -> str:
        own = self._own_certificate
        if isinstance(error, urllib3.exceptions.ReadTimeoutError):
            return f"the API at {self.url} did not respond in time"
        if isinstance(error, urllib3.exceptions.SSLError):
            return f"{self._not_trusted} {why_distrusted(error.args[0], self._ca_file, own)}"
        if own is not None and not isinstance(error, urllib3.exceptions.HTTPError):
            why = unusable_authorities(own) or str(error)
            return f"{self._not_trusted} serve.tls.cert_file: {own} {why}"
        return (
            f"the API at {self.url} is not responding. Run `frazil status` to see which roles are running, or "
            "`frazil serve` to start the API"
        )

    @property
    def _not_trusted(self) -> str:
        return f"the TLS connection to the API at {self.url} failed:"


class Api:
    """What pages ask through. Answers are kept for `fresh_seconds`: a page is drawn again with every click,
    and asks only what it does not know.
    """

    def __init__(self, door: ApiClient, key_now: Callable[[], str | None]) -> None:
        """`key_now` is asked at every question, and raises Trouble when the login has ended: parts of a page
        that are drawn again by themselves would go on for ever with the key they were first drawn with.
        """
        self._door, self._key_now = door, key_now
        self._kept: OrderedDict[tuple[str, ...], tuple[float, Any]] = OrderedDict()
        self._lock = threading.Lock()
        self.page = "none"

    def sql(
        self,
        sql: str,
        params: Sequence[Any] = (),
        *,
        fresh_seconds: float = 0,
        rows_max: int | None = None,
        seconds_max: float | None = None,
        partial: bool = True,
        id: str | None = None,
    ) -> Rows:
        """`id`: to cancel it by. Raises Trouble."""
        question: dict[str, Any] = {"sql": sql, "params": list(params), "partial": partial}
        if rows_max is not None:
            question["rows_max"] = rows_max
        if seconds_max is not None:
            question["seconds_max"] = seconds_max
        if id is not None:
            question["id"] = id
        body = orjson.dumps(question)

        def ask() -> Rows:
            answer = self._door.request(
                "POST", "/api/v1/sql", self._key_now(), body, accept="application/vnd.apache.arrow.stream"
            )
            stats = orjson.loads(answer.headers.get("X-Frazil-Stats") or "{}")
            with pa.ipc.open_stream(pa.py_buffer(answer.data)) as reader:
                return Rows(reader.read_all(), stats)

        return self._remembered(("sql", body.decode()), fresh_seconds, ask)

    def read(self, statement: Statement, *, fresh_seconds: float = 0) -> list[dict[str, Any]]:
        """The rows of a read's statement. Raises Trouble."""
        return self.sql(statement.sql, statement.params, fresh_seconds=fresh_seconds).records()

    def download(self, sql: str, params: Sequence[Any], format: str) -> bytes:
        """The whole answer as a file: csv, parquet or json. Raises Trouble."""
        body = orjson.dumps({"sql": sql, "params": list(params)})
        return self._counted(
            lambda: (
                self._door.request(
                    "POST", f"/api/v1/sql?format={format}", self._key_now(), body, accept="*/*"
                ).data
            )
        )

    def get(
        self, path: str, parameters: Parameters | None = None, *, fresh_seconds: float = 0
    ) -> dict[str, Any]:
        """`GET /api/v1/<path>`. Parameters that are None or empty are left out; lists are repeated."""
        given = {name: value for name, value in (parameters or {}).items() if value not in (None, "", [], ())}
        address = f"/api/v1/{path}" + (f"?{urlencode(given, doseq=True)}" if given else "")

        def ask() -> dict[str, Any]:
            answer: dict[str, Any] = orjson.loads(self._door.request("GET", address, self._key_now()).data)
            return answer

        return self._remembered(("get", address), fresh_seconds, ask)

    def cancel(self, id: str) -> None:
        """Ends the question of that id; one that has ended already is no trouble."""
        try:
            self._door.request("DELETE", f"/api/v1/queries/{quote(id, safe='')}", self._key_now())
        except ApiError as trouble:
            if trouble.code != "not_found":
                raise

    def forget(self) -> None:
        """The next questions are asked anew."""
        with self._lock:
            self._kept.clear()

    def _remembered(self, question: tuple[str, ...], seconds: float, ask: Callable[[], Answer]) -> Answer:
        if seconds > 0:
            with self._lock:
                found = self._kept.get(question)
            if found is not None and found[0] > time.monotonic():
                answer: Answer = found[1]
                return answer
        answer = self._counted(ask)
        if seconds > 0:
            with self._lock:
                now = time.monotonic()
                for old in [old for old, (until, _) in self._kept.items() if until <= now]:
                    del self._kept[old]
                self._kept[question] = (now + seconds, answer)
                while len(self._kept) > _KEPT_MAX:
                    self._kept.popitem(last=False)
        return answer

    def _counted(self, ask: Callable[[], Answer]) -> Answer:
        with SECONDS.labels(self.page).time():
            try:
                answer = ask()
            except ApiError as trouble:
                QUESTIONS.labels(self.page, trouble.code).inc()
                raise
        QUESTIONS.labels(self.page, "ok").inc()
        return answer


def _trouble(status: int, body: bytes) -> ApiError:
    try:
        error = orjson.loads(body)["error"]
        return ApiError(error["message"], code=error["code"], status=status, position=error.get("position"))
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ApiError(f"the API returned HTTP status {status}", code="unexpected", status=status)
