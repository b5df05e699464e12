"""What a person sees when something cannot be shown."""

from __future__ import annotations

import streamlit as st

from frazil.dashboard import theme as look
from frazil.dashboard.api_client import ApiError
from frazil.dashboard.format import plain

_TITLES = {
    "unreachable": "The API does not answer",
    "unauthenticated": "Your login has ended, or the key is not valid any more",
    "forbidden": "This key may not see this",
    "limit_reached": "That is more than a question may cost",
    "overloaded": "Too many questions at once",
    "store_unavailable": "The store does not answer",
    "catalog_unavailable": "The catalog does not answer",
    "query_invalid": "That cannot be understood",
    "request_invalid": "That cannot be understood",
    "query_refused": "That is not allowed",
    "not_found": "There is no such thing here",
}


def show_trouble(trouble: ApiError) -> None:
    """Kind, in place, with what to do next."""
    title = _TITLES.get(trouble.code, "That did not work")
    st.error(f"**{title}.** {_sentence(trouble.message)}", icon=":material/error:")
    if trouble.code == "unauthenticated":
        look.link("Log in", "/login")
    elif trouble.code == "limit_reached":
        st.caption("Choose a shorter time range, or filter by service.")
    elif trouble.code in ("unreachable", "overloaded", "store_unavailable", "catalog_unavailable"):
        st.button("Try again", icon=":material/refresh:")


def _sentence(text: str) -> str:
    return plain(text[:1].upper() + text[1:])
