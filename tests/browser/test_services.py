"""The map of services and the patterns of logs: clicks, keys, addresses and the Back button."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.conftest import Visit
from tests.support.browser.running import Up
from tests.support.browser.telemetry import database_call, log, marked, span
from tests.support.browser.visitor import Visitor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def shop(up: Up) -> str:
    """Sends calls between services, whose names begin with the returned word: web → cart → a database."""
    word = marked("shop")
    trace, web, call, cart = os.urandom(16).hex(), *(os.urandom(8).hex() for _ in range(3))
    up.send("traces", span("GET /", f"{word}-web", trace, web))
    up.send("traces", client(span("call", f"{word}-web", trace, call, web)))
    up.send("traces", span("Add", f"{word}-cart", trace, cart, call, error="no stock"))
    up.send("traces", database_call("SELECT", f"{word}-cart", trace, cart, f"{word}-db"))
    return word


def client(request: dict[str, Any]) -> dict[str, Any]:
    request["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["kind"] = 3
    return request


def node(visitor: Visitor, name: str) -> Locator:
    return visitor.page.locator(f"[data-testid=service-node][data-name='{name}']")


def opened(visitor: Visitor, word: str) -> None:
    visitor.open_with_data("services", f"live=false&find={word}")
    expect(visitor.find("service-node")).to_have_count(3)


def test_a_click_on_a_service_opens_it_and_the_way_back_leads_to_the_search(
    shop: str, visit: Visit, up: Up
) -> None:
    visitor = visit(up)
    opened(visitor, shop)
    visitor.page.evaluate("window.stayed = true")
    node(visitor, f"{shop}-cart").click()
    visitor.heading(f"{shop}-cart")
    visitor.expect_url(rf"service={shop}-cart")
    expect(visitor.cells().filter(has_text="Add").first).to_be_attached()
    expect(visitor.find("service-node")).to_have_count(3)
    expect(visitor.find("trace-row")).to_have_count(1)
    visitor.page.locator(".st-key-service_back button").click()
    visitor.heading("Services")
    expect(visitor.find("service-row")).to_have_count(2)
    assert visitor.page.evaluate("window.stayed")
    visitor.page.go_back()
    visitor.heading(f"{shop}-cart")


def test_a_row_and_the_enter_key_open_a_service_too(shop: str, visit: Visit, up: Up) -> None:
    visitor = visit(up)
    opened(visitor, shop)
    visitor.page.locator(f"[data-testid=service-row][data-name='{shop}-web']").click()
    visitor.heading(f"{shop}-web")
    visitor.settle()
    node(visitor, f"{shop}-cart").focus()
    visitor.page.keyboard.press("Enter")
    visitor.heading(f"{shop}-cart")


def test_a_click_on_a_connection_or_a_database_shows_its_calls_alone(shop: str, visit: Visit, up: Up) -> None:
    visitor = visit(up)
    opened(visitor, shop)
    node(visitor, f"{shop}-db").click()
    visitor.expect_url(r"callee=.*kind=database")
    expect(visitor.find("service-node")).to_have_count(2)
    expect(visitor.cells().filter(has_text=f"{shop}-db").first).to_be_attached()
    address = visitor.page.url
    visitor.page.locator(".st-key-services_clear button").click()
    expect(visitor.find("service-node")).to_have_count(3)
    visitor.find("service-call").first.focus()
    visitor.page.keyboard.press("Enter")
    visitor.expect_url(r"caller=.*callee=")
    expect(visitor.find("service-call")).to_have_count(1)
    visitor.page.goto(address)
    expect(visitor.find("service-node")).to_have_count(2)


def test_a_trace_with_an_error_opens_on_its_page(shop: str, visit: Visit, up: Up) -> None:
    visitor = visit(up)
    visitor.open(f"services?live=false&service={shop}-cart")
    visitor.page.evaluate("window.stayed = true")
    visitor.find("trace-row").click()
    visitor.find("waterfall-row").first.wait_for()
    visitor.expect_url(r"/traces\?.*trace=")
    assert visitor.page.evaluate("window.stayed")


def test_a_click_on_a_heading_sorts_the_list(visit: Visit, up: Up) -> None:
    visitor = visit(up)
    visitor.open_with_data("services", "live=false")
    names = lambda: visitor.find("service-row").evaluate_all("all => all.map(e => e.dataset.name)")  # noqa: E731
    visitor.find("service-list").get_by_role("button", name="Service").click()
    assert names() == sorted(names())
    visitor.find("service-list").get_by_role("button", name="Service").click()
    assert names() == sorted(names(), reverse=True)


def test_a_node_that_is_pointed_at_is_lit_with_its_neighbours(shop: str, visit: Visit, up: Up) -> None:
    visitor = visit(up)
    opened(visitor, shop)
    node(visitor, f"{shop}-db").hover()
    expect(node(visitor, f"{shop}-cart")).to_have_class(re.compile(r"\blit\b"))
    expect(node(visitor, f"{shop}-web")).not_to_have_class(re.compile(r"\blit\b"))


def test_a_click_on_a_pattern_shows_its_records(visit: Visit, up: Up) -> None:
    service = marked("pattern")
    for number in (7, 12):
        up.send("logs", log(f"order {number} was 'shipped' (twice)", service, severity=13))
    up.send("logs", log("order lost", service))
    visitor = visit(up)
    visitor.open(f"logs?live=false&show=Patterns&service={service}")
    shipped = visitor.find("pattern").filter(has_text="was")
    expect(shipped.locator(".records")).to_have_text("2")
    expect(shipped.locator(".level")).to_have_text("warn")
    expect(shipped.get_by_test_id("pattern-new")).to_have_count(1 if is_comparable(visitor) else 0)
    shipped.click()
    expect(visitor.find("record-text")).to_have_count(2)
    visitor.expect_url(r"q=%2F.*%2F")
    assert "show=" not in visitor.page.url
    visitor.page.go_back()
    expect(visitor.find("pattern")).to_have_count(2)


def is_comparable(visitor: Visitor) -> bool:
    return "no earlier" not in visitor.find("patterns-summary").inner_text()
