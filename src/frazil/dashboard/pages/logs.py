"""Logs: search, histogram, list of records, live tail, and patterns."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import orjson
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from frazil.dashboard import theme
from frazil.dashboard.api_client import ApiError
from frazil.dashboard.logs import patterns
from frazil.dashboard.logs.detail import detail, find_stored
from frazil.dashboard.logs.listing import PAGE_ROWS, Listing, Tail, missing_of
from frazil.dashboard.logs.rows import Record, RecordsByKey, by_key, rows, time_of_key, with_linked
from frazil.dashboard.logs.search import TRACE, LogSearch, with_chip
from frazil.dashboard.parts.logs import show_facets, show_histogram, show_records
from frazil.dashboard.time_range import DEFAULT, format_range
from frazil.dashboard.view import LABELS, View, show_error, show_fragment, show_how_to_send, url_multiselect
from frazil.query.reads.filters import SEVERITIES
from frazil.query.reads.patterns import Pattern
from frazil.query.reads.records import stored_log

_TAIL_SECONDS = 0.5
_TAIL_START_SECONDS = 900
_STEP_SECONDS = 5.0
_SERVICES_SECONDS = 30.0
_SERVICES_MAX = 200
_BUCKETS = 80
_RECORDS, _PATTERNS = "records", "patterns"
_SHOWN = {_RECORDS: "Records", _PATTERNS: "Patterns"}
_INVALID = ("query_invalid", "request_invalid")

_RERUN = "logs_again"
"""Set by a click within a fragment that changes the rest of the page."""
_LISTING, _TAIL, _PAUSED, _OLDER = "logs_listing", "logs_tail", "logs_paused", "logs_older"


def page(view: View) -> None:
    _take_trace_filter()
    search, shown, is_tailing, error_place = _filters(view)
    if shown == _PATTERNS:

        def found(view: View) -> None:
            _patterns(view, search)

        show_fragment(found, view)
        return
    try:
        _counts(view, search)
    except ApiError as error:  # others are shown by the fragments, which may have older data
        if error.code in _INVALID:
            with error_place:
                show_error(error)
            return

    def histogram(view: View) -> None:
        _histogram(view, search)

    def records(view: View) -> None:
        _list(view, search)

    def tail(view: View) -> None:
        _tail(view, search, is_paused)

    is_paused = bool(st.session_state.get(_PAUSED)) and is_tailing
    show_fragment(histogram, view, is_main=False)
    if is_tailing:
        show_fragment(tail, view, refresh_seconds=None if is_paused else _TAIL_SECONDS)
    else:
        show_fragment(records, view)


def _patterns(view: View, search: LogSearch) -> None:
    if st.session_state.pop(_RERUN, False):
        st.rerun()
    patterns.draw(view, search, _open_pattern)


def _open_pattern(pattern: Pattern) -> None:
    """Searches for the records of a pattern."""
    st.session_state["q"] = patterns.lines_search(pattern)
    st.session_state["show"] = _RECORDS
    st.session_state[_RERUN] = True


def _take_trace_filter() -> None:
    """Turns the parameter `trace`, of links from other pages, into a filter."""
    trace = st.query_params.get("trace")
    if trace:
        chips = with_chip(st.query_params.get_all("attr"), f"{TRACE}={trace}")
        # A widget does not write its initial value to the URL.
        st.session_state["attr"] = st.query_params["attr"] = chips
        del st.query_params["trace"]


def _filters(view: View) -> tuple[LogSearch, str, bool, DeltaGenerator]:
    """Returns the search, what to show, whether the live tail is on, and the container for an error in the
    search.
    """
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.title("Logs", width="content")
        with st.container(horizontal=True, width="content", vertical_alignment="center"):
            shown, is_tailing = _shown()
    search_box, severity = st.columns([4, 1])
    text = search_box.text_input(
        LABELS["q"],
        key="q",
        bind="query-params",
        placeholder="Search words (all must match) or /regex/",
        icon=":material/search:",
        label_visibility="collapsed",
    )
    with severity:
        lowest = _severity()
    error_place = st.container()
    left, right = st.columns(2)
    known = _services(view, LogSearch())
    hidden: Any = {"label_visibility": "collapsed"}
    services = url_multiselect(
        left, LABELS["service"], known, key="service", placeholder="All services", **hidden
    )
    chips = url_multiselect(
        right,
        LABELS["attr"],
        list(st.session_state.get("attr") or []),
        key="attr",
        placeholder="Attributes: type key=value, then Enter",
        **hidden,
    )
    search = LogSearch(text or "", tuple(services), lowest, tuple(chips))
    counts = dict.fromkeys(services, 0) | _services(view, replace(search, services=()))
    colours = theme.service_colours(known) | theme.service_colours(counts)
    show_facets(counts, colours, services, key="services", on_toggle=_toggle_service)
    return search, shown, is_tailing, error_place


def _shown() -> tuple[str, bool]:
    """Shows the switch between records and patterns, and that of the live tail, which has records only."""
    shown = st.segmented_control(
        "Show", list(_SHOWN), default=_RECORDS, format_func=_SHOWN.__getitem__,
        key="show", bind="query-params", label_visibility="collapsed", required=True,
    )  # fmt: skip
    is_tailing = st.toggle(
        "Live tail",
        key="tail",
        bind="query-params",
        on_change=_reset_tail,
        disabled=shown == _PATTERNS,
        help="Shows new records as they arrive",
    )
    return shown or _RECORDS, is_tailing and shown != _PATTERNS


def _severity() -> str | None:
    """Shows the severity filter. The URL has the level only; a bound widget would write its label."""
    if "severity" not in st.session_state:
        given = st.query_params.get("severity")
        st.session_state["severity"] = given if given in SEVERITIES else None
    lowest = st.selectbox(
        LABELS["severity"],
        SEVERITIES,
        index=None,
        key="severity",
        placeholder="Any severity",
        format_func=lambda level: level if level == SEVERITIES[-1] else f"{level} and above",
        label_visibility="collapsed",
    )
    if lowest is None:
        st.query_params.pop("severity", None)
    elif st.query_params.get("severity") != lowest:
        st.query_params["severity"] = lowest
    return lowest


def _toggle_service(name: str) -> None:
    chosen = list(st.session_state.get("service") or [])
    st.session_state["service"] = (
        [other for other in chosen if other != name] if name in chosen else [*chosen, name]
    )


def _services(view: View, search: LogSearch) -> dict[str, int]:
    """Returns the number of matching records by service. If the query fails, users can still type a name."""
    parameters = search.parameters() | view.time_range.parameters(_SERVICES_SECONDS)
    parameters |= {"buckets": 1, "by": "service", "services": _SERVICES_MAX}
    try:
        found = view.api.get("logs/counts", parameters, cache_seconds=_SERVICES_SECONDS)
    except ApiError:
        return {}
    named = (series for series in found["series"] if series["name"] and "services" not in series)
    return {series["name"]: sum(series["counts"]) for series in named}


def _counts(view: View, search: LogSearch) -> dict[str, Any]:
    step = view.time_range.step_seconds
    parameters = search.parameters() | view.time_range.parameters(step)
    parameters |= {"buckets": _BUCKETS, "by": "severity"}
    return view.api.get("logs/counts", parameters, cache_seconds=step)


def _histogram(view: View, search: LogSearch) -> None:
    if st.session_state.pop(_RERUN, False):
        st.rerun()
    counts = _counts(view, search)
    show_histogram(
        counts,
        key="histogram",
        on_zoom=_zoom,
        is_zoomed=not view.time_range.is_relative,
        warning=missing_of(counts),
    )


def _zoom(start: dt.datetime, end: dt.datetime) -> None:
    st.session_state["range"] = format_range(start, max(end, start + dt.timedelta(seconds=1)))
    st.session_state[_RERUN] = True


def _list(view: View, search: LogSearch) -> None:
    if st.session_state.pop(_RERUN, False):
        st.rerun()
    listing = _listing(view, search)
    if not listing.records and not st.query_params.get("record"):
        _show_nothing(view, search)
        return
    start, _ = view.time_range.bounds()
    shown = _records(listing.records)
    summary = f"The newest {shown}" if listing.has_older else f"{shown}, newest first"
    if listing.is_full:
        summary += ". The list is full: choose a shorter time range to see older records"
    _show(
        view,
        search,
        listing.records,
        summary,
        with_date=start.date() != dt.datetime.now(dt.UTC).date(),
        has_older=listing.has_older,
        is_frozen=listing.is_frozen and view.time_range.is_relative,
        warning=listing.warning,
    )


def _listing(view: View, search: LogSearch) -> Listing:
    search_key = orjson.dumps([search.parameters(), repr(view.time_range)]).decode()
    listing: Listing | None = st.session_state.get(_LISTING)
    if listing is None or listing.search_key != search_key:
        listing = st.session_state[_LISTING] = Listing(search_key)
        st.session_state[_OLDER] = False
    if st.session_state.pop(_OLDER, False) and listing.has_older:
        listing.append(view.api.get("logs", listing.parameters | {"cursor": listing.next}))
    elif not listing.is_frozen:
        parameters = search.parameters() | view.time_range.parameters(_STEP_SECONDS) | {"limit": PAGE_ROWS}
        listing.restart(parameters, view.api.get("logs", parameters, cache_seconds=_STEP_SECONDS))
    return listing


def _reset_tail() -> None:
    st.session_state[_PAUSED] = False
    st.session_state.pop(_TAIL, None)


def _tail(view: View, search: LogSearch, is_paused: bool) -> None:
    if st.session_state.pop(_RERUN, False):
        st.rerun()
    tail, warning = _updated_tail(view, search, is_paused)
    summary = _tail_summary(tail, is_paused)
    _show(view, search, tail.records, summary, warning=warning, tailing=not is_paused)


def _updated_tail(view: View, search: LogSearch, is_paused: bool) -> tuple[Tail, str]:
    """Returns the tail with new records, and a warning."""
    now = dt.datetime.now(dt.UTC)
    known: tuple[LogSearch, Tail] | None = st.session_state.get(_TAIL)
    if known is None or known[0] != search:
        start = now - dt.timedelta(seconds=_TAIL_START_SECONDS)
        times = {"from": start.isoformat(), "to": (now + dt.timedelta(hours=1)).isoformat()}
        response = view.api.get("logs", search.parameters() | times | {"limit": PAGE_ROWS})
        tail = Tail(response["records"], now)
        st.session_state[_TAIL] = (search, tail)
        return tail, missing_of(response)
    tail = known[1]
    if is_paused or view.is_stale:
        return tail, ""
    response = view.api.get("logs", search.parameters() | tail.parameters(now))
    tail.add(response["records"], now, is_more=response["next"] is not None)
    return tail, missing_of(response)


def _tail_summary(tail: Tail, is_paused: bool) -> str:
    if is_paused:
        return f"Paused at {_records(tail.records)}"
    if tail.is_skipping:
        return (
            "Records arrive faster than they can be shown: some are skipped. Add filters to see all matches"
        )
    return f"Following: {_records(tail.records)}"


def _records(found: RecordsByKey) -> str:
    return "1 record" if len(found) == 1 else f"{len(found):,} records"


def _show(
    view: View,
    search: LogSearch,
    records: RecordsByKey,
    summary: str,
    *,
    warning: str,
    with_date: bool = False,
    has_older: bool = False,
    is_frozen: bool = False,
    tailing: bool | None = None,
) -> None:
    key = st.query_params.get("record")
    if key and key not in records:
        linked = _linked(view, key)
        records = with_linked(records, linked)
        if not linked:
            summary += ". The linked record no longer exists"
    shown = st.session_state.get("range") or DEFAULT
    show_records(
        rows(records, search.highlight_pattern, with_date=with_date),
        colours=theme.service_colours(_services(view, LogSearch())),
        opened=_opened(view, key, records[key]) if key in records and key is not None else None,
        summary=summary,
        warning=warning,
        has_older=has_older,
        is_frozen=is_frozen,
        trace_address="traces?" + ("" if shown == DEFAULT else f"range={quote(shown)}&") + "trace=",
        tailing=tailing,
        on_action=_act,
    )


def _linked(view: View, key: str) -> RecordsByKey:
    """Reads the linked record if it is not in the list."""
    time = time_of_key(key)
    if time is None:
        return {}
    end = time + dt.timedelta(microseconds=1)
    parameters = {"from": time.isoformat(), "to": end.isoformat(), "limit": 1000}
    found = by_key(view.api.get("logs", parameters, cache_seconds=60)["records"])
    return {key: found[key]} if key in found else {}


def _opened(view: View, key: str, record: Record) -> dict[str, Any]:
    try:
        candidates = view.api.read(stored_log(record), cache_seconds=600)
    except ApiError:  # then the types are those of JSON
        candidates = []
    return detail(key, record, find_stored(record, candidates))


def _act(action: dict[str, Any]) -> None:
    what = str(action.get("what") or "")
    match action.get("do"):
        case "open" if what:
            st.query_params["record"] = what
        case "open":
            st.query_params.pop("record", None)
        case "filter" if what:
            st.session_state["attr"] = with_chip(st.session_state.get("attr") or [], what)
            st.session_state[_RERUN] = True
        case "older":
            st.session_state[_OLDER] = True
        case "newest":
            st.session_state.pop(_LISTING, None)
        case "pause":
            st.session_state[_PAUSED] = not st.session_state.get(_PAUSED)
            st.session_state[_RERUN] = True


def _show_nothing(view: View, search: LogSearch) -> None:
    table = view.api.get("tables/logs", cache_seconds=_STEP_SECONDS)
    if not table.get("rows") and not table.get("tail_rows"):
        show_how_to_send(view, "logs")
        return
    newest = table.get("newest_time")
    if search.is_empty:
        st.info("No logs in this time range.", icon=":material/search_off:")
    else:
        st.info("No logs match in this time range.", icon=":material/search_off:")
    with st.container(horizontal=True):
        if not search.is_empty:
            st.button("Clear filters", key="logs_clear", icon=":material/filter_alt_off:", on_click=_clear)
        st.button("Show last 24 hours", key="logs_wider", on_click=_set_range, args=("24h",))
        if newest:
            end = dt.datetime.fromisoformat(newest) + dt.timedelta(seconds=1)
            around = format_range(end - dt.timedelta(minutes=15), end)
            st.button("Show newest logs", key="logs_last", on_click=_set_range, args=(around,))


def _clear() -> None:
    for name, nothing in (("q", ""), ("service", []), ("severity", None), ("attr", [])):
        st.session_state[name] = nothing
    st.session_state[_RERUN] = True


def _set_range(range_: str) -> None:
    st.session_state["range"] = range_
    st.session_state[_RERUN] = True
