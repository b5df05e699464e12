"""Nothing was sent yet: what the dashboard says then."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visit
from tests.support.browser.running import Parts, running_parts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    with running_parts(tmp_path_factory.mktemp("empty")) as running:
        yield running


def test_an_empty_lake_says_how_to_send_and_what_it_says_works(visit: Visit, empty: Parts) -> None:
    visitor = visit(empty)
    for path, what in (("", "telemetry"), ("traces", "traces"), ("metric", "metrics"), ("logs", "logs")):
        visitor.open(path)
        visitor.says(f"No {what} yet")
    snippet = visitor.page.locator("[data-testid=stCode] code").first.inner_text()
    assert snippet.startswith(f"curl -s {empty.otlp}/v1/logs")
    ended = subprocess.run(["bash", "-euc", snippet], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    expect(visitor.find("record-text")).to_have_text("hello, frazil")  # the page looks again by itself
