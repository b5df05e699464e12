"""`frazil query`: one query, or a prompt."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from frazil.client.connection import new_id, open_transport
from frazil.client.output import BINARY, OutputFormat, format_for
from frazil.client.query import param_from_text, parse_as_of
from frazil.client.screen import Screen, execute_and_print
from frazil.client.transport import Transport, Unreachable
from frazil.errors import ConfigError, Forbidden, FrazilError, RequestInvalid, Unauthenticated
from frazil.query.model import Query

QUERY_FAILED, NOT_EXECUTED, INTERRUPTED = 1, 2, 130
_NOT_EXECUTED_ERRORS = (ConfigError, Unreachable, Unauthenticated, Forbidden)
SQL_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class QueryOptions:
    sql: str | None = None
    file: Path | None = None
    format: OutputFormat | None = None
    output: Path | None = None
    as_of: str | None = None
    params: Sequence[str] = ()
    partial: bool = False
    limit_rows: int | None = None
    timeout_seconds: float | None = None
    url: str | None = None
    api_key: str | None = None
    ca_file: Path | None = None
    tenant: str | None = None
    config: Path | None = None


def run(options: QueryOptions, screen: Screen | None = None) -> int:
    """Return the exit code: 0, 1 if the query failed, 2 if it was not executed, 130 on Ctrl-C."""
    screen = Screen() if screen is None else screen
    output = None if options.output == Path("-") else options.output
    format = options.format or format_for(output)
    try:
        sql = _sql(options)
        if format in BINARY and output is None and screen.out.is_terminal and sql is not None:
            raise RequestInvalid(f"{format} cannot be written to a terminal: use --output FILE or a pipe")
        query = _query(options, sql or "")
        transport = open_transport(
            options.url,
            api_key=options.api_key,
            config=options.config,
            tenant=options.tenant,
            ca_file=options.ca_file,
        )
    except FrazilError as error:
        screen.error(error)
        return NOT_EXECUTED
    except KeyboardInterrupt:
        screen.message("cancelled", "yellow")
        return INTERRUPTED
    try:
        if sql is None:
            from frazil.client.prompt import Prompt

            return Prompt(transport, screen, query, "table" if format in BINARY else format).run()
        return _once(transport, query, screen, format, output)
    finally:
        transport.close()


def _once(
    transport: Transport, query: Query, screen: Screen, format: OutputFormat, output: Path | None
) -> int:
    try:
        execute_and_print(transport, query, screen, format=format, output=output)
    except FrazilError as error:
        screen.error(error, query.sql)
        return NOT_EXECUTED if isinstance(error, _NOT_EXECUTED_ERRORS) else QUERY_FAILED
    except KeyboardInterrupt:
        screen.message("cancelled", "yellow")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader, such as `head`, closed the pipe. Python must not flush to it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _sql(options: QueryOptions) -> str | None:
    """Return the SQL, or None to start a prompt."""
    if options.sql is not None and options.file is not None:
        raise RequestInvalid("SQL was given both as an argument and with --file: use only one")
    if options.file is not None:
        try:
            sql = options.file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise RequestInvalid(f"cannot read {options.file}: {error}") from None
    elif options.sql in (None, "-"):
        if options.sql is None and sys.stdin.isatty():
            return None
        sql = sys.stdin.read(SQL_BYTES_MAX)
    else:
        sql = options.sql or ""
    if not sql.strip():
        raise RequestInvalid("no SQL was given: pass it as an argument, with --file, or on standard input")
    if sql.lstrip().startswith("\\"):
        raise RequestInvalid(
            "backslash commands work only at the prompt: run `frazil query` in a terminal, or use "
            "SHOW TABLES and DESCRIBE logs"
        )
    return sql


def _query(options: QueryOptions, sql: str) -> Query:
    return Query(
        sql=sql,
        tenant="",
        params=[param_from_text(text) for text in options.params],
        as_of=parse_as_of(options.as_of),
        seconds_max=options.timeout_seconds,
        rows_max=options.limit_rows,
        partial=options.partial,
        id=new_id(),
    )
