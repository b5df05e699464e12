"""The frame around every page. Streamlit runs this script for each session at each interaction.

It has its own folder because Streamlit would load a folder `pages` next to it as pages of its older kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st

from frazil.dashboard import theme
from frazil.dashboard.api_client import ApiError, ApiSession
from frazil.dashboard.app_state import COOKIE, app_state
from frazil.dashboard.format import escape_markdown
from frazil.dashboard.pages import PATHS, logs, metrics, overview, pipeline, services, sql, traces
from frazil.dashboard.parts.navigation import one_history_entry_per_action
from frazil.dashboard.time_range import DEFAULT, RANGES, SelectedRange, parse_range
from frazil.dashboard.view import View, show_error

_REFRESH_SECONDS = 5.0
_ASSETS = Path(__file__).parent.parent
_ICON, _WORDMARK = _ASSETS / "icon.svg", _ASSETS / "wordmark.svg"
_TIMELESS = {
    "sql": "The time range does not apply to SQL: use `time > now() - INTERVAL 1 HOUR`",
    "pipeline": "The time range does not apply to this page: it shows the current status",
}
"""Pages that do not use the time range."""
_ON_REQUEST = {"sql": "This page does not refresh: queries run only on request"}
"""Pages that do not refresh."""
_STYLE = """<style>
:root:not(:has([data-testid="stExpandSidebarButton"])) [data-testid="stHeader"]{background:transparent}
.block-container{padding:2.6rem 2rem 2rem;max-width:1680px}
[data-testid="stStatusWidget"]{visibility:hidden}
[data-stale="true"]{opacity:1!important;transition:none!important}
[data-testid="stMain"]:has(.fz-busy) [data-stale="true"]{opacity:.4!important;
transition:opacity .2s .25s!important}
[data-testid="stElementContainer"]:has(.fz-busy){position:absolute}
.fz-busy{position:fixed;z-index:999992;top:0;left:0;right:0;height:3px;overflow:hidden;
animation:fz-appear .2s .25s both}
.fz-busy::before{content:"";display:block;width:30%;height:100%;background:#0e93b5;
animation:fz-slide 1.2s infinite}
@keyframes fz-appear{from{opacity:0}}
@keyframes fz-slide{from{transform:translateX(-100%)}to{transform:translateX(334%)}}
[data-testid="stMetricValue"]{font-size:1.5rem}
[data-testid="stMetricDelta"],[data-testid="stMetricDelta"] *{white-space:normal!important;
overflow:visible!important;height:auto!important;text-align:left}
[data-testid="stMultiSelectTagsContainer"]{flex-wrap:wrap!important;min-width:0!important}
[data-testid="stMultiSelectTagsContainer"]:has([data-tag]){padding-block:.25rem!important}
.stMultiSelect [role="group"]:has(>[data-testid="stMultiSelectTagsContainer"]){max-height:none!important}
h1{font-size:1.6rem!important;padding-top:.2rem!important}
[class*="st-key-unseen_"]{display:none}
:root:has([data-testid="stExpandSidebarButton"]) .block-container{padding-top:3.9rem}
@media (max-width:767px){.block-container{padding:4.2rem 1rem 2rem}}
</style>"""
"""A refresh does not grey out elements, because that flickers. When the user changes something, `.fz-busy` is
there until the page is complete: elements that are not redrawn yet are grey. Without the sidebar, the logo is
above the page.
"""


def _time_range(unused_because: str | None) -> SelectedRange:
    with st.sidebar:
        chosen = st.selectbox(
            "Time range (UTC)",
            RANGES,
            index=RANGES.index(DEFAULT),
            accept_new_options=True,
            key="range",
            bind="query-params",
            disabled=unused_because is not None,
            help=unused_because or "Or type a range: 90m, 2d, 2026-11-15 10:00 to 11:30",
        )
        try:
            return parse_range(chosen or DEFAULT)
        except ValueError as error:
            st.error(escape_markdown(str(error)))
    return parse_range(DEFAULT)


def _frame(page: Callable[[View], None], name: str, api: ApiSession, pages: Mapping[str, Any]) -> None:
    """Draws the sidebar and runs `page`. An API error is shown in place of the page."""
    api.page = name
    state = app_state()
    time_range = _time_range(_TIMELESS.get(name))
    with st.sidebar:
        is_live = st.toggle(
            "Auto-refresh",
            value=True,
            key="live",
            bind="query-params",
            disabled=name in _ON_REQUEST,
            help=_ON_REQUEST.get(name)
            or ("Every 5 s" if name in _TIMELESS else "Every 5 s, if the time range ends now"),
        )
        if st.button("Refresh", icon=":material/refresh:", width="stretch"):
            api.clear_cache()
        if state.is_demo:
            st.info(
                "This data is **demo traffic** from a simulated shop. `make run DEMO=0` starts without it.",
                icon=":material/science:",
            )
        if state.is_locked:
            theme.link("Log out", "/logout")
    retry = _REFRESH_SECONDS if is_live else None
    refresh = retry if name in _TIMELESS or time_range.is_relative else None
    view = View(api, time_range, refresh, retry, state.otlp_http, state.otlp_grpc, pages)
    busy = st.empty()
    busy.html('<div class="fz-busy" role="progressbar" aria-label="Loading"></div>')
    try:
        page(view)
    except ApiError as error:
        show_error(error, view.retry_seconds)
    busy.empty()


def _api() -> ApiSession | None:
    """Returns the API of this browser session, or None if the user must log in."""
    state, token = app_state(), st.context.cookies.get(COOKIE)
    key = state.sessions.use(token)
    if key is None and state.is_locked:
        st.session_state.clear()
        return None
    if "api" not in st.session_state or st.session_state.api_key != key:
        if "api" in st.session_state:  # pages have kept data of the previous user
            st.session_state.clear()
        st.session_state.api_key = key
        st.session_state.api = ApiSession(state.api_client, partial(_current_key, token))
    api: ApiSession = st.session_state.api
    return api


def _current_key(token: str | None) -> str | None:
    """Reruns the page if the session has expired, so that its data disappears. A fragment that refreshes may
    be the first to find out.
    """
    try:
        return app_state().key_of(token)
    except ApiError:
        st.rerun()  # has no effect in the thread of a background query
        raise


def main() -> None:
    st.set_page_config(page_title="frazil", page_icon=str(_ICON), layout="wide")
    st.html(_STYLE)
    st.logo(str(_WORDMARK), size="large", icon_image=str(_ICON))
    one_history_entry_per_action()
    api = _api()
    if api is None:
        st.warning("Your session has expired.")
        theme.link("Log in", "/login")
        return
    listed = (
        (overview.page, "Overview", ":material/dashboard:"),
        (services.page, "Services", ":material/hub:"),
        (logs.page, "Logs", ":material/subject:"),
        (traces.page, "Traces", ":material/account_tree:"),
        (metrics.page, "Metrics", ":material/show_chart:"),
        (sql.page, "SQL", ":material/database:"),
        (pipeline.page, "Pipeline", ":material/water:"),
    )
    pages: dict[str, Any] = {}
    for path, (page, title, icon) in zip(PATHS, listed, strict=True):
        draw = partial(_frame, page, path, api, pages)
        pages[path] = st.Page(draw, title=title, icon=icon, url_path=path, default=path == "overview")
    st.navigation(list(pages.values())).run()


main()
