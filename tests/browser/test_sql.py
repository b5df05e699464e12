"""The page for SQL: questions are answered, mistakes explained, and a link hands a question on."""

from __future__ import annotations

import os
import re
import time
from urllib.parse import urlencode

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visit
from tests.support.browser.running import Up
from tests.support.browser.telemetry import log, marked, span
from tests.support.browser.visitor import seconds_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
GRID = "[data-testid=stDataFrame] .dvn-scroller"
PAINTED = """
window.painted = [];
const paint = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...rest) {
  window.painted.push([x, text]);
  return paint.call(this, text, x, y, ...rest);
};
"""


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


def test_functions_are_listed_beside_the_tables_and_inserted_by_a_click(visit: Visit, up: Up) -> None:
    visitor = visit(up)
    visitor.open_with_data("sql")
    visitor.find("sql-text").fill("SELECT ")
    visitor.find("sql-filter").fill("kind_name")
    listed = visitor.find("sql-tables").locator(".column")
    expect(listed).to_have_count(1)
    expect(listed).to_have_attribute("title", re.compile("span kind"))
    listed.click()
    expect(visitor.find("sql-text")).to_have_value("SELECT kind_name")
    visitor.run_sql("SELECT kind_name(2) AS kind, status_name(2) AS status, severity_name(18) AS severity")
    expect(visitor.cells()).to_have_text(["server", "error", "ERROR2"])


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


def test_null_an_empty_text_and_the_word_none_are_told_apart(visit: Visit, up: Up) -> None:
    sql = "SELECT NULL::VARCHAR AS a, '' AS b, 'None' AS c, NULL::INTEGER AS d, NULL::TIMESTAMP AS e"
    visitor = visit(up)
    visitor.page.add_init_script(PAINTED)
    visitor.open(f"sql?{urlencode({'q': sql, 'run': 1})}")
    expect(visitor.cells()).to_have_text(["", "", "None", "", ""])
    visitor.page.wait_for_function("window.painted.some(([_, text]) => text === 'NULL')")
    painted = {round(x): text for x, text in visitor.page.evaluate("window.painted") if len(text) > 1}
    assert [text for _, text in sorted(painted.items())] == ["NULL", "None", "NULL", "NULL"]


def test_a_time_has_all_its_digits(visit: Visit, up: Up) -> None:
    sql = "SELECT TIMESTAMPTZ '2026-11-15 12:00:00.000007+00' AS a, TIMESTAMP '2026-11-15 12:00:00' AS b"
    visitor = visit(up)
    visitor.open(f"sql?{urlencode({'q': sql, 'run': 1})}")
    expect(visitor.cells()).to_have_text(["2026-11-15 12:00:00.000007", "2026-11-15 12:00:00"])


def test_a_trace_id_leads_to_its_trace(visit: Visit, up: Up) -> None:
    trace = os.urandom(16).hex()
    up.send("traces", span("GET /linked", "linked", trace, os.urandom(8).hex()))
    visitor = visit(up)
    sql = f"SELECT trace_id FROM spans WHERE trace_id = '{trace}'"
    visitor.open(f"sql?{urlencode({'q': sql, 'run': 1})}")
    expect(visitor.cells()).to_have_text([re.compile(trace)])
    visitor.settle()
    grid = visitor.page.locator(GRID).first
    grid.hover(position={"x": 40, "y": 50})
    with visitor.page.context.expect_page() as opened:
        grid.click(position={"x": 40, "y": 50})
    expect(opened.value.locator("h1")).to_have_text("GET /linked")
    assert trace in opened.value.url


def test_a_long_value_can_be_read_in_full_below_the_table(visit: Visit, up: Up) -> None:
    sql = "SELECT 1 AS n, repeat('long ', 2000) || 'end' AS text UNION ALL SELECT 2, 'short' ORDER BY n"
    visitor = visit(up)
    visitor.open(f"sql?{urlencode({'q': sql, 'run': 1})}")
    visitor.says("Click a cell to read its complete value below.")
    grid = visitor.page.locator(GRID).first
    grid.click(position={"x": 400, "y": 50})
    value = visitor.page.locator(".st-key-sql_value code")
    expect(value).to_have_text(re.compile(r"long long end$"))
    assert len(value.inner_text()) == 2000 * 5 + 3
    box = value.bounding_box()
    assert box is not None
    assert box["width"] < 1366
    grid.click(position={"x": 400, "y": 83})
    expect(value).to_have_text("short")


def test_a_long_line_of_the_editor_wraps_and_its_colours_with_it(visit: Visit, up: Up) -> None:
    visitor = visit(up)
    visitor.open_with_data("sql")
    visitor.find("sql-text").fill("SELECT " + ", ".join(f"{n} AS column_{n}" for n in range(200)))
    text, paint = "[data-testid=sql-text]", ".paint"
    sizes = {
        selector: visitor.page.locator(selector).evaluate(
            "e => [e.scrollWidth - e.clientWidth, e.scrollHeight]"
        )
        for selector in (text, paint)
    }
    assert sizes[text][0] == sizes[paint][0] == 0
    assert sizes[text][1] > 300
    assert abs(sizes[text][1] - sizes[paint][1]) <= 25  # the painted text has one empty line more


def test_the_list_of_tables_names_types_as_describe_does(visit: Visit, up: Up) -> None:
    visitor = visit(up)
    visitor.open_with_data("sql")
    types = visitor.find("sql-tables").locator(".column .type")
    shown = dict(
        zip(
            visitor.find("sql-tables").locator(".column .name").all_inner_texts(),
            types.all_inner_texts(),
            strict=True,
        )
    )
    assert shown == {row[0]: row[1] for row in up.rows("DESCRIBE logs")}


def test_ten_thousand_rows_are_shown_and_a_cell_of_them_is_read(visit: Visit, up: Up) -> None:
    sql = (
        "SELECT i, md5(i::VARCHAR) AS trace_id, now() - i * INTERVAL 1 SECOND AS time, 'text ' || i AS text, "
        "NULL AS nothing FROM range(10000) AS numbers(i)"
    )
    visitor = visit(up)
    visitor.open_with_data("sql")
    begin = time.perf_counter()
    visitor.run_sql(sql)
    visitor.says("10,000 rows")
    expect(visitor.cells().first).to_have_text("0")
    took = time.perf_counter() - begin
    print(f"10,000 rows, from run to seen: {took:.2f} s")
    visitor.settle()
    begin = time.perf_counter()
    visitor.page.locator(GRID).first.click(position={"x": 20, "y": 50})
    value = visitor.page.locator(".st-key-sql_value code")
    expect(value).to_have_text("0")
    print(f"10,000 rows, from click to value: {seconds_until(value, begin):.2f} s")
