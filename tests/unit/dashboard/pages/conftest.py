"""Pages as Streamlit runs them, over an API whose SQL runs in DuckDB in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash

from frazil.dashboard import app_state as app_state_module
from frazil.dashboard.app_state import AppState, Sessions
from frazil.dashboard.script import __file__ as package
from tests.support.query.engine_api import EngineApi
from tests.support.query.read_engine import Engine

SCRIPT = Path(package).with_name("main.py")
Open = Callable[..., AppTest]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineApi]:
    client = EngineApi(Engine())
    state = AppState(client, Sessions(60), has_keys=False, is_demo=False, otlp_http="", otlp_grpc="")
    state._locked = (float("inf"), False)
    monkeypatch.setattr(app_state_module, "_current", [state])
    yield client
    client.close()


@pytest.fixture
def opened(api: EngineApi) -> Open:
    def open_page(address: str, **parameters: str) -> AppTest:
        app = AppTest.from_file(str(SCRIPT), default_timeout=60)
        app._page_hash = calc_hash(address)  # switch_page knows files alone
        for name, value in {"live": "false", **parameters}.items():
            app.query_params[name] = value
        return app.run()

    return open_page


def component(app: AppTest, key: str) -> Any:
    """The data of one of our own components. None if it is not on the page."""
    for found in app.get("bidi_component"):
        if found.proto.id.endswith(f"-{key}"):
            return orjson.loads(found.proto.json)
    return None
