"""`frazil.connect()`: a connection to execute SQL, over HTTP or embedded."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from frazil.client.http_transport import HttpTransport, is_listening, key_from_text
from frazil.client.query import AsOfLike, parse_as_of, parse_params
from frazil.client.transport import Reply, Transport, Unreachable
from frazil.errors import ConfigError
from frazil.query.model import Query, TableInfo

if TYPE_CHECKING:
    import pyarrow as pa

    from frazil.client.result import Result
    from frazil.config import Config

DEFAULT_URL = "http://127.0.0.1:4380"
"""The API's default address."""
_ARROW_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def connect(
    url: str | None = None,
    *,
    api_key: str | None = None,
    config: Config | str | Path | None = None,
    tenant: str | None = None,
    ca_file: str | Path | None = None,
) -> Connection:
    """Connect to frazil.

    With `url`, queries go to the API at that URL. Without `url`, they go to `client.url` of the configuration
    (`config`, or the file that `frazil` itself would read). If that is not set, they go to the API of the
    configuration if it is running. Otherwise the connection reads the tables and the WAL directly.

    `api_key` defaults to the environment variable FRAZIL_API_KEY, then to `client.api_key`; `ca_file` to
    `client.ca_file`.

    With `tenant`, the connection always reads directly: in the API, the API key determines the tenant.
    """
    return Connection(open_transport(url, api_key=api_key, config=config, tenant=tenant, ca_file=ca_file))


def open_transport(
    url: str | None = None,
    *,
    api_key: str | None = None,
    config: Config | str | Path | None = None,
    tenant: str | None = None,
    ca_file: str | Path | None = None,
) -> Transport:
    """Open the transport of `connect`, which describes the parameters."""
    if url is not None and tenant is not None:
        raise ConfigError("url and tenant are both set: with url, the API key determines the tenant")
    # Loading the configuration module takes longer than most queries.
    loaded = _loaded(config) if config is not None or _is_configured() else None
    client = None if loaded is None or tenant is not None else loaded.client
    if tenant is None or api_key is not None:
        api_key = key_from_text(api_key, client)
    if client is not None:
        url, ca_file = url or client.url, ca_file or client.ca_file
    if url is None and tenant is None and loaded is None and is_listening(DEFAULT_URL):
        url = DEFAULT_URL
    if url is not None:
        return HttpTransport(url, api_key=api_key, ca_file=ca_file)
    loaded = _loaded(None) if loaded is None else loaded
    if tenant is None and is_listening(loaded.serve.url):
        return HttpTransport(loaded.serve.url, api_key=api_key, ca_file=ca_file)
    if api_key is not None:
        raise Unreachable(
            f"an API key is set, but no API is running at {loaded.serve.url}: start it with `frazil serve`, "
            "set url (--url), or remove the key to read this machine's files"
        )
    from frazil.client.embedded import EmbeddedTransport

    return EmbeddedTransport(loaded, tenant)


def _is_configured() -> bool:
    others = (name for name in os.environ if name != "FRAZIL_API_KEY")
    return Path("frazil.yaml").exists() or any(name.startswith("FRAZIL_") for name in others)


def _loaded(config: Config | str | Path | None) -> Config:
    from frazil.config import load_config

    if config is None or isinstance(config, str | Path):
        return load_config(None if config is None else Path(config))
    return config


class Connection:
    """Executes SQL. Close it, or use it in a `with` block: it may own processes."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def sql(
        self,
        sql: str,
        params: Sequence[Any] = (),
        *,
        as_of: AsOfLike = None,
        partial: bool = False,
        seconds_max: float | None = None,
        rows_max: int | None = None,
    ) -> Result:
        """Execute SQL and return the complete result. `?` and `$1` in the SQL refer to `params`.

        `as_of` queries the tables as of a time (a datetime, or text like 2026-11-15T10:00:00Z), a snapshot
        ('snapshot:123') or a tag ('tag:name'). With `partial`, files that cannot be read are skipped and
        listed in `stats.missing`.
        """
        from frazil.client.result import Result

        query = Query(
            sql=sql,
            tenant="",
            params=parse_params(params),
            format="arrow",
            as_of=parse_as_of(as_of),
            seconds_max=seconds_max,
            rows_max=rows_max,
            partial=partial,
            id=new_id(),
        )
        began = time.monotonic()
        try:
            reply = self._transport.execute(query)
            table = _table(reply)
        except KeyboardInterrupt:
            self._transport.cancel(query.id)
            raise
        stats = dataclasses.replace(reply.stats, rows=table.num_rows, seconds=time.monotonic() - began)
        return Result(table, stats)

    def tables(self) -> Sequence[TableInfo]:
        """Return the tables with their columns, sizes and freshness."""
        return self._transport.tables()

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<frazil.Connection to {self._transport.address}>"


def new_id() -> str:
    """Return a random query ID, for progress and cancellation."""
    return os.urandom(16).hex()


def _table(reply: Reply) -> pa.Table:
    import pyarrow as pa

    body = b"".join(reply.content)
    # Arrow accepts a truncated stream. Only a complete stream ends with this marker.
    if not body.endswith(_ARROW_END):
        raise Unreachable("the response ended early: retry")
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            return reader.read_all()
    except pa.ArrowInvalid as error:
        raise Unreachable(f"the response is not an Arrow stream ({error}): check the URL") from None
