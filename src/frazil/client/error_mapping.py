"""The API's error answers, back to the errors that they were."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from frazil import errors
from frazil.errors import FrazilError, Transient

_BY_STATUS = {
    400: "request_invalid",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    413: "too_large",
    422: "limit_reached",
    429: "overloaded",
    503: "unavailable",
}
_RETRY_AFTER_SECONDS = 1.0


def error_from(status: int, headers: Mapping[str, str], body: bytes, url: str) -> FrazilError:
    """The error that an answer of 400 and above stands for."""
    facts = _facts(body)
    if facts is None:
        return _foreign(status, url)
    code = str(facts.get("code", ""))
    make = _MAKERS.get(code) or _MAKERS.get(_BY_STATUS.get(status, ""), _unnamed)
    error = make(str(facts.get("message") or f"the API answered {status}"), facts)
    if isinstance(error, Transient):
        error.retry_after_seconds = retry_after(headers) or _RETRY_AFTER_SECONDS
    if hint := facts.get("hint"):
        error.add_note(str(hint))
    return error


def retry_after(headers: Mapping[str, str]) -> float | None:
    """How long the answer says to wait. The form with a date is not read: frazil never sends it."""
    try:
        return max(0.0, float(headers.get("retry-after", "")))
    except ValueError:
        return None


def _facts(body: bytes) -> Mapping[str, Any] | None:
    try:
        facts = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return None
    return facts if isinstance(facts, Mapping) else None


def _foreign(status: int, url: str) -> FrazilError:
    """An answer without frazil's error body: a proxy in between, or another server on the port."""
    message = f"{url} answered {status}, and not as frazil's API does: check the address"
    if status in (429, 502, 503, 504):
        return Transient(message)
    return errors.Unauthenticated(message) if status == 401 else errors.ConfigError(message)


def _position(facts: Mapping[str, Any]) -> int | None:
    position = facts.get("position")
    return position if isinstance(position, int) else None


def _unnamed(message: str, facts: Mapping[str, Any]) -> FrazilError:
    return FrazilError(message)


def _plain(cls: type[FrazilError]) -> Callable[[str, Mapping[str, Any]], FrazilError]:
    return lambda message, _: cls(message)


def _code(cls: type[FrazilError]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


_MAKERS: dict[str, Callable[[str, Mapping[str, Any]], FrazilError]] = {
    **{
        _code(cls): _plain(cls)
        for cls in (
            errors.StoreUnavailable,
            errors.CatalogUnavailable,
            errors.JobFailed,
            errors.ConfigError,
            errors.RequestInvalid,
            errors.Unauthenticated,
            errors.Forbidden,
        )
    },
    "query_invalid": lambda message, facts: errors.QueryInvalid(message, position=_position(facts)),
    "query_refused": lambda message, facts: errors.QueryRefused(message, position=_position(facts)),
    "limit_reached": lambda message, facts: errors.LimitReached(message, limit=str(facts.get("limit", ""))),
    "overloaded": lambda message, facts: errors.Overloaded(message, bound=str(facts.get("limit", ""))),
    "unavailable": lambda message, _: Transient(message),
    "not_found": lambda message, _: errors.RequestInvalid(message),
    "too_large": lambda message, facts: errors.RequestTooLarge(
        message, bytes_max=int(facts.get("bytes_max") or 0)
    ),
}
