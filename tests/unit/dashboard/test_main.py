"""The frame around every page, as Streamlit runs it: what refreshes by itself, and what goes with a login."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash

from frazil.dashboard import app_state as app_state_module
from frazil.dashboard.api_client import ApiClient
from frazil.dashboard.app_state import COOKIE, AppState, Sessions
from frazil.dashboard.pages import overview, pipeline, sql
from frazil.dashboard.script import __file__ as package
from frazil.dashboard.view import View

SCRIPT = Path(package).with_name("main.py")
FIXED = "2026-11-15T10:00:00Z..2026-11-15T11:00:00Z"
KEY = "fz_" + "a" * 40


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def state(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[AppState]:
    """Whose API does not respond."""
    api_client = ApiClient("http://127.0.0.1:1")
    state = AppState(
        api_client, Sessions(60, clock), has_keys=False, is_demo=False, otlp_http="", otlp_grpc=""
    )
    state._locked = (float("inf"), False)
    monkeypatch.setattr(app_state_module, "_current", [state])
    yield state
    api_client.close()


@pytest.fixture
def views(state: AppState, monkeypatch: pytest.MonkeyPatch) -> list[View]:
    """What pages were given; they draw nothing."""
    given: list[View] = []
    for page in (overview, pipeline, sql):
        monkeypatch.setattr(page, "page", given.append)
    return given


def opened(address: str, **parameters: str) -> AppTest:
    app = AppTest.from_file(str(SCRIPT), default_timeout=60)
    if address != "overview":
        app._page_hash = calc_hash(address)  # switch_page knows files alone
    for name, value in parameters.items():
        app.query_params[name] = value
    return app.run()


@pytest.mark.parametrize(
    ("address", "range_", "live", "is_refreshing"),
    [
        ("overview", "15m", "true", True),
        ("overview", "15m", "false", False),
        ("overview", FIXED, "true", False),
        ("pipeline", FIXED, "true", True),
        ("pipeline", FIXED, "false", False),
    ],
)
def test_what_shows_the_present_refreshes_by_itself_whatever_range_was_chosen_elsewhere(
    address: str, range_: str, live: str, is_refreshing: bool, views: list[View]
) -> None:
    app = opened(address, range=range_, live=live)
    assert not app.exception
    assert views[-1].refresh_seconds == (5.0 if is_refreshing else None)


@pytest.mark.parametrize(
    ("address", "uses_range", "refreshes"),
    [("overview", True, True), ("pipeline", False, True), ("sql", False, False)],
)
def test_what_a_page_does_not_use_is_greyed_out(
    address: str, uses_range: bool, refreshes: bool, views: list[View]
) -> None:
    app = opened(address)
    assert not app.exception
    assert app.sidebar.selectbox[0].disabled is not uses_range
    assert app.sidebar.toggle[0].disabled is not refreshes
    assert ("does not refresh" in app.sidebar.toggle[0].help) is not refreshes


def test_auto_refresh_also_tries_again_where_a_fixed_range_does_not_refresh(views: list[View]) -> None:
    opened("overview", range=FIXED, live="true")
    assert (views[-1].refresh_seconds, views[-1].retry_seconds) == (None, 5.0)
    opened("overview", range=FIXED, live="false")
    assert views[-1].retry_seconds is None


@pytest.fixture
def token(state: AppState, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of somebody who is logged in."""
    state.has_keys = True
    token = state.sessions.begin(KEY)
    monkeypatch.setattr(type(st.context), "cookies", property(lambda _: {COOKIE: token}))
    return token


@pytest.mark.parametrize("how", ["expires", "logs out"])
def test_with_a_login_goes_what_its_session_held(
    how: str, state: AppState, clock: Clock, token: str, views: list[View]
) -> None:
    app = opened("overview")
    app.session_state["logs_listing"] = "what somebody looked at"
    app.run()
    assert len(views) == 2
    if how == "expires":
        clock.now += 61
    else:
        state.sessions.end(token)
    app.run()
    assert [warning.value for warning in app.warning] == ["Your session has expired."]
    assert len(views) == 2
    for name in ("api_key", "api", "logs_listing"):
        assert name not in app.session_state


def test_choosing_something_is_use_and_refreshing_is_none(
    state: AppState, clock: Clock, token: str, views: list[View]
) -> None:
    app = opened("overview")
    for _ in range(3):
        clock.now += 50
        app.run()
        assert views[-1].api._current_key() == KEY
    for _ in range(3):
        clock.now += 25
        key = state.sessions.key_of(token)
    assert key is None


def test_a_part_that_finds_the_login_ended_takes_the_whole_page_away(
    state: AppState, token: str, views: list[View], monkeypatch: pytest.MonkeyPatch
) -> None:
    def page(view: View) -> None:
        st.text("what it showed")
        state.sessions.end(token)  # meanwhile
        view.api.get("tables")

    monkeypatch.setattr(overview, "page", page)
    app = opened("overview")
    assert [warning.value for warning in app.warning] == ["Your session has expired."]
    assert not app.text
