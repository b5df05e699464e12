"""The page for SQL: questions are answered, mistakes explained, and a link hands a question on."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visit
from tests.support.browser.running import Up
from tests.support.browser.telemetry import log, marked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_question_is_answered_and_a_mistake_is_explained(visit: Visit, up: Up) -> None:
    service = marked("asked-")
    for text in ("one", "two", "two"):
        up.send("logs", log(text, service))
    visitor = visit(up)
    visitor.open_with_data("sql")
    which = f"WHERE service_name = '{service}'"
    visitor.run_sql(f"SELECT body, count(*) AS lines FROM logs {which} GROUP BY body ORDER BY body")
    visitor.says("2 rows")
    expect(visitor.cells()).to_have_text(["one", "1", "two", "2"])
    visitor.expect_url("q=SELECT")

    visitor.run_sql("SELECT bodie FROM logs")
    told = visitor.page.locator("[data-testid=stMain] [data-testid=stAlert]")
    expect(told).to_contain_text("Invalid query")
    expect(told).to_contain_text("bodie")
    assert "Traceback" not in visitor.page.inner_text("body")


def test_a_link_shows_the_question_and_runs_it_only_if_it_says_so(visit: Visit, up: Up) -> None:
    sql = "SELECT 6 * 7 AS answer"
    visitor = visit(up)
    visitor.open_with_data("sql", urlencode({"q": sql}))
    expect(visitor.find("sql-text")).to_have_value(sql)
    assert visitor.cells().count() == 0
    visitor.open(f"sql?{urlencode({'q': sql, 'run': 1})}")
    expect(visitor.cells()).to_have_text(["42"])


@pytest.mark.parametrize("kind", ["TIMESTAMPTZ", "TIMESTAMP"])
def test_a_chart_says_utc_on_its_axis_and_under_the_pointer(kind: str, visit: Visit, up: Up) -> None:
    times = [f"2026-11-15 12:0{minute}:00.250{'+00' if kind == 'TIMESTAMPTZ' else ''}" for minute in (0, 9)]
    values = ", ".join(f"({kind} '{time}', {number})" for number, time in enumerate(times, 1))
    sql = f"SELECT * FROM (VALUES {values}) AS points(moment, number)"
    visitor = visit(up)
    visitor.open(f"sql?{urlencode({'q': sql, 'run': 1})}")
    visitor.page.get_by_role("tab", name="Chart").click()
    chart = visitor.page.locator("[data-testid=stVegaLiteChart]")
    expect(chart.get_by_text("12:05:00", exact=True)).to_be_visible()
    chart.locator(".mark-symbol path").first.hover()
    told = visitor.page.locator("#vg-tooltip-element.visible")
    expect(told).to_contain_text("2026-11-15 12:00:00.250")
