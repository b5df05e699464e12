"""Records over time in stacked bars; a range is chosen by drawing over them."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from frazil.dashboard.parts.part import part

_mount = part(__file__, '<div class="frame"></div>')


def show_histogram(
    counted: Mapping[str, Any],
    colours: Mapping[str, str],
    *,
    key: str,
    noun: str,
    on_zoom: Callable[[dt.datetime, dt.datetime], None],
    is_zoomed: bool = False,
    warning: str = "",
) -> None:
    """`counted`: an answer of `/api/v1/logs/counts` or `/spans/counts`. `on_zoom` is told the range that was
    drawn; while `is_zoomed`, also a wider one. `warning`: what the counts lack.
    """

    def zoom() -> None:
        chosen = st.session_state[key].get("zoom")
        if isinstance(chosen, (list, tuple)) and len(chosen) == 2:
            with contextlib.suppress(ValueError, OverflowError, OSError):  # wider than time is
                start, end = (dt.datetime.fromtimestamp(float(at) / 1000, dt.UTC) for at in chosen)
                on_zoom(start, end)

    _mount(
        key=key,
        data={
            "from": counted["from"],
            "to": counted["to"],
            "first": counted["first_bucket"],
            "step_seconds": counted["bucket_seconds"],
            "series": [
                {**series, "colour": colours.get(series["name"], "#94a3b8")} for series in counted["series"]
            ],
            "total": counted["total"],
            "noun": noun,
            "is_zoomed": is_zoomed,
            "warning": warning,
        },
        on_zoom_change=zoom,
    )
