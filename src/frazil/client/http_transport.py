"""Questions over HTTP, to a running API."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, ProtocolError, SSLError

from frazil.client.error_mapping import error_from, retry_after
from frazil.client.query import wire_body
from frazil.client.transport import Reply, Unreachable
from frazil.errors import ConfigError, FrazilError
from frazil.http_client import HttpClient, reason
from frazil.query.model import CONTENT_TYPES, ColumnInfo, Progress, Query, Stats, TableInfo
from frazil.times import micros_of

CONNECT_SECONDS_MAX = 5.0
READ_SECONDS_MAX = 3600.0
QUEUE_SECONDS_MAX = 120.0
SIDE_SECONDS_MAX = 5.0
"""For what is asked beside a query that runs: how far it is, and to stop it."""
RETRIES_MAX = 2
RETRY_AFTER_SECONDS_MAX = 5.0
ERROR_BYTES_MAX = 1 << 20
_CHUNK_BYTES = 1 << 16

T = TypeVar("T")


def answers(url: str, seconds_max: float = 0.2) -> bool:
    """Whether something listens there."""
    parts = urlsplit(url)
    if parts.hostname is None or not parts.port:
        return False
    try:
        socket.create_connection((parts.hostname, parts.port), timeout=seconds_max).close()
    except OSError:
        return False
    return True


def base_url(text: str) -> str:
    """`text` as the beginning of every request's address."""
    text = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{text} is not an address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ConfigError(f"{text} is not the address of an API: write it like http://127.0.0.1:4380")
    if parts.query or parts.fragment or parts.username is not None:
        raise ConfigError(f"the API's address is scheme, host and port alone; keys go into api_key: {text}")
    return text.rstrip("/")


class HttpTransport:
    """Each question is a request. Safe to use from several threads."""

    def __init__(self, url: str, *, api_key: str | None = None, ca_file: str | Path | None = None) -> None:
        self._url = base_url(url)
        if ca_file is not None and not Path(ca_file).is_file():
            raise ConfigError(f"there is no file {ca_file} with the authority of the API's certificate")
        self._headers = {"user-agent": "frazil"}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._http = HttpClient(
            ca_file=None if ca_file is None else Path(ca_file), connect_seconds=CONNECT_SECONDS_MAX
        )

    @property
    def place(self) -> str:
        return self._url

    def execute(self, query: Query) -> Reply:
        seconds = READ_SECONDS_MAX
        if query.seconds_max is not None:
            seconds = query.seconds_max + QUEUE_SECONDS_MAX
        response = self._request(
            "POST",
            f"/api/v1/sql?format={query.format}",
            seconds_max=seconds,
            body=wire_body(query),
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
        """How the whole does, as JSON, without lines over time."""
        return self._json("/api/v1/status?history=false", seconds_max)

    def progress(self, id: str) -> Progress | None:
        try:
            found = self._json(f"/api/v1/queries/{quote(id, safe='')}", seconds_max=SIDE_SECONDS_MAX)
        except FrazilError:
            # It may not have begun, or is over: how far it is, is never worth an error.
            return None
        return _take(Progress, {"tenant": "", "percent": None, "seconds": 0.0, **found})

    def cancel(self, id: str) -> bool:
        try:
            self._request(
                "DELETE", f"/api/v1/queries/{quote(id, safe='')}", seconds_max=SIDE_SECONDS_MAX
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
            raise ConfigError(
                f"{self._url} does not answer as frazil's API does: check the address"
            ) from None

    def _request(
        self,
        method: str,
        path: str,
        *,
        seconds_max: float,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> urllib3.BaseHTTPResponse:
        """The answer, if it is a good one. None changes data: a 503 that names a delay is asked again."""
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
            raise Unreachable(f"{self._url} closed the connection without an answer") from error
        except SSLError as error:
            raise ConfigError(
                f"the certificate of {self._url} is not trusted ({error}): give the authority that "
                "signed it as ca_file (--ca-file), and the name that it is for as url (--url)"
            ) from error
        except HTTPError as error:
            raise Unreachable(f"cannot reach {self._url}: {reason(error)}") from error

    def _chunks(self, response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
        try:
            yield from response.stream(_CHUNK_BYTES)
            response.release_conn()
        except HTTPError as error:
            raise Unreachable(
                f"the answer of {self._url} broke off, so it is not complete: ask again"
            ) from error
        finally:
            response.close()


def _stats(header: str | None, id: str) -> Stats:
    try:
        return stats_from(json.loads(header or "{}"), id)
    except ValueError:
        return Stats(id=id)


def stats_from(found: Any, id: str = "") -> Stats:
    """Stats as JSON has them. What this release does not know is left out."""
    return _take(Stats, {"id": id, **found}) if isinstance(found, Mapping) else Stats(id=id)


def _take(cls: type[T], found: Mapping[str, Any]) -> T:
    names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    return cls(**{name: value for name, value in found.items() if name in names})


_TABLE_DEFAULTS: Mapping[str, Any] = {
    "doc": "",
    "rows": 0,
    "tail_rows": 0,
    "files": 0,
    "bytes": 0,
    "first_time": None,
    "last_time": None,
    "snapshot_id": None,
    "landed_at": None,
    "newest_time": None,
}


def _table(found: Mapping[str, Any]) -> TableInfo:
    values: dict[str, Any] = {**_TABLE_DEFAULTS, **found}
    for name in ("first_time", "last_time", "landed_at", "newest_time"):
        values[name] = _micros(values[name])
    if values["snapshot_id"] is not None:
        values["snapshot_id"] = int(values["snapshot_id"])  # text: JavaScript could not hold the number
    values["columns"] = [
        _take(ColumnInfo, {"doc": "", "source": "", **column}) for column in found.get("columns", ())
    ]
    values["health"] = None  # for dashboards: nobody asks for it here
    return _take(TableInfo, values)


def _micros(value: str | int | None) -> int | None:
    if not isinstance(value, str):
        return value
    return micros_of(dt.datetime.fromisoformat(value))
