"""Maps error responses of the API back to exceptions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from frazil import errors
from frazil.errors import FrazilError, Transient

_CODE_BY_STATUS = {
    400: "request_invalid",
    401: "unauthenticated",
    403: "forbidden",
    404: "not_found",
    413: "too_large",
    422: "limit_reached",
    429: "overloaded",
    503: "unavailable",
}
_CLASSES = (
    errors.StoreUnavailable,
    errors.CatalogUnavailable,
    errors.JobFailed,
    errors.ConfigError,
    errors.RequestInvalid,
    errors.Unauthenticated,
    errors.Forbidden,
)
_CLASS_BY_CODE: dict[str, type[FrazilError]] = {
    "not_found": errors.RequestInvalid,
    "unavailable": Transient,
    **{re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower(): cls for cls in _CLASSES},
}
_RETRY_AFTER_SECONDS = 1.0


def error_from(status: int, headers: Mapping[str, str], body: bytes, url: str) -> FrazilError:
    """Return the exception for a response with status 400 or above."""
    fields = _fields(body)
    if fields is None:
        return _foreign(status, url)
    message = str(fields.get("message") or f"the API returned HTTP status {status}")
    error = _error(str(fields.get("code", "")), message, fields) or _error(
        _CODE_BY_STATUS.get(status, ""), message, fields
    )
    if error is None:
        error = FrazilError(message)
    if isinstance(error, Transient):
        error.retry_after_seconds = retry_after(headers) or _RETRY_AFTER_SECONDS
    if hint := fields.get("hint"):
        error.add_note(str(hint))
    return error


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the Retry-After header in seconds. Dates are ignored: frazil never sends them."""
    try:
        return max(0.0, float(headers.get("retry-after", "")))
    except ValueError:
        return None


def _fields(body: bytes) -> Mapping[str, Any] | None:
    try:
        fields = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return None
    return fields if isinstance(fields, Mapping) else None


def _foreign(status: int, url: str) -> FrazilError:
    """Return the error for a response from another server, such as a proxy."""
    message = f"{url} returned HTTP status {status} without frazil's error format: check the URL"
    if status in (429, 502, 503, 504):
        return Transient(message)
    return errors.Unauthenticated(message) if status == 401 else errors.ConfigError(message)


def _error(code: str, message: str, fields: Mapping[str, Any]) -> FrazilError | None:
    match code:
        case "query_invalid" | "query_refused":
            position = fields.get("position")
            cls = errors.QueryInvalid if code == "query_invalid" else errors.QueryRefused
            return cls(message, position=position if isinstance(position, int) else None)
        case "limit_reached":
            return errors.LimitReached(message, limit=str(fields.get("limit", "")))
        case "overloaded":
            return errors.Overloaded(message, bound=str(fields.get("limit", "")))
        case "too_large":
            return errors.RequestTooLarge(message, bytes_max=int(fields.get("bytes_max") or 0))
    found = _CLASS_BY_CODE.get(code)
    return None if found is None else found(message)
