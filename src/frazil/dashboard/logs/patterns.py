"""The patterns of the Logs page: templates of log lines, how often they occur, and which of them are new."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import streamlit as st

from frazil.dashboard.derived import DerivedTable, Tables
from frazil.dashboard.format import format_count, message_markdown
from frazil.dashboard.logs.search import LogSearch
from frazil.dashboard.parts.patterns import show_patterns
from frazil.dashboard.view import View, show_how_to_send
from frazil.query.reads.filters import SEVERITIES
from frazil.query.reads.patterns import (
    PATTERNS_MAX,
    Pattern,
    Patterns,
    PatternSearch,
    lines_regex,
    log_patterns,
    pattern_range,
    patterns,
)

_TABLES_CACHE_SECONDS = 4.0
_TABLE = "log_patterns"
_REGEX_CHARS_MAX = 1000
"""The longest regular expression that the API accepts."""
_SHORTER = 0.8


def draw(view: View, search: LogSearch, on_open: Callable[[Pattern], None]) -> None:
    listed = view.api.get("tables", cache_seconds=_TABLES_CACHE_SECONDS)["tables"]
    table = DerivedTable.of(listed, _TABLE)
    if table.state == "no data":
        show_how_to_send(view, "logs")
        return
    step = view.time_range.step_seconds
    asked = pattern_search(view, search)
    statement = log_patterns(asked)
    result = view.api.sql(statement.sql, statement.params, cache_seconds=step - 1)
    found = patterns(result.records(), asked)
    if table.note:
        older = (
            " Patterns that were derived before are shown." if table.state == "off" and found.found else ""
        )
        st.info(f"{table.note}{older}", icon=":material/hourglass:")
    for reason in result.stats.get("missing") or ():
        st.warning(f"Incomplete result: {message_markdown(reason)}", icon=":material/warning:")
    if ignored := ignored_filters(search):
        st.caption(ignored)
    if not found.found:
        if table.state in ("ok", "catching up"):
            _show_nothing(search)
        return
    is_comparable = _has_earlier(found, listed, asked)
    new = {pattern.id for pattern in found.found if pattern.is_new} if is_comparable else set()
    show_patterns(
        found,
        summary=summary(found, asked, len(new) if is_comparable else None),
        new=new,
        key="patterns",
        on_open=on_open,
    )


def pattern_search(view: View, search: LogSearch) -> PatternSearch:
    severity = SEVERITIES.index(search.severity) if search.severity in SEVERITIES else None
    return PatternSearch(
        range=view.time_range.rounded(view.time_range.step_seconds),
        now=view.now_micros,
        services=search.services,
        severity_min=None if severity is None else 4 * severity + 1,
        words=search.words,
    )


def ignored_filters(search: LogSearch) -> str:
    """Returns a sentence about the filters of the page that only records have, empty if there are none."""
    ignored = ["the regular expression"] if search.regex is not None else []
    ignored += ["attributes"] if search.chips else []
    if not ignored:
        return ""
    return f"Not applied: {' and '.join(ignored)}. Patterns have services, severity and words only."


def _show_nothing(search: LogSearch) -> None:
    is_filtered = bool(search.words or search.services or search.severity)
    matching = "No patterns match" if is_filtered else "No log records with a body"
    st.info(f"{matching} in this time range.", icon=":material/search_off:")


def _has_earlier(found: Patterns, listed: Tables, asked: PatternSearch) -> bool:
    """Returns whether there are records of the period before: else every pattern would be new."""
    if any(not pattern.is_new and not pattern.is_other for pattern in found.found):
        return True
    logs: Any = next((table for table in listed if table["name"] == "logs"), {})
    first = logs.get("first_time")
    begin = pattern_range(asked.range, asked.now).range.start_time
    return first is not None and dt.datetime.fromisoformat(first) < begin


def summary(found: Patterns, asked: PatternSearch, new: int | None) -> str:
    """Returns a line above the list. `new` is None if there is nothing to compare with."""
    read = pattern_range(asked.range, asked.now)
    count = "1 pattern" if found.count == 1 else f"{found.count:,} patterns"
    records = "1 record" if found.records == 1 else f"{format_count(found.records)} records"
    parts = [f"{count} of {records}"]
    if found.count > PATTERNS_MAX:
        parts[0] += f", {PATTERNS_MAX} shown"
    if new is None:
        parts.append("there are no earlier records to tell which are new")
    else:
        hours = round(read.before.seconds / 3600)
        before = f"{hours} hours" if hours < 48 else f"{round(hours / 24)} days"
        parts.append(f"{new:,} new: not seen in the {before} before")
    return " · ".join([*parts, "click one for its records"])


def lines_search(pattern: Pattern) -> str:
    """Returns the search of the Logs page for the lines of a pattern: an expression between slashes."""
    template = pattern.template
    while len(found := lines_regex(template)) > _REGEX_CHARS_MAX:
        template = f"{template[: int(len(template) * _SHORTER)]}…"
    return f"/{found}/"
