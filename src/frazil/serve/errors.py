"""Maps errors to HTTP responses."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from frazil.errors import (
    CatalogUnavailable,
    Forbidden,
    FrazilError,
    LimitReached,
    Overloaded,
    QueryInvalid,
    QueryRefused,
    RequestInvalid,
    RequestTooLarge,
    StoreUnavailable,
    Transient,
    Unauthenticated,
)

log = structlog.get_logger("frazil.serve")


class NotFound(Exception):
    """The resource does not exist, or belongs to another tenant: callers cannot tell the difference."""


class Unsupported(Exception):
    """A request body of an unsupported type or encoding."""


@dataclass(frozen=True)
class Problem:
    """An error response. `code` is stable, for programs; `facts` are further members of the body."""

    status: int
    code: str
    message: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    retry_after_seconds: int | None = None

    def response(self) -> Response:
        headers = {}
        if self.retry_after_seconds is not None:
            headers["retry-after"] = str(self.retry_after_seconds)
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        known = {name: value for name, value in self.facts.items() if value is not None}
        body = {"error": {"code": self.code, "message": self.message, **known}}
        return Response(orjson.dumps(body), self.status, headers, "application/json")


DEFECT = Problem(500, "internal", "internal error: see the log of `frazil serve`")


_RESPONSES: Mapping[type[Exception], tuple[int, str]] = {
    QueryInvalid: (400, "query_invalid"),
    QueryRefused: (403, "query_refused"),
    LimitReached: (422, "limit_reached"),
    Overloaded: (429, "overloaded"),
    StoreUnavailable: (503, "store_unavailable"),
    CatalogUnavailable: (503, "catalog_unavailable"),
    Transient: (503, "unavailable"),
    RequestTooLarge: (413, "too_large"),
    RequestInvalid: (400, "request_invalid"),
    Unauthenticated: (401, "unauthenticated"),
    Forbidden: (403, "forbidden"),
    NotFound: (404, "not_found"),
    Unsupported: (415, "unsupported_type"),
}
"""Status and code by error. Subclasses come before their base class."""


def problem(error: Exception) -> Problem:
    """Return the response for an error. Unexpected errors give no details."""
    found = next((entry for kind, entry in _RESPONSES.items() if isinstance(error, kind)), None)
    if found is None:
        return DEFECT
    delay = max(1, math.ceil(error.retry_after_seconds)) if isinstance(error, Transient) else None
    return Problem(*found, str(error), _facts(error), delay)


def _facts(error: Exception) -> dict[str, Any]:
    match error:
        case QueryInvalid() | QueryRefused():
            return {"position": error.position}
        case LimitReached():
            is_key = "." in error.limit  # the other limits are fixed
            hint = f"reduce the query, or raise {error.limit} in the configuration" if is_key else None
            return {"limit": error.limit, "hint": hint}
        case Overloaded():
            return {"limit": error.bound}
        case RequestInvalid():
            return {"parameter": error.parameter}
    return {}


def suggestion(wrong: str, known: Collection[str]) -> str:
    """Return ` Did you mean …?`, or the list of known names."""
    close = difflib.get_close_matches(wrong.lower(), known, n=1, cutoff=0.5)
    if close:
        return f" Did you mean `{close[0]}`?"
    return f" Expected one of: {', '.join(known)}." if known else " There are no parameters."


def add_error_handlers(app: FastAPI) -> None:
    """Turn expected errors into responses. `ResponseMiddleware` handles all others."""

    async def expected(request: Request, error: Exception) -> Response:
        found = problem(error)
        if found is DEFECT:
            log.error("request failed with an unmapped error", exc_info=error)
        return found.response()

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101
        return _of_http(request, error).response()

    async def validation_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101
        return _of_validation(error).response()

    for kind in (FrazilError, NotFound, Unsupported):
        app.add_exception_handler(kind, expected)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, validation_error)


def _of_http(request: Request, error: HTTPException) -> Problem:
    if error.status_code == 404:
        return Problem(404, "not_found", "no such path: see /api/docs")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        return Problem(405, "method_not_allowed", f"{request.method} is not allowed: use {allowed}")
    return Problem(error.status_code, "request_invalid", str(error.detail))


def _of_validation(error: RequestValidationError) -> Problem:
    """Return the response for the first error."""
    first = error.errors()[0]
    source, *path = first["loc"]
    where = ".".join(map(str, path)) or "the request"
    facts = {"parameter": path[0]} if source == "query" and path else {}
    return Problem(400, "request_invalid", f"{where}: {first['msg']}", facts)
