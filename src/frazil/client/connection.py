"""`frazil.connect()`: one object to ask, wherever the answers come from."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from frazil.client.http_transport import HttpTransport, answers
from frazil.client.query import AsOfLike, parse_as_of, parse_params
from frazil.client.transport import Reply, Transport, Unreachable
from frazil.errors import ConfigError
from frazil.query.model import Query, TableInfo

if TYPE_CHECKING:
    import pyarrow as pa

    from frazil.client.result import Result
    from frazil.config import Config

DEFAULT_URL = "http://127.0.0.1:4380"
"""Where the API listens when nothing is configured."""
_ARROW_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def connect(
    url: str | None = None,
    *,
    api_key: str | None = None,
    config: Config | str | Path | None = None,
    tenant: str | None = None,
    ca_file: str | Path | None = None,
) -> Connection:
    """A connection to ask SQL.

    With `url`, questions go to the API there. Without, to the API of the configuration (`config`, else what
    `frazil` itself would read) if it runs, and else to the tables and the WAL directly.

    `tenant` always asks the tables directly: over the API the tenant is the key's.
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
    """What `connect` asks through."""
    if url is not None:
        if tenant is not None:
            raise ConfigError("over the API the tenant is the API key's: give url or tenant, not both")
        return HttpTransport(url, api_key=api_key, ca_file=ca_file)
    if config is None and tenant is None and not _is_configured() and answers(DEFAULT_URL):
        # Reading a configuration costs more than the question. There is none to read.
        return HttpTransport(DEFAULT_URL, api_key=api_key, ca_file=ca_file)
    loaded = _loaded(config)
    if tenant is None and answers(loaded.serve.url):
        return HttpTransport(loaded.serve.url, api_key=api_key, ca_file=ca_file)
    if api_key is not None:
        raise Unreachable(
            f"no API answers at {loaded.serve.url} to show the key to: start it with `frazil serve`, give "
            "url (--url), or leave the key out to read this machine's files"
        )
    from frazil.client.embedded import EmbeddedTransport

    return EmbeddedTransport(loaded, tenant)


def _is_configured() -> bool:
    return Path("frazil.yaml").exists() or any(name.startswith("FRAZIL_") for name in os.environ)


def _loaded(config: Config | str | Path | None) -> Config:
    from frazil.config import load_config

    if config is None or isinstance(config, str | Path):
        return load_config(None if config is None else Path(config))
    return config


class Connection:
    """Asks SQL. Close it, or use it in a `with` block: it may hold processes."""

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
        """The answer, complete. `?` and `$1` in the SQL stand for `params`.

        `as_of`: what the tables held at a time (a datetime, or text like 2026-11-15T10:00:00Z), in a snapshot
        ('snapshot:123') or under a tag ('tag:name'). `partial`: answer without files that cannot be read now;
        `stats.missing` names them.
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
        """The tables that can be asked, with their columns, sizes and freshness."""
        return self._transport.tables()

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<frazil.Connection to {self._transport.place}>"


def new_id() -> str:
    """A name to watch or cancel a query by."""
    return os.urandom(16).hex()


def _table(reply: Reply) -> pa.Table:
    import pyarrow as pa

    body = b"".join(reply.content)
    # Arrow takes the end of the bytes for the end of the rows. The mark says that these were all.
    if not body.endswith(_ARROW_END):
        raise Unreachable("the answer broke off, so it is not complete: ask again")
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            return reader.read_all()
    except pa.ArrowInvalid as error:
        raise Unreachable(f"the answer is not an Arrow stream ({error}): check the address") from None
