"""The API is stopped, or hangs: pages say so, keep the data that they show, and try again by themselves."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

import pytest
import yaml
from playwright.sync_api import expect

from tests.browser.conftest import Visit
from tests.components.process import free_port
from tests.components.proxy import FaultyProxy
from tests.support.browser.running import Place, running_dashboard
from tests.support.browser.telemetry import gauge, log, span
from tests.support.browser.visitor import Visitor
from tests.support.integration.api import running_api

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
HANGING_SECONDS = 13.0
DATA = {
    "": "[data-testid=stDataFrame] canvas",
    "services": "[data-testid=service-row]",
    "logs": "[data-testid=record]",
    "logs?show=Patterns": "[data-testid=pattern]",
    "logs?tail=true": "[data-testid=record]",
    "traces": "[data-testid=trace-row]",
    "metric": "[data-testid=stVegaLiteChart] svg",
    "pipeline": ".fz-card",
}
"""What each page that refreshes shows."""


@dataclass
class Remote(Place):
    """A dashboard whose API is behind a proxy."""

    proxy: FaultyProxy

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Requests of this time are answered `HANGING_SECONDS` late."""
        self.proxy.latency_seconds = HANGING_SECONDS
        try:
            yield
        finally:
            self.proxy.latency_seconds = 0


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Remote]:
    folder = tmp_path_factory.mktemp("away")
    with (
        running_api(folder) as (api, receiver),
        FaultyProxy("127.0.0.1", urlsplit(api.url).port or 0, folder=folder) as proxy,
    ):
        config = yaml.safe_load(receiver.config_path.read_text())
        config["dashboard"] = {"listen": f"127.0.0.1:{free_port()}", "api_url": proxy.url}
        receiver.config_path.write_text(yaml.safe_dump(config))
        with running_dashboard(receiver.config_path) as url:
            place = Remote(folder, url, receiver.http, api.url, proxy)
            for _ in range(3):
                place.send("traces", span("GET /", "shop", os.urandom(16).hex(), os.urandom(8).hex()))
                place.send("logs", log("sold", "shop"))
                place.send("metrics", gauge("till", "shop", 1.0))
            yield place


def opened(visit: Visit, remote: Remote) -> dict[str, Visitor]:
    """Every page that refreshes, in a browser of its own."""
    visitors = {}
    for path, data in DATA.items():
        visitors[path] = visit(remote)
        visitors[path].open(path)
        visitors[path].page.locator(data).first.wait_for()
        expect(visitors[path].find("freshness")).to_be_hidden()
    return visitors


def test_while_the_api_is_away_pages_keep_their_data_and_say_how_old_it_is(
    visit: Visit, remote: Remote
) -> None:
    visitors = opened(visit, remote)
    with remote.proxy.refusing():
        for path, visitor in visitors.items():
            said = visitor.find("freshness")
            expect(said).to_contain_text(
                re.compile(r"Last updated \d\d:\d\d:\d\d UTC, \d+ s ago: the API does not answer")
            )
            expect(said.get_by_role("button", name="Try again")).to_be_visible()
            expect(visitor.page.locator(DATA[path]).first).to_be_visible()
            assert visitor.page.inner_text("[data-testid=stMain]").count("does not answer") <= 1
    for visitor in visitors.values():
        expect(visitor.find("freshness")).to_be_hidden()


def test_while_the_api_hangs_pages_say_how_old_their_data_is(visit: Visit, remote: Remote) -> None:
    visitors = opened(visit, remote)
    with remote.hanging():
        for path, visitor in visitors.items():
            expect(visitor.find("freshness")).to_contain_text(
                re.compile(r"Last updated \d\d:\d\d:\d\d UTC, \d+ s ago: the API has not answered for \d+ s")
            )
            expect(visitor.page.locator(DATA[path]).first).to_be_visible()
    for visitor in visitors.values():
        expect(visitor.find("freshness")).to_be_hidden()


def test_a_page_opened_while_the_api_is_away_says_so_once_and_comes_back_by_itself(
    visit: Visit, remote: Remote
) -> None:
    visitors = {path: visit(remote) for path in (*DATA, "sql")}
    fixed = urlencode({"range": "2026-01-01T00:00:00Z..2026-01-02T00:00:00Z"})
    visitors[f"logs?{fixed}"] = visit(remote)
    with remote.proxy.refusing():
        for path, visitor in visitors.items():
            visitor.open(path)
            said = visitor.page.locator("[data-testid=stMain] [data-testid=stAlert]")
            expect(said).to_have_count(1)
            expect(said).to_contain_text(f"The API at {remote.proxy.url} does not answer. Run frazil status")
            expect(said.locator("code")).to_have_text(["frazil status", "frazil serve"])
            assert "`" not in said.inner_text()
            assert said.inner_text().count("does not answer") == 1
            expect(visitor.page.get_by_role("button", name="Try again")).to_be_visible()
    for path, visitor in visitors.items():
        expect(visitor.page.locator("[data-testid=stMain] [data-testid=stException]")).to_have_count(0)
        expect(visitor.page.get_by_role("button", name="Try again")).to_have_count(0)
        if path in DATA:
            visitor.page.locator(DATA[path]).first.wait_for()


def test_without_auto_refresh_a_page_tries_again_when_it_is_told_to(visit: Visit, remote: Remote) -> None:
    visitor = visit(remote)
    with remote.proxy.refusing():
        visitor.open("logs?live=false")
        again = visitor.page.get_by_role("button", name="Try again")
        again.wait_for()
    visitor.page.wait_for_timeout(7000)  # longer than the interval of the refresh
    expect(again).to_be_visible()
    again.click()
    visitor.find("record").first.wait_for()


def test_rows_that_wait_for_a_changed_filter_are_grey_and_a_sign_moves(visit: Visit, remote: Remote) -> None:
    visitor = visit(remote)
    visitor.open("logs?live=false")
    row = visitor.find("record").first
    row.wait_for()
    holder = visitor.page.locator("[data-testid=stElementContainer]", has=visitor.find("records"))
    expect(holder).to_have_css("opacity", "1")
    busy = visitor.page.locator(".fz-busy")
    expect(busy).to_have_count(0)
    with remote.hanging():
        visitor.search_logs("sold")
        expect(busy).to_be_visible()
        expect(holder).to_have_css("opacity", "0.4")
        expect(row).to_be_visible()
    expect(visitor.find("record-text").locator("mark").first).to_have_text("sold")
    expect(busy).to_have_count(0)
    expect(holder).to_have_css("opacity", "1")
