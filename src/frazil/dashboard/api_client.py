"""The client of the API: `ApiClient` for the process, `ApiSession` for each browser session."""

from __future__ import annotations

import copy
import ssl
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

from frazil.http_client import HttpClient
from frazil.query.reads.statement import Statement
from frazil.tls import ca_file_problem

Result = TypeVar("Result")
Parameters = Mapping[str, Any]

_CACHED_MAX = 64
_EXPIRED_MAX = 16
"""Expired results that are kept for `ApiSession.last_results`."""
_SECONDS_MAX = 60.0
_EXPIRED = 10
_OTHER_NAME = {62, 64}
"""OpenSSL's codes for an expired certificate, and for a certificate of another host or address."""
_CLIENT_CERTIFICATE_REQUIRED = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED",
    "SSLV3_ALERT_BAD_CERTIFICATE",
    "SSLV3_ALERT_HANDSHAKE_FAILURE",
}
REQUESTS = Counter("frazil_dashboard_questions", "API requests of dashboard pages.", ["page", "outcome"])
SECONDS = Histogram(
    "frazil_dashboard_question_seconds",
    "Duration of API requests of dashboard pages, in seconds.",
    ["page"],
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)


class ApiError(Exception):
    """The API is unreachable or returned an error. `message` is shown to the user. `parameter` is the invalid
    parameter of the request; `message` begins with its name.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        status: int = 0,
        position: int | None = None,
        parameter: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.code, self.status = message, code, status
        self.position, self.parameter = position, parameter

    @property
    def is_auth_error(self) -> bool:
        return self.status in (401, 403)


@dataclass(frozen=True)
class SqlResult:
    table: pa.Table
    stats: Mapping[str, Any] = field(default_factory=dict)

    def records(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.table.to_pylist()
        return rows


class ApiClient:
    """HTTP connections to the API, shared by all sessions."""

    def __init__(
        self,
        url: str,
        ca_file: Path | None = None,
        seconds_max: float = _SECONDS_MAX,
        own_certificate: Path | None = None,
    ) -> None:
        """`own_certificate`: that of an API of the same configuration, trusted for any host name."""
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
        seconds_max: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": accept, "User-Agent": "frazil-dashboard"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            response = self._http.send(
                method,
                f"{self.url}{path}",
                read_seconds=seconds_max or self._seconds_max,
                headers=headers,
                body=body,
            )
            data = response.data  # reads the body
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise ApiError(self._why_unreachable(error), code="unreachable") from None
        if response.status >= 300:
            raise _api_error(response.status, data)
        return response

    def close(self) -> None:
        self._http.close()

    def _why_unreachable(self, error: Exception) -> str:
        own = self._own_certificate
        if isinstance(error, urllib3.exceptions.ReadTimeoutError):
            return f"the API at {self.url} does not answer in time"
        if isinstance(error, urllib3.exceptions.SSLError):
            return f"{self._not_trusted} {explain_tls_error(error.args[0], self._ca_file, own)}"
        if own is not None and not isinstance(error, urllib3.exceptions.HTTPError):
            why = ca_file_problem(own) or str(error)
            return f"{self._not_trusted} serve.tls.cert_file: {own} {why}"
        return (
            f"the API at {self.url} does not answer. Run `frazil status` to see which roles are running, "
            "or `frazil serve` to start the API"
        )

    @property
    def _not_trusted(self) -> str:
        return f"the TLS connection to the API at {self.url} failed:"


class ApiSession:
    """The API as one browser session sees it. Results are cached for `cache_seconds`, because Streamlit runs
    a page again at every click. All methods raise ApiError.
    """

    def __init__(self, client: ApiClient, current_key: Callable[[], str | None]) -> None:
        """`current_key` is called for every request and raises ApiError when the session has expired:
        fragments refresh with the ApiSession that they were first drawn with.
        """
        self._client, self._current_key = client, current_key
        self._cache: OrderedDict[tuple[str, ...], tuple[float, Any]] = OrderedDict()
        self._lock = threading.Lock()
        self._away: ApiError | None = None
        self.page = "none"

    def last_results(self, error: ApiError) -> ApiSession:
        """Returns a session for use while the API is away: it returns results that were read before, whatever
        their age, and raises `error` for any other request.
        """
        session = copy.copy(self)
        session._away = error
        return session

    def sql(
        self,
        sql: str,
        params: Sequence[Any] = (),
        *,
        cache_seconds: float = 0,
        rows_max: int | None = None,
        seconds_max: float | None = None,
        partial: bool = True,
        id: str | None = None,
    ) -> SqlResult:
        """Runs a query and returns its result. `id` identifies the query for `cancel`."""
        query: dict[str, Any] = {"sql": sql, "params": list(params), "partial": partial}
        options = {"rows_max": rows_max, "seconds_max": seconds_max, "id": id}
        body = orjson.dumps(query | {name: value for name, value in options.items() if value is not None})

        def execute() -> SqlResult:
            response = self._client.request(
                "POST", "/api/v1/sql", self._current_key(), body, accept="application/vnd.apache.arrow.stream"
            )
            stats = orjson.loads(response.headers.get("X-Frazil-Stats") or "{}")
            with pa.ipc.open_stream(pa.py_buffer(response.data)) as reader:
                return SqlResult(reader.read_all(), stats)

        return self._cached(("sql", body.decode()), cache_seconds, execute)

    def read(self, statement: Statement, *, cache_seconds: float = 0) -> list[dict[str, Any]]:
        return self.sql(statement.sql, statement.params, cache_seconds=cache_seconds).records()

    def download(self, sql: str, params: Sequence[Any], format: str) -> bytes:
        """Returns the complete result as a file: csv, parquet or json."""
        body, path = orjson.dumps({"sql": sql, "params": list(params)}), f"/api/v1/sql?format={format}"
        return self._measured(
            lambda: self._client.request("POST", path, self._current_key(), body, accept="*/*").data
        )

    def get(
        self, path: str, parameters: Parameters | None = None, *, cache_seconds: float = 0
    ) -> dict[str, Any]:
        """Requests `GET /api/v1/<path>`. Empty parameters are omitted; those with a list are repeated."""
        given = {name: value for name, value in (parameters or {}).items() if value not in (None, "", [], ())}
        address = f"/api/v1/{path}" + (f"?{urlencode(given, doseq=True)}" if given else "")

        def execute() -> dict[str, Any]:
            data = self._client.request("GET", address, self._current_key()).data
            found: dict[str, Any] = orjson.loads(data)
            return found

        return self._cached(("get", address), cache_seconds, execute)

    def cancel(self, id: str) -> None:
        """Cancels a running query. A query that has ended is ignored."""
        try:
            self._client.request("DELETE", f"/api/v1/queries/{quote(id, safe='')}", self._current_key())
        except ApiError as error:
            if error.code != "not_found":
                raise

    def clear_cache(self) -> None:
        with self._lock:
            self._cache.clear()

    def _cached(self, key: tuple[str, ...], seconds: float, execute: Callable[[], Result]) -> Result:
        if seconds > 0:
            with self._lock:
                found = self._cache.get(key)
            if found is not None and (self._away is not None or found[0] > time.monotonic()):
                result: Result = found[1]
                return result
        result = self._measured(execute)
        if seconds > 0:
            with self._lock:
                now = time.monotonic()
                self._cache[key] = (now + seconds, result)
                self._cache.move_to_end(key)
                expired = [old for old, (until, _) in self._cache.items() if until <= now]
                for old in expired[: max(0, len(expired) - _EXPIRED_MAX)]:
                    del self._cache[old]
                while len(self._cache) > _CACHED_MAX:
                    self._cache.popitem(last=False)
        return result

    def _measured(self, execute: Callable[[], Result]) -> Result:
        if self._away is not None:
            raise self._away
        with SECONDS.labels(self.page).time():
            try:
                result = execute()
            except ApiError as error:
                REQUESTS.labels(self.page, error.code).inc()
                raise
        REQUESTS.labels(self.page, "ok").inc()
        return result


def _api_error(status: int, body: bytes) -> ApiError:
    try:
        error = orjson.loads(body)["error"]
        return ApiError(
            error["message"],
            code=error["code"],
            status=status,
            position=error.get("position"),
            parameter=error.get("parameter"),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ApiError(f"the API returned HTTP status {status}", code="unexpected", status=status)


def explain_tls_error(error: Exception, ca_file: Path | None, own_certificate: Path | None) -> str:
    """Explains a TLS error and what to configure. If `own_certificate` is given, only it is trusted."""
    if own_certificate is None and ca_file is not None and (why := ca_file_problem(ca_file)) is not None:
        return f"dashboard.api_ca_file: {ca_file} {why}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return _why_not_verified(error, own_certificate)
    reason = getattr(error, "reason", None) or str(error)
    if reason in _CLIENT_CERTIFICATE_REQUIRED:
        return (
            "the API requires a client certificate (serve.tls.client_ca_file), and the dashboard has none: "
            "set dashboard.api_url to an API that does not require one"
        )
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return "the API does not use TLS: set dashboard.api_url to its http:// address"
    return f"{reason.replace('_', ' ').lower()}: check dashboard.api_url and dashboard.api_ca_file"


def _why_not_verified(error: ssl.SSLCertVerificationError, own_certificate: Path | None) -> str:
    if error.verify_code == _EXPIRED:
        return "the API's certificate has expired: renew it; a running API reloads it automatically"
    if own_certificate is not None:
        return (
            f"the API presents a certificate other than {own_certificate} (serve.tls.cert_file): "
            "restart the API, or set dashboard.api_url and dashboard.api_ca_file for another API"
        )
    if error.verify_code in _OTHER_NAME:
        return (
            f"the API's certificate is for another host name ({error.verify_message.rstrip('.')}): "
            "set dashboard.api_url to a host name in the certificate"
        )
    return (
        f"the API's certificate is not signed by a trusted CA ({error.verify_message}): "
        "set dashboard.api_ca_file to the CA certificate that signed it"
    )
