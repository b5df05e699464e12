"""Executes queries over HTTP with a running API."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, ProtocolError, SSLError

from frazil.client.error_mapping import error_from, retry_after
from frazil.client.query import request_body
from frazil.client.transport import Reply, Unreachable
from frazil.errors import ConfigError, FrazilError
from frazil.http_client import HttpClient, reason
from frazil.query.model import CONTENT_TYPES, ColumnInfo, Progress, Query, Stats, TableInfo
from frazil.times import micros_of

if TYPE_CHECKING:
    from frazil.config import ClientConfig

CONNECT_SECONDS_MAX = 5.0
READ_SECONDS_MAX = 3600.0
QUEUE_SECONDS_MAX = 120.0
CONTROL_SECONDS_MAX = 5.0
"""Timeout of requests for progress and cancellation."""
RETRIES_MAX = 2
RETRY_AFTER_SECONDS_MAX = 5.0
ERROR_BYTES_MAX = 1 << 20
_CHUNK_BYTES = 1 << 16

T = TypeVar("T")


def is_listening(url: str, seconds_max: float = 0.2) -> bool:
    """Return True if a server accepts connections at the URL."""
    parts = urlsplit(url)
    if parts.hostname is None or not parts.port:
        return False
    try:
        socket.create_connection((parts.hostname, parts.port), timeout=seconds_max).close()
    except OSError:
        return False
    return True


def base_url(text: str) -> str:
    """Normalize the base URL. Raises ConfigError if it is not valid."""
    text = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{text} is not a valid URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ConfigError(f"{text} is not a valid API URL: use a form like http://127.0.0.1:4380")
    if parts.query or parts.fragment or parts.username is not None:
        raise ConfigError(f"the API URL must not contain a query or credentials; use api_key: {text}")
    return text.rstrip("/")


def key_from_text(text: str | None, client: ClientConfig | None = None) -> str | None:
    """Return the API key: the text, else the environment variable FRAZIL_API_KEY, else the key of `client`.
    `@FILE` reads the key from a file, which keeps it out of the process list. Raises ConfigError if the file
    cannot be read.
    """
    text = text or os.environ.get("FRAZIL_API_KEY") or None
    if text is None and client is not None and client.api_key is not None:
        text = client.api_key.get_secret_value()
    if text is None or not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the API key: {error}") from None


class HttpTransport:
    """Sends each query as a request. Thread-safe."""

    def __init__(self, url: str, *, api_key: str | None = None, ca_file: str | Path | None = None) -> None:
        self._url = base_url(url)
        if ca_file is not None and not Path(ca_file).is_file():
            raise ConfigError(f"CA file {ca_file} does not exist")
        self._headers = {"user-agent": "frazil"}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._http = HttpClient(
            ca_file=None if ca_file is None else Path(ca_file), connect_seconds=CONNECT_SECONDS_MAX
        )

    @property
    def address(self) -> str:
        return self._url

    def execute(self, query: Query) -> Reply:
        seconds = READ_SECONDS_MAX
        if query.seconds_max is not None:
            seconds = query.seconds_max + QUEUE_SECONDS_MAX
        response = self._request(
            "POST",
            f"/api/v1/sql?format={query.format}",
            seconds_max=seconds,
            body=request_body(query),
            headers={"content-type": "application/json", "accept": CONTENT_TYPES[query.format]},
        )
        return Reply(
            stats=_stats(response.headers.get("x-frazil-stats"), query.id),
            content=self._chunks(response),
            close=response.close,
        )

    def tables(self) -> Sequence[TableInfo]:
        found = self._json("/api/v1/tables")
        rows = found.get("tables", ()) if isinstance(found, Mapping) else found
        return [_table(row) for row in rows]

    def status(self, seconds_max: float) -> Any:
        """Return the overall status as JSON, without history."""
        return self._json("/api/v1/status?history=false", seconds_max)

    def progress(self, id: str) -> Progress | None:
        try:
            found = self._json(f"/api/v1/queries/{quote(id, safe='')}", seconds_max=CONTROL_SECONDS_MAX)
        except FrazilError:
            # The query may not have started, or may have ended. Missing progress is not an error.
            return None
        return _from_json(Progress, {"tenant": "", "percent": None, "seconds": 0.0, **found})

    def cancel(self, id: str) -> bool:
        try:
            self._request(
                "DELETE", f"/api/v1/queries/{quote(id, safe='')}", seconds_max=CONTROL_SECONDS_MAX
            ).drain_conn()
        except FrazilError:
            return False
        return True

    def close(self) -> None:
        self._http.close()

    def _json(self, path: str, seconds_max: float = READ_SECONDS_MAX) -> Any:
        response = self._request("GET", path, seconds_max=seconds_max)
        try:
            return json.loads(b"".join(self._chunks(response)))
        except ValueError:
            raise ConfigError(f"{self._url} did not return valid JSON: check the URL") from None

    def _request(
        self,
        method: str,
        path: str,
        *,
        seconds_max: float,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """Send a request and return its successful response; raise the API's error otherwise.

        A 503 response with a short Retry-After is retried: no request changes data.
        """
        for attempt in range(RETRIES_MAX + 1):
            response = self._send(method, path, seconds_max, body, {**self._headers, **(headers or {})})
            if response.status < 300:
                return response
            try:
                text = response.read(ERROR_BYTES_MAX)
            except HTTPError:
                text = b""
            finally:
                response.close()
            wait = retry_after(response.headers)
            again = response.status == 503 and wait is not None and wait <= RETRY_AFTER_SECONDS_MAX
            if not again or attempt == RETRIES_MAX:
                raise error_from(response.status, response.headers, text, self._url)
            time.sleep(wait or 0.0)
        raise AssertionError("unreachable")

    def _send(
        self, method: str, path: str, seconds_max: float, body: bytes | None, headers: Mapping[str, str]
    ) -> urllib3.BaseHTTPResponse:
        try:
            return self._http.send(
                method, self._url + path, read_seconds=seconds_max, headers=headers, body=body
            )
        except ProtocolError as error:
            raise Unreachable(f"{self._url} closed the connection without a response") from error
        except SSLError as error:
            raise ConfigError(
                f"the certificate of {self._url} is not trusted ({error}): set ca_file (--ca-file) to the CA "
                "certificate, and use the certificate's host name in url (--url)"
            ) from error
        except HTTPError as error:
            raise Unreachable(f"cannot reach {self._url}: {reason(error)}") from error

    def _chunks(self, response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
        try:
            yield from response.stream(_CHUNK_BYTES)
            response.release_conn()
        except HTTPError as error:
            raise Unreachable(f"the response of {self._url} ended early: retry") from error
        finally:
            response.close()


def _stats(header: str | None, id: str) -> Stats:
    try:
        return stats_from(json.loads(header or "{}"), id)
    except ValueError:
        return Stats(id=id)


def stats_from(found: Any, id: str = "") -> Stats:
    """Parse stats. Unknown fields are ignored."""
    return _from_json(Stats, {"id": id, **found}) if isinstance(found, Mapping) else Stats(id=id)


def _from_json(cls: type[T], found: Mapping[str, Any]) -> T:
    names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    return cls(**{name: value for name, value in found.items() if name in names})


_TIMES = ("first_time", "last_time", "landed_at", "newest_time")
_TABLE_DEFAULTS: Mapping[str, Any] = {
    "doc": "",
    **dict.fromkeys(("rows", "tail_rows", "files", "bytes"), 0),
    **dict.fromkeys(("snapshot_id", *_TIMES)),
}


def _table(found: Mapping[str, Any]) -> TableInfo:
    values: dict[str, Any] = {**_TABLE_DEFAULTS, **found}
    for name in _TIMES:
        values[name] = _micros(values[name])
    if values["snapshot_id"] is not None:
        values["snapshot_id"] = int(values["snapshot_id"])  # sent as text, for JavaScript
    values["columns"] = [
        _from_json(ColumnInfo, {"doc": "", "source": "", **column}) for column in found.get("columns", ())
    ]
    values["health"] = None  # not needed by the client
    return _from_json(TableInfo, values)


def _micros(value: str | int | None) -> int | None:
    if not isinstance(value, str):
        return value
    return micros_of(dt.datetime.fromisoformat(value))
