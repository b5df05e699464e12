"""The frame around every page, run by Streamlit for each session at each change.

In a folder of its own: Streamlit takes a folder `pages` beside its script for pages of another kind.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import streamlit as st

from frazil.dashboard import theme as look
from frazil.dashboard import time_range as spans
from frazil.dashboard.api_client import Api, ApiError
from frazil.dashboard.app_state import app_state
from frazil.dashboard.errors import show_trouble
from frazil.dashboard.format import plain
from frazil.dashboard.pages import logs, metrics, overview, pipeline, sql, traces
from frazil.dashboard.sessions import COOKIE
from frazil.dashboard.view import View

_REFRESH_SECONDS = 5.0
_ASSETS = Path(__file__).parent.parent
_ICON, _WORDMARK = _ASSETS / "icon.svg", _ASSETS / "wordmark.svg"
_TIMELESS = ("sql", "pipeline")
"""Pages that have times of their own."""
_STYLE = """<style>
[data-testid="stHeader"]{background:transparent}
.block-container{padding:2.6rem 2rem 2rem;max-width:1680px}
[data-testid="stStatusWidget"]{visibility:hidden}
[data-stale="true"]{opacity:1!important;transition:none!important}
[data-testid="stMetricValue"]{font-size:1.5rem}
h1{font-size:1.6rem!important;padding-top:.2rem!important}
</style>"""
"""What is drawn again keeps its colour meanwhile: greying it out on every refresh is a flicker."""


def _range(is_used: bool) -> spans.TimeRange:
    with st.sidebar:
        chosen = st.selectbox(
            "Time range (UTC)",
            spans.RANGES,
            index=spans.RANGES.index(spans.DEFAULT),
            accept_new_options=True,
            key="range",
            bind="query-params",
            disabled=not is_used,
            help="Or type one: 90m, 2d, 2026-11-15 10:00 to 11:30",
        )
        try:
            return spans.parse(chosen or spans.DEFAULT)
        except ValueError as error:
            st.error(plain(str(error)))
    return spans.parse(spans.DEFAULT)


def _frame(page: Callable[[View], None], name: str, api: Api) -> None:
    """Runs `page`; what goes wrong in it is told in its place."""
    api.page = name
    house = app_state()
    chosen = _range(is_used=name not in _TIMELESS)
    with st.sidebar:
        is_live = st.toggle(
            "Auto-refresh",
            value=True,
            key="live",
            bind="query-params",
            help="Every 5 s, if the time range ends now",
        )
        if st.button("Refresh", icon=":material/refresh:", width="stretch"):
            api.forget()
        if house.is_demo:
            st.info(
                "This data is **demo traffic** from a simulated shop. `make run DEMO=0` starts without it.",
                icon=":material/science:",
            )
        if house.is_locked:
            look.link("Log out", "/logout")
    refresh = _REFRESH_SECONDS if is_live and (name in _TIMELESS or chosen.is_moving) else None
    view = View(api, chosen, refresh, house.otlp_http, house.otlp_grpc)
    try:
        page(view)
    except ApiError as trouble:
        show_trouble(trouble)


def _api() -> Api | None:
    """The session's own, while its login lasts."""
    house, token = app_state(), st.context.cookies.get(COOKIE)
    key = house.sessions.use(token)
    if key is None and house.is_locked:
        st.session_state.clear()
        return None
    if "api" not in st.session_state or st.session_state.api_key != key:
        if "api" in st.session_state:  # what pages keep is of whoever looked before
            st.session_state.clear()
        st.session_state.api_key = key
        st.session_state.api = Api(house.door, partial(_key_now, token))
    api: Api = st.session_state.api
    return api


def _key_now(token: str | None) -> str | None:
    """A part of a page that refreshes by itself may be the first to find that the login has ended: then all
    that the page shows goes.
    """
    try:
        return app_state().key_of(token)
    except ApiError:
        st.rerun()  # does nothing for a question that runs beside the page
        raise


def main() -> None:
    st.set_page_config(page_title="frazil", page_icon=str(_ICON), layout="wide")
    st.html(_STYLE)
    st.logo(str(_WORDMARK), size="large", icon_image=str(_ICON))
    api = _api()
    if api is None:
        st.warning("Your session has expired.")
        look.link("Log in", "/login")
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
