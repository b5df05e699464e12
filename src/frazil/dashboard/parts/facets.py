"""A row of names with how often each occurs, to choose from by a click."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import streamlit as st

_HERE = Path(__file__).parent
_mount = st.components.v2.component(
    "frazil_facets",
    html='<div class="facets" data-testid="facets"></div>',
    css=(_HERE / "facets.css").read_text(),
    js=(_HERE / "facets.js").read_text(),
)


def show_facets(
    counts: Mapping[str, int],
    colours: Mapping[str, str],
    chosen: Collection[str],
    *,
    key: str,
    on_toggle: Callable[[str], None],
) -> None:
    def toggle() -> None:
        name = st.session_state[key].get("toggle")
        if isinstance(name, str):
            on_toggle(name)

    _mount(
        key=key,
        data=[
            {"name": name, "count": count, "colour": colours[name], "chosen": name in chosen}
            for name, count in counts.items()
        ],
        on_toggle_change=toggle,
    )
