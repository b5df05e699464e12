"""Pages on smaller screens, and details of their layout."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, expect

from tests.browser.conftest import Visit
from tests.support.browser.running import Up
from tests.support.browser.telemetry import gauge, log, marked
from tests.support.browser.visitor import PAGES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PHONE, TABLET = {"width": 390, "height": 844}, {"width": 1100, "height": 900}


def box(shown: Locator) -> dict[str, float]:
    found = shown.bounding_box()
    assert found is not None
    return dict(found)  # type: ignore[arg-type]


@pytest.mark.parametrize("page", PAGES)
def test_on_a_phone_the_title_is_below_the_logo_and_nothing_is_wider_than_the_screen(
    page: str, visit: Visit, up: Up
) -> None:
    visitor = visit(up)
    visitor.page.set_viewport_size(PHONE)
    visitor.open_with_data(page, "live=false")
    logo = box(visitor.page.locator("[data-testid=stHeaderLogo], [data-testid=stHeader] img").first)
    assert box(visitor.page.locator("h1"))["y"] >= logo["y"] + logo["height"]
    main = "document.querySelector('[data-testid=stMain]')"
    assert visitor.page.evaluate(f"{main}.scrollWidth <= {main}.clientWidth")


def test_on_a_phone_a_log_shows_its_message_and_tables_are_below_the_editor(visit: Visit, up: Up) -> None:
    word = marked("readable")
    text = f"{word} and a sentence of a length that people write"
    up.send("logs", log(text, "a-service-with-a-long-name"))
    visitor = visit(up)
    visitor.page.set_viewport_size(PHONE)
    visitor.open_with_data("logs", f"live=false&q={word}")
    shown = visitor.find("record-text")
    assert shown.evaluate("e => e.scrollWidth <= e.clientWidth && e.scrollHeight <= e.clientHeight + 1")
    assert box(shown)["width"] > 280

    visitor.open_with_data("sql")
    editor, tables = box(visitor.find("sql-text")), box(visitor.find("sql-tables"))
    assert tables["y"] > editor["y"] + editor["height"]
    assert editor["width"] > 300
    assert tables["width"] > 300


def test_on_a_small_laptop_objectives_are_not_cut_and_cards_fill_their_rows(visit: Visit, up: Up) -> None:
    visitor = visit(up)
    visitor.page.set_viewport_size(TABLET)
    visitor.open_with_data("pipeline", "live=false")
    for told in visitor.page.locator("[data-testid=stMetricDelta]").all():
        assert "of the time" in told.inner_text()
        assert told.evaluate(
            "e => [e, ...e.querySelectorAll('*')].every((n) => n.scrollWidth <= n.clientWidth + 1)"
        )
    tops = [box(card)["y"] for card in visitor.page.locator(".fz-card").all()]
    assert [tops.count(top) for top in sorted(set(tops))] == [3, 3]


def test_on_a_small_laptop_the_links_of_each_service_are_on_the_screen(visit: Visit, up: Up) -> None:
    visitor = visit(up)
    visitor.page.set_viewport_size(TABLET)
    visitor.open_with_data("overview", "live=false")
    table = visitor.page.locator("[data-testid=stDataFrame] .dvn-scroller").first
    assert table.evaluate("e => [e.scrollWidth, e.clientWidth]") == [table.evaluate("e => e.clientWidth")] * 2


@pytest.mark.parametrize("size", [PHONE, TABLET])
def test_lists_of_services_and_patterns_fit_on_small_screens(
    size: dict[str, int], visit: Visit, up: Up
) -> None:
    visitor = visit(up)
    visitor.page.set_viewport_size(size)
    visitor.open_with_data("services", "live=false")
    for address, list_, row in (
        ("services?live=false", "service-list", "service-row"),
        ("logs?live=false&show=Patterns", "patterns", "pattern"),
    ):
        visitor.open(address)
        visitor.find(row).first.wait_for()
        assert visitor.find(list_).evaluate("e => e.scrollWidth <= e.clientWidth"), address
        main = visitor.page.locator("[data-testid=stMain]")
        assert main.evaluate("e => e.scrollWidth <= e.clientWidth"), address


def test_on_a_small_laptop_chosen_services_can_be_read(visit: Visit, up: Up) -> None:
    visitor = visit(up)
    visitor.page.set_viewport_size(TABLET)
    names = ["gateway", "recommendation", "frontend", "catalog"]
    for page in ("logs", "traces", "metric"):
        visitor.open(f"{page}?live=false&" + "&".join(f"service={name}" for name in names))
        pills = visitor.page.locator(".st-key-service [data-tag]")
        expect(pills).to_have_text(names)
        field = box(visitor.page.locator(".st-key-service [role=combobox]").locator("xpath=../.."))
        for pill in pills.all():
            shown = box(pill)
            assert shown["x"] + shown["width"] <= field["x"] + field["width"], (page, pill.inner_text())
            assert shown["y"] + shown["height"] <= field["y"] + field["height"]
            assert pill.evaluate("e => e.firstChild.scrollWidth <= e.firstChild.clientWidth")


def test_a_table_ends_with_a_whole_row(visit: Visit, up: Up) -> None:
    """A row is painted, so its height is known from two rows."""
    visitor = visit(up)
    for page in ("overview", "metric"):
        visitor.open_with_data(page, "live=false")
        table = visitor.page.locator("[data-testid=stDataFrame]").first
        table.locator("canvas").first.wait_for()
        rows = int(table.locator("table").first.get_attribute("aria-rowcount") or 0)
        assert rows > 1
        assert abs(box(table)["height"] - 33 * rows) <= 4, (page, rows)


def test_an_axis_counts_without_exponents(visit: Visit, up: Up) -> None:
    """An axis from 0 to 10, and one of millions."""
    visitor = visit(up)
    for value, expected in ((10.0, "10"), (5_000_000.0, "5M")):
        name = marked("axis.")
        up.send("metrics", gauge(name, "axis", value))
        visitor.open_with_data("metric", f"live=false&metric={name}")
        labels = visitor.page.locator("[data-testid=stVegaLiteChart] .role-axis-label text")
        expect(labels.get_by_text(expected, exact=True).first).to_be_visible()
        assert not [text for text in labels.all_text_contents() if "e+" in text or "e-" in text]
