"""Every page with data: it loads, costs few questions, asks nobody else, and comes in dark and light."""

from __future__ import annotations

import re

import pytest

from tests.browser.conftest import Visit
from tests.support.browser.running import Up
from tests.support.browser.visitor import PAGES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
QUESTIONS_MAX = 4


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_data_for_a_few_questions(page: str, visit: Visit, up: Up) -> None:
    before = up.queries(page)
    visitor = visit(up)
    visitor.open_with_data(page, "live=false")
    assert 1 <= up.queries(page) - before <= QUESTIONS_MAX
    main = "document.querySelector('[data-testid=stMain]')"
    assert visitor.page.evaluate(f"{main}.scrollWidth <= {main}.clientWidth"), "wider than a small screen"


@pytest.mark.parametrize("path", [f"/{page.path}" for page in PAGES.values()])
def test_a_page_loads_without_a_failed_request_or_an_error_in_the_console(
    path: str, visit: Visit, up: Up
) -> None:
    visitor = visit(up)
    visitor.open(path)
    assert "/_stcore/health" in visitor.asked
    assert visitor.amiss == []


def test_the_way_leads_through_all_pages_without_loading_again(visit: Visit, up: Up) -> None:
    visitor = visit(up)
    visitor.open("/")
    visitor.page.evaluate("window.stayed = true")
    for page in list(PAGES.values())[::-1]:
        visitor.page.locator("[data-testid=stSidebarNav]").get_by_text(page.heading, exact=True).click()
        visitor.heading(page.heading)
        visitor.expect_url(rf"/{page.path}(\?|$)")
    assert visitor.page.evaluate("window.stayed")


def test_a_metric_is_opened_as_sql_without_loading_again(visit: Visit, up: Up) -> None:
    visitor = visit(up)
    visitor.open_with_data("metric", "live=false")
    visitor.page.evaluate("window.stayed = true")
    visitor.page.locator(".st-key-metric_sql a").click()
    visitor.heading("SQL")
    visitor.cells().first.wait_for(state="attached")
    visitor.expect_url(r"/sql\?q=")
    assert visitor.page.evaluate("window.stayed")
    visitor.page.go_back()
    visitor.heading("Metrics")


def test_demo_traffic_is_called_so(visit: Visit, up: Up) -> None:
    visitor = visit(up)
    visitor.open("pipeline")
    visitor.says("make run DEMO=0")


def test_dark_and_light_are_both_there(visit: Visit, up: Up) -> None:
    seen, grounds = [], []
    for dark in (False, True):
        visitor = visit(up, dark=dark)
        visitor.open_with_data("overview", "live=false")
        seen.append(visitor.page.screenshot())
        style = "getComputedStyle(document.querySelector('[data-testid=stApp]')).backgroundColor"
        grounds.append(sum(map(int, re.findall(r"\d+", visitor.page.evaluate(style))[:3])))
    assert seen[0] != seen[1]
    assert grounds[0] > 600 > 150 > grounds[1]
