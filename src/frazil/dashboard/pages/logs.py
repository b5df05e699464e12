"""Logs: found by words, service, severity and attributes, over time, one by one, and as they come."""

from __future__ import annotations

import datetime as dt
from typing import Any
from urllib.parse import quote

import orjson
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from frazil.dashboard import theme as look
from frazil.dashboard import time_range as spans
from frazil.dashboard.api_client import ApiError
from frazil.dashboard.empty_state import show_how_to_send
from frazil.dashboard.errors import show_trouble
from frazil.dashboard.logs.detail import detail, stored_of
from frazil.dashboard.logs.listing import PAGE_ROWS, Listing, missing_of
from frazil.dashboard.logs.rows import Keyed, Record, keyed, rows, time_of_key, with_linked
from frazil.dashboard.logs.search import TRACE, LogSearch, with_chip
from frazil.dashboard.logs.tail import Tail
from frazil.dashboard.parts.facets import show_facets
from frazil.dashboard.parts.histogram import show_histogram
from frazil.dashboard.parts.records import show_records
from frazil.dashboard.view import View
from frazil.query.reads.filters import SEVERITIES
from frazil.query.reads.records import stored_log
from frazil.query.reads.services import log_services
from frazil.query.reads.time_range import TimeRange

_TAIL_SECONDS = 0.5
_TAIL_BEGINS_SECONDS = 900
_STEP_SECONDS = 5.0
_SERVICES_SECONDS = 30.0
_BUCKETS = 80
_MISUNDERSTOOD = ("query_invalid", "request_invalid")

_AGAIN = "logs_again"
"""Set by clicks within a part of the page that concern the rest of it."""
_LISTING, _TAIL, _PAUSED, _OLDER = "logs_listing", "logs_tail", "logs_paused", "logs_older"


def page(view: View) -> None:
    _arrive()
    search, is_tailing, under_the_words = _filters(view)
    try:
        _counts(view, search)
    except ApiError as trouble:
        if trouble.code not in _MISUNDERSTOOD:
            raise
        with under_the_words:
            show_trouble(trouble)
        return
    st.fragment(_histogram, run_every=view.refresh_seconds)(view, search)
    is_paused = bool(st.session_state.get(_PAUSED)) and is_tailing
    if is_tailing:
        st.fragment(_tail, run_every=None if is_paused else _TAIL_SECONDS)(view, search, is_paused)
    else:
        st.fragment(_list, run_every=view.refresh_seconds)(view, search)


def _arrive() -> None:
    """Other pages link here with `trace`: it is a filter like others."""
    trace = st.query_params.get("trace")
    if trace:
        chips = with_chip(st.query_params.get_all("attr"), f"{TRACE}={trace}")
        # A widget that is given its first value does not write it into the address.
        st.session_state["attr"] = st.query_params["attr"] = chips
        del st.query_params["trace"]


def _filters(view: View) -> tuple[LogSearch, bool, DeltaGenerator]:
    """What is looked for, whether it is followed, and the place for what is wrong with it."""
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.title("Logs", width="content")
        is_tailing = st.toggle(
            "Live tail",
            key="tail",
            bind="query-params",
            on_change=_forget_tail,
            help="Shows new records as they arrive",
        )
    words, severity = st.columns([4, 1])
    text = words.text_input(
        "Search",
        key="q",
        bind="query-params",
        placeholder="Search words (all must match) or /regex/",
        icon=":material/search:",
        label_visibility="collapsed",
    )
    with severity:
        lowest = _severity()
    under_the_words = st.container()
    left, right = st.columns(2)
    counts = _services(view)
    services = left.multiselect(
        "Services",
        list(counts),
        key="service",
        bind="query-params",
        placeholder="All services",
        accept_new_options=True,
        label_visibility="collapsed",
    )
    chips = right.multiselect(
        "Attributes",
        list(st.session_state.get("attr") or []),
        key="attr",
        bind="query-params",
        placeholder="Attributes: type key=value, then Enter",
        accept_new_options=True,
        label_visibility="collapsed",
    )
    chosen_first = dict(sorted(counts.items(), key=lambda item: item[0] not in services))
    show_facets(
        chosen_first, look.service_colours(counts), services, key="services", on_toggle=_toggle_service
    )
    return LogSearch(text or "", tuple(services), lowest, tuple(chips)), is_tailing, under_the_words


