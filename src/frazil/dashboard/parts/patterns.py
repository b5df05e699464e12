"""The component that lists templates of log lines, with counts and a trend."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import streamlit as st

from frazil.dashboard import theme
from frazil.dashboard.format import format_count
from frazil.dashboard.parts.component import component
from frazil.query.reads.patterns import Pattern, Patterns
from frazil.tables.derived.log_patterns import MASK

_TEMPLATE_CHARS_MAX = 512
_SERVICE_CHARS_MAX = 80

_patterns = component("patterns", '<div class="frame" data-testid="patterns"></div>')


def show_patterns(
    found: Patterns, *, summary: str, new: Collection[int], key: str, on_open: Callable[[Pattern], None]
) -> None:
    """Shows the patterns; those of `new` are marked. `on_open` receives the one that the user clicks."""
    by_id = {str(pattern.id): pattern for pattern in found.found}

    def open_() -> None:
        pattern = by_id.get(str(st.session_state[key].get("opened")))
        if pattern is not None:
            on_open(pattern)

    names = {service for pattern in found.found for service in pattern.services if service}
    data = {
        "summary": summary,
        "levels": theme.SEVERITY_COLOURS,
        "rows": pattern_rows(found, new, theme.service_colours(names)),
    }
    _patterns(key=key, data=data, on_opened_change=open_)


def pattern_rows(found: Patterns, new: Collection[int], colours: Mapping[str, str]) -> list[dict[str, Any]]:
    most = max((pattern.records for pattern in found.found), default=0) or 1
    return [
        {
            "id": str(pattern.id),  # a number of 64 bits, which JavaScript would round
            "template": _parts(pattern),
            "level": theme.severity_level(pattern.severity),
            "records": format_count(pattern.records),
            "share": f"{pattern.records / found.records:.1%}" if found.records else "",
            "part": pattern.records / most,
            "trend": list(pattern.trend),
            "services": [
                [name[:_SERVICE_CHARS_MAX] or "(no service)", colours.get(name, theme.QUIET)]
                for name in pattern.services
            ],
            "more": pattern.service_count - len(pattern.services),
            "is_new": pattern.id in new,
            "can_open": not pattern.is_other,
            "title": _title(pattern),
        }
        for pattern in found.found
    ]


def _parts(pattern: Pattern) -> list[str]:
    """Returns the text between the masks. The browser draws a mask between two parts."""
    if pattern.is_other:
        return ["Other records: too many different patterns at that time"]
    return pattern.template[:_TEMPLATE_CHARS_MAX].split(MASK)


def _title(pattern: Pattern) -> str:
    first, last = (f"{time:%Y-%m-%d %H:%M:%S} UTC" for time in (pattern.first_time, pattern.last_time))
    lines = [f"{pattern.records:,} records, from {first} to {last}"]
    if pattern.example:
        lines.append(f"Example: {pattern.example}")
    return "\n".join(lines)
