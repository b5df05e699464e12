"""One browser and one `frazil up` for all tests in here. They end with the last of these tests, not with the
session: Playwright's event loop would be in the way of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.components.chromium import running_chromium
from tests.support.browser.running import STOP_SECONDS_MAX, Place, Up, running_up
from tests.support.browser.visitor import Visitor, visiting

Visit = Callable[..., Visitor]


@pytest.fixture(scope="package")
def browser(chromium: Path) -> Iterator[Browser]:
    with running_chromium(chromium) as running:
        yield running


@pytest.fixture(scope="package")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """With demo traffic, and data in every table. At the end Ctrl-C must stop all of it, cleanly and soon."""
    with running_up(tmp_path_factory.mktemp("up")) as running:
        yield running
        code, seconds = running.interrupt()
        assert code == 0, running.log.read_text()[-4000:]
        assert seconds <= STOP_SECONDS_MAX


@pytest.fixture
def visit(browser: Browser) -> Iterator[Visit]:
    """`visit(place)`: another person at that dashboard. In the end nothing may have been amiss with what they
    saw.
    """
    with ExitStack() as stack:
        visitors: list[Visitor] = []

        def make(place: Place, *, dark: bool = False) -> Visitor:
            visitors.append(stack.enter_context(visiting(browser, place.url, dark=dark)))
            return visitors[-1]

        yield make
        for visitor in visitors:
            assert visitor.page.locator("[data-testid=stException]").count() == 0
            assert visitor.amiss == []