def _severity() -> str | None:
    """In the address as the level alone; a bound widget would write the words that it shows."""
    if "severity" not in st.session_state:
        given = st.query_params.get("severity")
        st.session_state["severity"] = given if given in SEVERITIES else None
    lowest = st.selectbox(
        "Severity",
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
        [one for one in chosen if one != name] if name in chosen else [*chosen, name]
    )


def _services(view: View) -> dict[str, int]:
    """How many records each has in the range; without them one can still type a name."""
    range = TimeRange.between(*view.span.steady(_SERVICES_SECONDS))
    try:
        found = view.api.read(log_services(range), fresh_seconds=_SERVICES_SECONDS)
    except ApiError:
        return {}
    return {row["service_name"]: row["records"] for row in found}


def _counts(view: View, search: LogSearch) -> dict[str, Any]:
    """Counted anew the less often the longer the range is: a bar hardly changes then."""
    hours = view.span.length_seconds / 3600
    step = _STEP_SECONDS * (1 if hours <= 1 else 3 if hours <= 24 else 12)
    asked = search.parameters() | view.span.parameters(step) | {"buckets": _BUCKETS, "by": "severity"}
    return view.api.get("logs/counts", asked, fresh_seconds=step)


def _histogram(view: View, search: LogSearch) -> None:
    if st.session_state.pop(_AGAIN, False):
        st.rerun()
    try:
        counted = _counts(view, search)
    except ApiError as trouble:
        show_trouble(trouble)
        return
    show_histogram(
        counted,
        look.SEVERITY_COLOURS,
        key="histogram",
        noun="records",
        on_zoom=_zoom,
        is_zoomed=not view.span.is_moving,
        warning=missing_of(counted),
    )


def _zoom(start: dt.datetime, end: dt.datetime) -> None:
    st.session_state["range"] = spans.between(start, max(end, start + dt.timedelta(seconds=1)))
    st.session_state[_AGAIN] = True


def _list(view: View, search: LogSearch) -> None:
    if st.session_state.pop(_AGAIN, False):
        st.rerun()
    try:
        listing = _listing(view, search)
        if not listing.records and not st.query_params.get("record"):
            _nothing(view, search)
            return
        start, _ = view.span.at()
        shown = _records(listing.records)
        said = f"The newest {shown}" if listing.has_older else f"{shown}, newest first"
        if listing.is_full:
            said += ". The list is full: choose a shorter time range to see older records"
        _show(
            view,
            search,
            listing.records,
            said,
            with_date=start.date() != dt.datetime.now(dt.UTC).date(),
            has_older=listing.has_older,
            is_frozen=listing.is_frozen and view.span.is_moving,
            warning=listing.warning,
        )
    except ApiError as trouble:
        show_trouble(trouble)


def _listing(view: View, search: LogSearch) -> Listing:
    question = orjson.dumps([search.parameters(), repr(view.span)]).decode()
    listing: Listing | None = st.session_state.get(_LISTING)
    if listing is None or listing.question != question:
        listing = st.session_state[_LISTING] = Listing(question)
        st.session_state[_OLDER] = False
    if st.session_state.pop(_OLDER, False) and listing.has_older:
        listing.go_on(view.api.get("logs", listing.asked | {"cursor": listing.next}))
    elif not listing.is_frozen:
        asked = search.parameters() | view.span.parameters(_STEP_SECONDS) | {"limit": PAGE_ROWS}
        try:
            listing.begin(asked, view.api.get("logs", asked, fresh_seconds=_STEP_SECONDS))
        except ApiError as trouble:
            if not listing.records:
                raise
            listing.warning = f"Refresh failed: {trouble.message}"
    return listing


def _forget_tail() -> None:
    st.session_state[_PAUSED] = False
    st.session_state.pop(_TAIL, None)


def _tail(view: View, search: LogSearch, is_paused: bool) -> None:
    if st.session_state.pop(_AGAIN, False):
        st.rerun()
    question = orjson.dumps(search.parameters()).decode()
    try:
        tail, warning = _followed(view, search, question, is_paused)
        said = _said_of(tail, is_paused)
        _show(view, search, tail.records, said, warning=warning, tailing=not is_paused)
    except ApiError as trouble:
        show_trouble(trouble)


