"""A question as it comes in a request: bounded, and every mistake named."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from typing import Any

import orjson
import structlog
from fastapi import Request
from starlette.requests import ClientDisconnect

from frazil.config import Config
from frazil.errors import QueryInvalid, RequestInvalid, RequestTooLarge
from frazil.query.model import AsOf, Format, Question
from frazil.query.question import PARAMS_BYTES_MAX, PARAMS_MAX
from frazil.serve.auth import Caller
from frazil.serve.errors import Unsupported, suggestion
from frazil.serve.parameters import moment

_PARAMS_DEPTH_MAX = 4
_BODY_SECONDS_MAX = 30.0
_ID_CHARS_MAX = 64
_TAG_CHARS_MAX = 256
_INT64 = 2**63
_FIELDS = ("sql", "params", "as_of", "seconds_max", "rows_max", "partial", "id")
_PLAIN = ("text/plain", "application/sql")

log = structlog.get_logger("frazil.serve")


async def read_question(request: Request, caller: Caller, config: Config, format: Format) -> Question:
    """The request's question. The SQL itself is for the query service to judge."""
    content_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if content_type != "application/json" and content_type not in _PLAIN:
        raise Unsupported("the content type must be application/json, or application/sql for the SQL alone")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Unsupported("the body must not be compressed")
    sql_bytes_max = config.query.sql_bytes_max
    # JSON may spell each character of the SQL in six.
    body = await _body(request, sql_bytes_max * (6 if content_type not in _PLAIN else 1) + PARAMS_BYTES_MAX)
    fields = {"sql": _text(body)} if content_type in _PLAIN else _object(body)
    sql = fields.get("sql")
    if not isinstance(sql, str) or not sql.strip():
        raise RequestInvalid('`sql` is missing: send {"sql": "SELECT …"}')
    if len(sql.encode("utf-8", "surrogatepass")) > sql_bytes_max:
        raise RequestTooLarge(
            f"the SQL is longer than {sql_bytes_max} bytes (query.sql_bytes_max)", bytes_max=sql_bytes_max
        )
    if any(0xD800 <= ord(char) <= 0xDFFF or char == "\0" for char in sql):
        raise QueryInvalid("the SQL holds a character that is not text")
    return Question(
        sql=sql,
        tenant=caller.tenant,
        params=_params(fields.get("params", [])),
        format=format,
        as_of=_as_of(fields.get("as_of")),
        seconds_max=_positive(fields, "seconds_max"),
        rows_max=_rows_max(fields),
        partial=_partial(fields),
        unowned="admin" in caller.roles,
        who=caller.name,
        id=query_id(fields.get("id") or ""),
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
        raise RequestInvalid("the body came too slowly") from None
    except ClientDisconnect:  # also raised for a chunk that is not valid
        log.debug("request body ended early", bytes=size)
        raise RequestInvalid("the body ended before it was complete, or its chunks are not valid") from None
    return b"".join(pieces)


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise RequestInvalid("the SQL is not UTF-8") from None


def _object(body: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestInvalid(f"the body is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise RequestInvalid('the body must be an object, such as {"sql": "SELECT 1"}')
    for name in fields:
        if name not in _FIELDS:
            raise RequestInvalid(f"there is no member `{name[:100]}`.{suggestion(name, _FIELDS)}")
    return fields


def _params(given: Any) -> tuple[Any, ...]:
    if given is None:
        return ()
    if not isinstance(given, list):
        raise RequestInvalid("`params` must be an array, one value for each `?` or `$1` in the SQL")
    if len(given) > PARAMS_MAX:
        raise RequestInvalid(f"`params` has more than {PARAMS_MAX} values; join a list instead")
    for value in given:
        _check_value(value, _PARAMS_DEPTH_MAX)
    return tuple(given)


def _check_value(value: Any, depth: int) -> None:
    if depth == 0:
        raise RequestInvalid(f"`params` is nested deeper than {_PARAMS_DEPTH_MAX} arrays")
    if isinstance(value, dict):
        raise RequestInvalid("`params` holds an object; only text, numbers, booleans, null and arrays can be")
    if isinstance(value, list):
        for item in value:
            _check_value(item, depth - 1)


def _as_of(given: Any) -> AsOf | None:
    if given is None:
        return None
    if isinstance(given, str):
        return AsOf(time=moment("as_of", given, time.time()))
    if isinstance(given, Mapping) and len(given) == 1:
        snapshot, tag = given.get("snapshot"), given.get("tag")
        if isinstance(snapshot, str) and snapshot.isdecimal() and len(snapshot) < 20:
            snapshot = int(snapshot)  # JavaScript cannot hold such numbers
        if isinstance(snapshot, int) and not isinstance(snapshot, bool) and 0 <= snapshot < _INT64:
            return AsOf(snapshot_id=snapshot)
        if isinstance(tag, str) and 0 < len(tag) <= _TAG_CHARS_MAX:
            return AsOf(tag=tag)
    raise RequestInvalid(
        '`as_of` is a time such as "2026-11-15T10:00:00Z", {"snapshot": 123} or {"tag": "x"}'
    )


def _positive(fields: Mapping[str, Any], name: str) -> float | None:
    given = fields.get(name)
    if given is None:
        return None
    if (
        isinstance(given, bool)
        or not isinstance(given, int | float)
        or not math.isfinite(given)
        or given <= 0
    ):
        raise RequestInvalid(f"`{name}` must be a number above 0")
    return float(given)


def _rows_max(fields: Mapping[str, Any]) -> int | None:
    given = _positive(fields, "rows_max")
    if given is None:
        return None
    if not given.is_integer():
        raise RequestInvalid("`rows_max` must be a whole number")
    return int(given)


def _partial(fields: Mapping[str, Any]) -> bool:
    given = fields.get("partial", False)
    if not isinstance(given, bool):
        raise RequestInvalid("`partial` must be true or false")
    return given


def query_id(given: Any) -> str:
    """An id that who asks may choose: it comes back in a header and stands in a path."""
    if not isinstance(given, str) or len(given) > _ID_CHARS_MAX:
        raise RequestInvalid(f"`id` must be a text of at most {_ID_CHARS_MAX} characters")
    if not all(char.isascii() and (char.isalnum() or char in "-_.") for char in given):
        raise RequestInvalid("`id` may have letters, digits, - _ and . only")
    return given
