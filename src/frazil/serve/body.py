"""Reads a query from the body of a request. The query service checks its SQL and parameters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Annotated, Any

import structlog
from fastapi import Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import from_json
from starlette.requests import ClientDisconnect

from frazil.config import Config
from frazil.errors import RequestInvalid, RequestTooLarge
from frazil.query.model import AsOf, Format, Query
from frazil.query.validate import PARAMS_BYTES_MAX
from frazil.serve.auth import Caller
from frazil.serve.errors import Unsupported, suggestion
from frazil.serve.parameters import parse_time

_BODY_SECONDS_MAX = 30.0
_TAG_CHARS_MAX = 256
_INT64 = 2**63
_PLAIN = ("text/plain", "application/sql")

log = structlog.get_logger("frazil.serve")


def _to_integer(value: Any) -> Any:
    """Accept 10.0 as an integer, for clients that have no integers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class SqlRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)

    sql: Annotated[str, Field(pattern=r"\S")]
    """One SELECT in DuckDB's dialect."""
    params: list[Any] | None = None
    """One value for each `?` or `$1`: text, numbers, booleans, null, or arrays and objects of them."""
    as_of: Annotated[
        Any,
        WithJsonSchema(
            {
                "oneOf": [
                    {"type": "string"},
                    {"type": "object", "properties": {"snapshot": {"type": "integer"}}},
                    {"type": "object", "properties": {"tag": {"type": "string"}}},
                ]
            }
        ),
    ] = None
    """Query an earlier version of the tables: at a time, in a snapshot or under a tag."""
    seconds_max: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """A time limit below the server's."""
    rows_max: Annotated[int, Field(gt=0), BeforeValidator(_to_integer)] | None = None
    """Drop rows beyond this number. Below the server's limit."""
    partial: bool = False
    """Skip files that cannot be read now; `stats.missing` tells how many."""
    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,64}$")] | None = None
    """A query id, to watch or cancel the query."""


_ERRORS = {
    "sql": '`sql` is missing: send {"sql": "SELECT …"}',
    "params": "`params` must be an array, one value for each `?` or `$1` in the SQL",
    "seconds_max": "`seconds_max` must be a number above 0",
    "rows_max": "`rows_max` must be a whole number above 0",
    "partial": "`partial` must be true or false",
    "id": "`id` may have at most 64 letters, digits, - _ and .",
}


async def read_query(request: Request, caller: Caller, config: Config, format: Format) -> Query:
    """Raises RequestInvalid, RequestTooLarge or Unsupported."""
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type != "application/json" and content_type not in _PLAIN:
        raise Unsupported("the content type must be application/json, or application/sql for plain SQL")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Unsupported("the body must not be compressed")
    # JSON may escape each character of the SQL in six.
    sql_bytes_max = config.query.sql_bytes_max * (1 if content_type in _PLAIN else 6)
    body = _parse(await _body(request, sql_bytes_max + PARAMS_BYTES_MAX), is_plain=content_type in _PLAIN)
    return Query(
        sql=body.sql,
        tenant=caller.tenant,
        params=tuple(body.params or ()),
        format=format,
        as_of=_as_of(body.as_of),
        seconds_max=body.seconds_max,
        rows_max=body.rows_max,
        partial=body.partial,
        unowned="admin" in caller.roles,
        who=caller.name,
        id=body.id or "",
    )


async def _body(request: Request, bytes_max: int) -> bytes:
    too_large = RequestTooLarge(f"the request is larger than {bytes_max} bytes", bytes_max=bytes_max)
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > bytes_max:
        raise too_large
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_BODY_SECONDS_MAX):
            async for piece in request.stream():
                size += len(piece)
                if size > bytes_max:
                    raise too_large
                pieces.append(piece)
    except TimeoutError:
        raise RequestInvalid(f"the body was not received within {_BODY_SECONDS_MAX:g} s") from None
    except ClientDisconnect:  # also raised for an invalid chunk
        log.debug("request body ended early", bytes=size)
        raise RequestInvalid("the body is incomplete, or has an invalid chunk") from None
    return b"".join(pieces)


def _parse(body: bytes, *, is_plain: bool) -> SqlRequest:
    try:
        return SqlRequest(**({"sql": body.decode()} if is_plain else _members(body)))
    except UnicodeDecodeError:
        raise RequestInvalid("the SQL is not UTF-8") from None
    except ValidationError as error:
        raise RequestInvalid(_ERRORS[str(error.errors(include_url=False)[0]["loc"][0])]) from None


def _members(body: bytes) -> dict[str, Any]:
    try:
        members = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RequestInvalid(f"the body is not valid JSON: {error}") from None
    if not isinstance(members, dict):
        raise RequestInvalid('the body must be an object, such as {"sql": "SELECT 1"}')
    for name in members:
        if name not in SqlRequest.model_fields:  # pydantic would list all of them: seconds for a large body
            raise RequestInvalid(
                f"unknown member `{name[:100]}`.{suggestion(name, list(SqlRequest.model_fields))}"
            )
    return members


def _as_of(value: Any) -> AsOf | None:
    if value is None:
        return None
    if isinstance(value, str):
        return AsOf(time=parse_time("as_of", value, time.time()))
    if isinstance(value, Mapping) and len(value) == 1:
        snapshot, tag = value.get("snapshot"), value.get("tag")
        if isinstance(snapshot, str) and snapshot.isdecimal() and len(snapshot) < 20:
            snapshot = int(snapshot)  # JavaScript numbers cannot hold 64 bits
        if isinstance(snapshot, int) and not isinstance(snapshot, bool) and 0 <= snapshot < _INT64:
            return AsOf(snapshot_id=snapshot)
        if isinstance(tag, str) and 0 < len(tag) <= _TAG_CHARS_MAX:
            return AsOf(tag=tag)
    raise RequestInvalid(
        '`as_of` must be a time such as "2026-11-15T10:00:00Z", {"snapshot": 123} or {"tag": "x"}'
    )
