"""What a person sees when something cannot be shown."""

from __future__ import annotations

import streamlit as st

from frazil.dashboard import theme as look
from frazil.dashboard.api_client import ApiError
from frazil.dashboard.format import plain

_TITLES = {
    "unreachable": "The API is unreachable",
    "unauthenticated": "Your session has expired, or the API key is no longer valid",
    "forbidden": "This API key does not have permission",
    "limit_reached": "Query limit exceeded",
    "overloaded": "Too many concurrent queries",
    "store_unavailable": "Storage is unavailable",
    "catalog_unavailable": "The catalog is unavailable",
    "query_invalid": "Invalid query",
    "request_invalid": "Invalid request",
    "query_refused": "Query not allowed",
    "not_found": "Not found",
}


def show_trouble(trouble: ApiError) -> None:
    """Kind, in place, with what to do next."""
    title = _TITLES.get(trouble.code, "Request failed")
    st.error(f"**{title}.** {_sentence(trouble.message)}", icon=":material/error:")
    if trouble.code == "unauthenticated":
        look.link("Log in", "/login")
    elif trouble.code == "limit_reached":
        st.caption("Choose a shorter time range, or filter by service.")
    elif trouble.code in ("unreachable", "overloaded", "store_unavailable", "catalog_unavailable"):
        st.button("Try again", icon=":material/refresh:")


def _sentence(text: str) -> str:
    return plain(text[:1].upper() + text[1:])
