"""The list of log records, with what is known about the opened one under it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from frazil.dashboard import theme as look
from frazil.dashboard.parts.part import part

_mount = part(__file__, '<div class="frame"></div>')
_KEY = "records"


def show_records(
    rows: list[dict[str, Any]],
    *,
    colours: Mapping[str, str],
    opened: dict[str, Any] | None,
    said: str,
    warning: str,
    has_older: bool,
    is_frozen: bool,
    trace_address: str,
    tailing: bool | None,
    on_action: Callable[[dict[str, Any]], None],
) -> None:
    """`colours` are those of services. `tailing` is None where nobody follows, False while that is paused.
    `on_action` is told what was clicked: `{"do": …, "what": …}`; open, filter, older, newest or pause.
    """

    def act() -> None:
        action = st.session_state[_KEY].get("action")
        if isinstance(action, dict):
            on_action(action)

    levels = [look.severity_level(row["severity"]) for row in rows]
    names = {row["service"] for row in rows}
    _mount(
        key=_KEY,
        data={
            "rows": [{**row, "level": level} for row, level in zip(rows, levels, strict=True)],
            "levels": look.SEVERITY_COLOURS,
            "services": {name: colours.get(name) or look.service_colour(name) for name in names},
            "opened": opened,
            "said": said,
            "warning": warning,
            "has_older": has_older,
            "is_frozen": is_frozen,
            "trace_address": trace_address,
            "tailing": tailing,
        },
        on_action_change=act,
    )
