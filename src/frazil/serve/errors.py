"""From what went wrong to what a client is told: the one map of the API."""

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
    """What was asked for does not exist, or belongs to another tenant, which is the same to who asks."""


class Unsupported(Exception):
    """A body in a form that is not read here."""


@dataclass(frozen=True)
class Problem:
    """`code` is for programs and does not change; `facts` are the members beside it."""

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


DEFECT = Problem(500, "internal", "an internal error; the log of `frazil serve` has it")


def problem(error: Exception) -> Problem:
    """What `error` means to a client. A defect is told without details."""
    message = str(error)
    delay = max(1, math.ceil(error.retry_after_seconds)) if isinstance(error, Transient) else None
    match error:
        case QueryInvalid():
            return Problem(400, "query_invalid", message, {"position": error.position})
        case QueryRefused():
            return Problem(403, "query_refused", message, {"position": error.position})
        case LimitReached():
            is_key = "." in error.limit  # the others are fixed
            hint = f"ask for less, or raise {error.limit} in the server's configuration" if is_key else None
            return Problem(422, "limit_reached", message, {"limit": error.limit, "hint": hint})
        case Overloaded():
            return Problem(429, "overloaded", message, {"limit": error.bound}, delay)
        case StoreUnavailable():
            return Problem(503, "store_unavailable", message, {}, delay)
        case CatalogUnavailable():
            return Problem(503, "catalog_unavailable", message, {}, delay)
        case Transient():
            return Problem(503, "unavailable", message, {}, delay)
        case RequestTooLarge():
            return Problem(413, "too_large", message)
        case RequestInvalid():
            return Problem(400, "request_invalid", message)
        case Unauthenticated():
            return Problem(401, "unauthenticated", message)
        case Forbidden():
            return Problem(403, "forbidden", message)
        case NotFound():
            return Problem(404, "not_found", message)
        case Unsupported():
            return Problem(415, "unsupported_type", message)
        case _:
            return DEFECT


def suggestion(wrong: str, known: Collection[str]) -> str:
    """` Did you mean …?`, or what there is."""
    near = difflib.get_close_matches(wrong.lower(), known, n=1, cutoff=0.5)
    if near:
        return f" Did you mean `{near[0]}`?"
    return f" There are: {', '.join(known)}." if known else " There are none here."


def answer_errors(app: FastAPI) -> None:
    """What handlers raise on purpose becomes an answer. Anything else is for the guard around the app."""

    async def told(request: Request, error: Exception) -> Response:
        found = problem(error)
        if found is DEFECT:
            log.error("an error that no client should see", exc_info=error)
        return found.response()

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101
        return _of_http(request, error).response()

    async def unread(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101
        return Problem(400, "request_invalid", _first_mistake(error)).response()

    for kind in (FrazilError, NotFound, Unsupported):
        app.add_exception_handler(kind, told)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, unread)


def _of_http(request: Request, error: HTTPException) -> Problem:
    if error.status_code == 404:
        return Problem(404, "not_found", "no such path; /api/docs lists them")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        return Problem(405, "method_not_allowed", f"{request.method} is not answered here; use {allowed}")
    return Problem(error.status_code, "request_invalid", str(error.detail))


def _first_mistake(error: RequestValidationError) -> str:
    mistake = error.errors()[0]
    where = ".".join(str(part) for part in mistake["loc"][1:]) or "the request"
    return f"{where}: {mistake['msg']}"
