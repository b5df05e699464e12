"""Parts of a page that are drawn again by themselves."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from frazil.dashboard.api_client import ApiError
from frazil.dashboard.errors import show_trouble
from frazil.dashboard.view import View


def present(draw: Callable[[View], None], view: View, *, every_seconds: float | None = None) -> None:
    """Draws now, and again whenever the page refreshes, or `every_seconds`; what goes wrong is told in place.

    Streamlit draws such a part again without the frame around it, which tells of trouble elsewhere.
    """

    def drawn() -> None:
        try:
            draw(view)
        except ApiError as trouble:
            show_trouble(trouble)

    # The name tells parts of one page apart.
    drawn.__qualname__ = f"{draw.__module__}.{draw.__qualname__}"
    st.fragment(drawn, run_every=every_seconds or view.refresh_seconds)()
