"""Components of the Logs page: service facets, histogram and the list of records."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable, Collection, Mapping
from typing import Any

import streamlit as st

from frazil.dashboard import theme
from frazil.dashboard.parts.component import component

_facets = component("facets", '<div class="facets" data-testid="facets"></div>')
_histogram = component("histogram", '<div class="frame"></div>')
_records = component("records", '<div class="frame"></div>')


def show_facets(
    counts: Mapping[str, int],
    colours: Mapping[str, str],
    chosen: Collection[str],
    *,
    key: str,
    on_toggle: Callable[[str], None],
) -> None:
    """Shows names with their counts as buttons to choose from."""

    def toggle() -> None:
        name = st.session_state[key].get("toggle")
        if isinstance(name, str):
            on_toggle(name)

    _facets(
        key=key,
        data=[
            {"name": name, "count": count, "colour": colours[name], "chosen": name in chosen}
            for name, count in counts.items()
        ],
        on_toggle_change=toggle,
    )


def show_histogram(
    counts: Mapping[str, Any],
    *,
    key: str,
    on_zoom: Callable[[dt.datetime, dt.datetime], None],
    is_zoomed: bool,
    warning: str,
) -> None:
    """Shows a response of `/api/v1/logs/counts` as stacked bars. `on_zoom` receives the time range that the
    user selects; while `is_zoomed`, the user can also zoom out.
    """

    def zoom() -> None:
        chosen = st.session_state[key].get("zoom")
        if isinstance(chosen, (list, tuple)) and len(chosen) == 2:
            with contextlib.suppress(ValueError, OverflowError, OSError):  # beyond the calendar
                start, end = (dt.datetime.fromtimestamp(float(at) / 1000, dt.UTC) for at in chosen)
                on_zoom(start, end)

    _histogram(
        key=key,
        data={
            "from": counts["from"],
            "to": counts["to"],
            "first": counts["first_bucket"],
            "step_seconds": counts["bucket_seconds"],
            "series": [
                {**series, "colour": theme.SEVERITY_COLOURS.get(series["name"], theme.QUIET)}
                for series in counts["series"]
            ],
            "total": counts["total"],
            "noun": "records",
            "is_zoomed": is_zoomed,
            "warning": warning,
        },
        on_zoom_change=zoom,
    )


def show_records(
    rows: list[dict[str, Any]],
    *,
    colours: Mapping[str, str],
    opened: dict[str, Any] | None,
    summary: str,
    warning: str,
    has_older: bool,
    is_frozen: bool,
    trace_address: str,
    tailing: bool | None,
    on_action: Callable[[dict[str, Any]], None],
) -> None:
    """Shows the list of records. `colours` are by service. `tailing` is None without the live tail, False
    while the tail is paused.
    `on_action` receives the user's action, `{"do": …, "what": …}`: open, filter, older, newest or pause.
    """

    def act() -> None:
        action = st.session_state["records"].get("action")
        if isinstance(action, dict):
            on_action(action)

    names = {row["service"] for row in rows}
    of_service = theme.service_colours({*colours, *names})
    _records(
        key="records",
        data={
            "rows": [{**row, "level": theme.severity_level(row["severity"])} for row in rows],
            "levels": theme.SEVERITY_COLOURS,
            "services": {name: of_service[name] for name in names},
            "opened": opened,
            "summary": summary,
            "warning": warning,
            "has_older": has_older,
            "is_frozen": is_frozen,
            "trace_address": trace_address,
            "tailing": tailing,
        },
        on_action_change=act,
    )
