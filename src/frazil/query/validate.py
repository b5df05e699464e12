"""Checks the size and the parameters of a query before it is parsed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from frazil.errors import QueryInvalid, RequestTooLarge
from frazil.query.model import Query
from frazil.sql.statement import check_text, utf8_bytes

PARAMS_MAX = 1000
PARAMS_BYTES_MAX = 1 << 20
_DEPTH_MAX = 16
_INTEGER_MAX = 2**63


def check(query: Query, sql_bytes_max: int) -> None:
    """Check the SQL text and the parameters of a query. Raises QueryInvalid or RequestTooLarge."""
    check_text(query.sql, sql_bytes_max)
    if len(query.params) > PARAMS_MAX:
        raise QueryInvalid(f"there are more than {PARAMS_MAX} parameters: pass a list as one parameter")
    size = sum(
        _param_bytes(value, f"parameter {number}", _DEPTH_MAX) for number, value in enumerate(query.params, 1)
    )
    if size > PARAMS_BYTES_MAX:
        raise RequestTooLarge(
            f"the parameters have {size} bytes; the maximum is {PARAMS_BYTES_MAX}",
            bytes_max=PARAMS_BYTES_MAX,
        )


def _param_bytes(value: Any, what: str, depth: int) -> int:
    """Return the size of a value. Refuses values that JSON cannot represent exactly."""
    if depth == 0:
        raise QueryInvalid(f"{what} is nested too deeply")
    if value is None or isinstance(value, bool):
        return 8
    if isinstance(value, str):
        return utf8_bytes(value, what)
    if isinstance(value, int):
        if not -_INTEGER_MAX <= value < 2 * _INTEGER_MAX:
            raise QueryInvalid(f"{what} is an integer of more than 64 bits: pass it as text and cast it")
        return 8
    if isinstance(value, float):
        if not math.isfinite(value):
            raise QueryInvalid(f"{what} is {value}: pass it as text and cast it, as in $1::DOUBLE")
        return 8
    if isinstance(value, (list, tuple)):
        return 8 + sum(_param_bytes(each, what, depth - 1) for each in value)
    if isinstance(value, Mapping):
        return 8 + sum(
            utf8_bytes(str(key), what) + _param_bytes(each, what, depth - 1) for key, each in value.items()
        )
    raise QueryInvalid(
        f"{what} is a {type(value).__name__}: pass text, numbers, booleans, null, or lists or maps of these"
    )
