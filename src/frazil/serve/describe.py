"""How the OpenAPI page describes errors."""

from __future__ import annotations

from typing import Any

_TEXTS = {
    400: ("SQL or a parameter that cannot be understood.", "query_invalid", "no column `servce_name`"),
    401: ("No valid API key.", "unauthenticated", "no API key: send `Authorization: Bearer fz_…`"),
    403: ("The key may not do this, or the SQL leaves the tables.", "query_refused", "read_csv is refused"),
    404: ("There is none, for this tenant.", "not_found", "no such trace"),
    413: ("The request is too large.", "too_large", "the request is larger than 1441792 bytes"),
    415: ("A body of another type.", "unsupported_type", "the content type must be application/json"),
    422: ("A limit was hit; `limit` is its key.", "limit_reached", "the query ran longer than 30 s"),
    429: ("Too many wait already; `Retry-After` says when to come again.", "overloaded", "64 queries wait"),
    503: ("The store or the catalog does not answer.", "store_unavailable", "the store does not answer"),
}


def _described(description: str, code: str, message: str) -> dict[str, Any]:
    example = {"error": {"code": code, "message": message}}
    return {"description": description, "content": {"application/json": {"example": example}}}


JSON_ERRORS: dict[int | str, dict[str, Any]] = {
    status: _described(*texts) for status, texts in _TEXTS.items()
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: JSON_ERRORS[status] for status in (400, 401, 403, 413, 422, 429, 503)
}
"""What any question can end in."""
