"""The frame around every page. Streamlit runs this script for each session at each interaction.

It has its own folder because Streamlit would load a folder `pages` next to it as pages of its older kind.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import streamlit as st

from frazil.dashboard import theme
from frazil.dashboard.api_client import ApiError, ApiSession
from frazil.dashboard.app_state import COOKIE, app_state
from frazil.dashboard.format import escape_markdown
from frazil.dashboard.pages import logs, metrics, overview, pipeline, sql, traces
from frazil.dashboard.time_range import DEFAULT, RANGES, SelectedRange, parse_range
from frazil.dashboard.view import View, show_error

_REFRESH_SECONDS = 5.0
_ASSETS = Path(__file__).parent.parent
_ICON, _WORDMARK = _ASSETS / "icon.svg", _ASSETS / "wordmark.svg"
_TIMELESS = ("sql", "pipeline")
"""Pages that do not use the time range."""
_STYLE = """<style>
[data-testid="stHeader"]{background:transparent}
.block-container{padding:2.6rem 2rem 2rem;max-width:1680px}
[data-testid="stStatusWidget"]{visibility:hidden}
[data-stale="true"]{opacity:1!important;transition:none!important}
[data-testid="stMetricValue"]{font-size:1.5rem}
h1{font-size:1.6rem!important;padding-top:.2rem!important}
</style>"""
"""Elements keep their colour while they are redrawn: greying them out at every refresh flickers."""


def _time_range(is_used: bool) -> SelectedRange:
    with st.sidebar:
        chosen = st.selectbox(
            "Time range (UTC)",
            RANGES,
            index=RANGES.index(DEFAULT),
            accept_new_options=True,
            key="range",
            bind="query-params",
            disabled=not is_used,
            help="Or type a range: 90m, 2d, 2026-11-15 10:00 to 11:30",
        )
        try:
            return parse_range(chosen or DEFAULT)
        except ValueError as error:
            st.error(escape_markdown(str(error)))
    return parse_range(DEFAULT)


def _frame(page: Callable[[View], None], name: str, api: ApiSession) -> None:
    """Draws the sidebar and runs `page`. An API error is shown in place of the page."""
    api.page = name
    state = app_state()
    time_range = _time_range(is_used=name not in _TIMELESS)
    with st.sidebar:
        is_live = st.toggle(
            "Auto-refresh",
            value=True,
            key="live",
            bind="query-params",
            help="Every 5 s, if the time range ends now",
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
    refresh = _REFRESH_SECONDS if is_live and (name in _TIMELESS or time_range.is_relative) else None
    view = View(api, time_range, refresh, state.otlp_http, state.otlp_grpc)
    try:
        page(view)
    except ApiError as error:
        show_error(error)


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
    api = _api()
    if api is None:
        st.warning("Your session has expired.")
        theme.link("Log in", "/login")
        return
    listed = (
        (overview.page, "Overview", "overview", ":material/dashboard:"),
        (logs.page, "Logs", "logs", ":material/subject:"),
        (traces.page, "Traces", "traces", ":material/account_tree:"),
        (metrics.page, "Metrics", "metric", ":material/show_chart:"),  # /metrics is for Prometheus
        (sql.page, "SQL", "sql", ":material/database:"),
        (pipeline.page, "Pipeline", "pipeline", ":material/water:"),
    )
    st.navigation(
        [
            st.Page(
                partial(_frame, page, path, api),
                title=title,
                icon=icon,
                url_path=path,
                default=path == "overview",
            )
            for page, title, path, icon in listed
        ]
    ).run()


main()
