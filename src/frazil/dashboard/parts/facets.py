"""A row of names with how often each occurs, to choose from by a click."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import streamlit as st

from frazil.dashboard.parts.part import part

_mount = part(__file__, '<div class="facets" data-testid="facets"></div>')


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
