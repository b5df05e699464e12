"""A service has one colour on all pages of a dashboard that has just started, whatever is opened first."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.browser.conftest import Visit
from tests.support.browser.running import Parts, running_parts
from tests.support.browser.telemetry import log, span
from tests.support.browser.visitor import Visitor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
BUSY = (
    *("cart", "catalog", "currency", "email", "frontend", "gateway"),
    *("inventory", "payment", "recommendation", "search", "shipping", "user"),
)
Page = Callable[[Visitor], dict[str, str]]
QUIET = ("checkout", "fulfilment", "scheduler")
"""Not in the charts of the overview. Two of them have by name the colour of a service that is there."""


@pytest.fixture
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    with running_parts(tmp_path_factory.mktemp("colours")) as running:
        for service in (*BUSY, *BUSY, *QUIET):
            running.send("traces", span("GET /", service, os.urandom(16).hex(), os.urandom(8).hex()))
            running.send("logs", log("done", service))
        yield running


def legend(visitor: Visitor) -> dict[str, str]:
    visitor.open_with_data("overview", "live=false")
    marks = visitor.page.locator("[data-testid=stMain] [data-testid=stHtml] div > span")
    return dict(marks.evaluate_all("all => all.map(e => [e.textContent, e.firstChild.style.background])"))


def chips(visitor: Visitor) -> dict[str, str]:
    visitor.open_with_data("traces", "live=false")
    colours = "e => [e.querySelector('.service').textContent, e.querySelector('.colour').style.background]"
    return dict(visitor.find("trace-row").evaluate_all(f"all => all.map({colours})"))


def facets(visitor: Visitor) -> dict[str, str]:
    visitor.open_with_data("logs", "live=false")
    colours = "e => [e.querySelector('span').textContent, e.querySelector('i').style.background]"
    return dict(visitor.find("facet").evaluate_all(f"all => all.map({colours})"))


def rows(visitor: Visitor) -> dict[str, str]:
    visitor.open("services?live=false")
    found = visitor.find("service-row")
    found.first.wait_for()
    colours = "e => [e.dataset.name, e.querySelector('.colour').style.background]"
    return dict(found.evaluate_all(f"all => all.map({colours})"))


@pytest.mark.parametrize(
    "pages", [(legend, rows, facets, chips), (chips, legend, facets, rows), (facets, chips, rows, legend)]
)
def test_a_service_keeps_its_colour_from_page_to_page(
    pages: tuple[Page, ...], parts: Parts, visit: Visit
) -> None:
    visitor = visit(parts)
    seen = {page.__name__: page(visitor) for page in pages}
    assert set(seen["legend"]) == set(BUSY)
    assert set(seen["chips"]) == set(seen["rows"]) == {*BUSY, *QUIET}
    for name, colours in seen.items():
        assert colours == {service: seen["chips"][service] for service in colours}, name
        assert len(set(colours.values())) == len(colours), name