def _followed(view: View, search: LogSearch, question: str, is_paused: bool) -> tuple[Tail, str]:
    """What came until now. One question that fails is no reason to take the others away."""
    now = dt.datetime.now(dt.UTC)
    known: tuple[str, Tail] | None = st.session_state.get(_TAIL)
    if known is None or known[0] != question:
        begins = now - dt.timedelta(seconds=_TAIL_BEGINS_SECONDS)
        asked = {"from": begins.isoformat(), "to": (now + dt.timedelta(hours=1)).isoformat()}
        answer = view.api.get("logs", search.parameters() | asked | {"limit": PAGE_ROWS})
        tail = Tail(answer["records"], now)
        st.session_state[_TAIL] = (question, tail)
        return tail, missing_of(answer)
    tail = known[1]
    if is_paused:
        return tail, ""
    try:
        answer = view.api.get("logs", search.parameters() | tail.parameters(now))
    except ApiError as trouble:
        return tail, f"Refresh failed: {trouble.message}"
    tail.take(answer["records"], now, is_more=answer["next"] is not None)
    return tail, missing_of(answer)


def _said_of(tail: Tail, is_paused: bool) -> str:
    if is_paused:
        return f"Paused at {_records(tail.records)}"
    if tail.is_skipping:
        return (
            "Records arrive faster than they can be shown: some are skipped. Add filters to see all matches"
        )
    return f"Following: {_records(tail.records)}"


def _records(found: Keyed) -> str:
    return "1 record" if len(found) == 1 else f"{len(found):,} records"


def _show(
    view: View,
    search: LogSearch,
    records: Keyed,
    said: str,
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
            said += ". The linked record no longer exists"
    shown = st.session_state.get("range") or spans.DEFAULT
    show_records(
        rows(records, search.marks, with_date=with_date),
        colours=look.service_colours(_services(view)),
        opened=_opened(view, key, records[key]) if key in records and key is not None else None,
        said=said,
        warning=warning,
        has_older=has_older,
        is_frozen=is_frozen,
        trace_address=f"traces?range={quote(shown)}&trace=",
        tailing=tailing,
        on_action=_act,
    )


def _linked(view: View, key: str) -> Keyed:
    """The record of a link, where the list does not hold it."""
    time = time_of_key(key)
    if time is None:
        return {}
    asked = {"from": time.isoformat(), "to": (time + dt.timedelta(microseconds=1)).isoformat(), "limit": 1000}
    found = keyed(view.api.get("logs", asked, fresh_seconds=60)["records"])
    return {key: found[key]} if key in found else {}


def _opened(view: View, key: str, record: Record) -> dict[str, Any]:
    try:
        candidates = view.api.read(stored_log(record), fresh_seconds=600)
    except ApiError:  # then the types are those that JSON has
        candidates = []
    return detail(key, record, stored_of(record, candidates))


def _act(action: dict[str, Any]) -> None:
    what = str(action.get("what") or "")
    match action.get("do"):
        case "open" if what:
            st.query_params["record"] = what
        case "open":
            st.query_params.pop("record", None)
        case "filter" if what:
            st.session_state["attr"] = with_chip(st.session_state.get("attr") or [], what)
            st.session_state[_AGAIN] = True
        case "older":
            st.session_state[_OLDER] = True
        case "newest":
            st.session_state.pop(_LISTING, None)
        case "pause":
            st.session_state[_PAUSED] = not st.session_state.get(_PAUSED)
            st.session_state[_AGAIN] = True


def _nothing(view: View, search: LogSearch) -> None:
    table = view.api.get("tables/logs", fresh_seconds=_STEP_SECONDS)
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
        st.button("Show last 24 hours", key="logs_wider", on_click=_look_at, args=("24h",))
        if newest:
            end = dt.datetime.fromisoformat(newest) + dt.timedelta(seconds=1)
            around = spans.between(end - dt.timedelta(minutes=15), end)
            st.button("Show newest logs", key="logs_last", on_click=_look_at, args=(around,))


def _clear() -> None:
    for name, nothing in (("q", ""), ("service", []), ("severity", None), ("attr", [])):
        st.session_state[name] = nothing
    st.session_state[_AGAIN] = True


def _look_at(range_: str) -> None:
    st.session_state["range"] = range_
    st.session_state[_AGAIN] = True
