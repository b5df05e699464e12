"""From the list of traces and from logs to a trace and back: scroll position, history, selected span."""

from __future__ import annotations

import datetime as dt
import os
import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, expect

from tests.browser.conftest import Visit
from tests.support.browser.running import Parts, running_parts
from tests.support.browser.telemetry import log, marked, span
from tests.support.browser.visitor import SECONDS_MAX, Visitor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TRACES = 60
SECOND = 10**9
SENT = dt.datetime.now(dt.UTC).replace(second=0, microsecond=0)
RANGE = "..".join(f"{SENT + dt.timedelta(minutes=minutes):%Y-%m-%dT%H:%MZ}" for minutes in (-14, 0))
"""A fixed range, which has these traces however long the tests take, and not LOGGED, which is sent later."""
WORD = marked("shipped")
LOGGED = os.urandom(16).hex()
FAILED = os.urandom(8).hex()
"""The log with the word WORD is of this span of the trace LOGGED."""


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    """Traces over twelve minutes of RANGE. Those 6 to 4 minutes before SENT took ten times as long."""
    with running_parts(tmp_path_factory.mktemp("navigation")) as running:
        now = int(SENT.timestamp()) * SECOND
        for number in range(TRACES):
            ago = 720 - number * 12
            slow = 10 if 240 < ago < 360 else 1
            trace, root, child = os.urandom(16).hex(), os.urandom(8).hex(), os.urandom(8).hex()
            begin = now - ago * SECOND
            running.send("traces", at(span(f"GET /{number}", "shop", trace, root), begin, 40 * slow))
            # The later spans of earlier traces are newer than the roots of later ones.
            late = begin + (20 * SECOND if number % 3 == 0 else 10**7)
            running.send("traces", at(span("SELECT", f"db-{number % 4}", trace, child, root), late, 5))
        root = os.urandom(8).hex()
        running.send("traces", span("POST /ship", "shop", LOGGED, root))
        running.send("traces", span("reserve", "stock", LOGGED, os.urandom(8).hex(), root))
        running.send("traces", span("book", "carrier", LOGGED, FAILED, root, error="no lorry"))
        running.send("logs", log(f"{WORD} nothing", "carrier", severity=17, trace=LOGGED, span=FAILED))
        yield running


def at(request: dict[str, Any], start_nano: int, took_ms: int) -> dict[str, Any]:
    made = request["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    made |= {"startTimeUnixNano": str(start_nano), "endTimeUnixNano": str(start_nano + took_ms * 10**6)}
    return request


def expect_scrolled(visitor: Visitor, top: int) -> None:
    visitor.page.wait_for_function(
        "top => Math.abs(document.querySelector('[data-testid=stMain]').scrollTop - top) <= 2", arg=top
    )


def scroll(visitor: Visitor, top: int) -> None:
    visitor.page.evaluate("top => { document.querySelector('[data-testid=stMain]').scrollTop = top; }", top)
    expect_scrolled(visitor, top)


def entries(visitor: Visitor) -> int:
    found: int = visitor.page.evaluate("history.length")
    return found


def is_open(visitor: Visitor, heading: str) -> None:
    visitor.heading(heading)
    visitor.find("waterfall-row").first.wait_for()
    visitor.settle()


def is_listed(visitor: Visitor) -> None:
    visitor.heading("Traces")
    visitor.find("trace-row").first.wait_for()
    visitor.settle()


def picked(visitor: Visitor) -> Locator:
    return visitor.page.locator("[data-testid=waterfall-row].picked .operation")


def test_a_trace_opens_at_its_top_and_the_list_comes_back_where_it_was(visit: Visit, parts: Parts) -> None:
    visitor = visit(parts)
    visitor.open_with_data("traces", f"live=false&range={RANGE}")
    scroll(visitor, 700)
    row = visitor.find("trace-row").nth(25)
    name = row.locator(".name").inner_text()
    for back in ("button", "history", "history"):
        row.click()
        is_open(visitor, name)
        expect_scrolled(visitor, 0)
        expect(visitor.page.locator("h1")).to_be_in_viewport()
        expect(visitor.find("waterfall-row").first).to_be_in_viewport()
        if back == "button":
            visitor.page.get_by_role("button", name="All traces").click()
        else:
            visitor.page.go_back()
        is_listed(visitor)
        expect_scrolled(visitor, 700)
        expect(row).to_be_in_viewport()
    visitor.page.go_forward()
    is_open(visitor, name)
    expect_scrolled(visitor, 0)
    visitor.page.go_back()
    is_listed(visitor)
    expect_scrolled(visitor, 700)


def test_a_log_opens_its_trace_at_its_span_and_back_is_one_step(visit: Visit, parts: Parts) -> None:
    visitor = visit(parts)
    visitor.open_with_data("logs", f"live=false&q={WORD}")
    visitor.find("record").click()
    link = visitor.find("record-trace")
    expect(link).to_have_attribute("href", f"traces?trace={LOGGED}&span={FAILED}")
    visitor.settle()
    before = entries(visitor)
    link.click()
    is_open(visitor, "POST /ship")
    assert entries(visitor) == before + 1
    expect(picked(visitor)).to_have_text(["book"])
    visitor.says("no lorry")
    visitor.page.go_back()
    visitor.heading("Logs")
    expect(visitor.find("record-text")).to_have_text(f"{WORD} nothing")


def test_a_log_in_another_range_keeps_the_range(visit: Visit, parts: Parts) -> None:
    visitor = visit(parts)
    visitor.open_with_data("logs", f"live=false&range=2h&q={WORD}")
    visitor.find("record").click()
    expected = f"traces?range=2h&trace={LOGGED}&span={FAILED}"
    expect(visitor.find("record-trace")).to_have_attribute("href", expected)


def test_every_step_back_shows_what_was_there_before(visit: Visit, parts: Parts) -> None:
    """Through a search with several filters, a trace and two of its spans."""
    visitor = visit(parts)
    searched = "live=false&order=Slowest&service=carrier&service=stock&min=10ms"
    visitor.open_with_data("traces", searched)
    expect(visitor.find("trace-row")).to_have_count(1)
    before = entries(visitor)
    visitor.find("trace-row").click()
    is_open(visitor, "POST /ship")
    expect(picked(visitor)).to_have_count(0)
    assert entries(visitor) == before + 1
    rows = visitor.find("waterfall-row")
    visitor.page.locator(".st-key-tab").get_by_text("Logs", exact=True).click()
    visitor.says("All logs of the trace, oldest first.")
    rows.filter(has_text="reserve").click()
    visitor.page.locator("h5", has_text="reserve").wait_for()
    visitor.settle()
    rows.filter(has_text="book").click()
    visitor.says("no lorry")
    visitor.settle()
    assert entries(visitor) == before + 3

    visitor.page.go_back()
    visitor.page.locator("h5", has_text="reserve").wait_for()
    expect(picked(visitor)).to_have_text(["reserve"])
    visitor.page.go_back()
    visitor.says("All logs of the trace, oldest first.")
    expect(picked(visitor)).to_have_count(0)
    visitor.page.go_back()
    is_listed(visitor)
    expect(visitor.find("trace-row")).to_have_count(1)
    expect(visitor.page.locator(".st-key-min input")).to_have_value("10ms")
    visitor.expect_url("min=10ms")


def test_all_traces_returns_to_the_search_in_one_step(visit: Visit, parts: Parts) -> None:
    visitor = visit(parts)
    visitor.open_with_data("traces", "live=false&order=Slowest&service=carrier&min=10ms")
    visitor.find("trace-row").click()
    is_open(visitor, "POST /ship")
    visitor.find("waterfall-row").filter(has_text="book").click()
    visitor.says("no lorry")
    visitor.settle()
    before = entries(visitor)
    visitor.page.get_by_role("button", name="All traces").click()
    is_listed(visitor)
    expect(visitor.find("trace-row")).to_have_count(1)
    visitor.expect_url(r"\?(?!.*(trace|span)=)(?=.*order=Slowest)(?=.*service=carrier)(?=.*min=10ms)")
    assert entries(visitor) == before + 1
    visitor.page.go_back()
    is_open(visitor, "POST /ship")
    expect(picked(visitor)).to_have_text(["book"])


def test_the_shared_link_has_the_selected_span(visit: Visit, parts: Parts) -> None:
    visitor = visit(parts)
    visitor.open(f"traces?trace={LOGGED}")
    is_open(visitor, "POST /ship")
    share = visitor.page.get_by_role("button", name="Share")
    link = visitor.page.locator("[data-testid=stPopoverBody] [data-testid=stCode]").first
    share.click()
    expect(link).to_have_text(f"{parts.url}/traces?trace={LOGGED}")
    share.click()
    visitor.find("waterfall-row").filter(has_text="book").click()
    visitor.says("no lorry")
    share.click()
    expect(link).to_have_text(f"{parts.url}/traces?trace={LOGGED}&span={FAILED}")

    other = visit(parts)
    other.page.goto(link.inner_text())
    is_open(other, "POST /ship")
    expect(picked(other)).to_have_text(["book"])
    other.says("no lorry")


def test_the_newest_traces_are_listed_by_the_start_that_they_show(visit: Visit, parts: Parts) -> None:
    visitor = visit(parts)
    visitor.open_with_data("traces", f"live=false&range={RANGE}")
    starts = visitor.page.locator("[data-testid=trace-row] .start")
    expect(starts).to_have_count(TRACES)
    titles = [row.get_attribute("title") for row in starts.all()]
    times = [dt.datetime.strptime(f"2000 {title}", "%Y %d %b %H:%M:%S.%f UTC") for title in titles]
    assert times == sorted(times, reverse=True)


def test_the_chart_covers_the_range_and_a_cell_narrows_the_list(visit: Visit, parts: Parts) -> None:
    visitor = visit(parts)
    visitor.open_with_data("traces", f"live=false&range={RANGE}")
    chart = visitor.page.locator("[data-testid=stVegaLiteChart] svg")
    cells = chart.locator("path[aria-label*='traces']")
    expect(cells.first).to_be_visible()
    answer = httpx.get(
        f"{parts.api}/api/v1/traces/durations",
        params=dict(zip(("from", "to"), RANGE.split(".."), strict=True)),
        timeout=60,
    ).json()
    labels = [label.get_attribute("aria-label") or "" for label in cells.all()]
    counts = [int(found[1]) for label in labels if (found := re.search(r"traces: (\d+)", label))]
    assert sum(counts) >= answer["total"] == TRACES
    shown = chart.locator(".role-axis-label text").all_text_contents()
    clocks = [text for text in shown if re.fullmatch(r"\d\d:\d\d", text)]
    for minutes in (2, 5, 8, 11, 13):
        near = {f"{SENT - dt.timedelta(minutes=minutes + more):%H:%M}" for more in (-1, 0, 1)}
        assert near & set(clocks), f"no tick {minutes} minutes ago: {clocks}"

    before = entries(visitor)
    slow = chart.locator("path[aria-label*='300 ms to 500 ms']").nth(1)
    slow.click()
    visitor.expect_url(r"range=.*\.\..*min=300ms|min=300ms.*range=")
    expect(visitor.find("trace-row").nth(3)).to_have_count(0)  # half a minute has at most three
    expect(visitor.find("trace-row").filter(has_text="400 ms").first).to_be_visible()
    visitor.settle()
    assert entries(visitor) == before + 1
    visitor.page.go_back()
    expect(visitor.find("trace-row")).to_have_count(TRACES)


def test_on_a_phone_the_waterfall_is_on_the_first_screen_and_nothing_is_under_the_logo(
    visit: Visit, parts: Parts
) -> None:
    visitor = visit(parts)
    visitor.page.set_viewport_size({"width": 390, "height": 844})
    for path in (f"traces?trace={LOGGED}", "traces?live=false"):
        visitor.open(path)
        title = visitor.page.locator("h1")
        title.wait_for()
        logo = visitor.page.locator("[data-testid=stHeaderLogo]")
        logo.wait_for()
        boxes = [box(title), box(logo)]
        assert boxes[0]["y"] >= boxes[1]["y"] + boxes[1]["height"], path
        main = "document.querySelector('[data-testid=stMain]')"
        assert visitor.page.evaluate(f"{main}.scrollWidth <= {main}.clientWidth"), path
    visitor.open(f"traces?trace={LOGGED}")
    is_open(visitor, "POST /ship")
    assert box(visitor.find("waterfall-row").first)["y"] <= 422, "the upper half of the screen"
    expect(visitor.find("trace-facts")).to_contain_text("Errors1")


def test_on_a_narrow_screen_names_of_services_are_not_cut(visit: Visit, parts: Parts) -> None:
    visitor = visit(parts)
    visitor.page.set_viewport_size({"width": 1100, "height": 800})
    visitor.open_with_data("traces", "live=false&service=carrier")
    row = visitor.find("trace-row")
    expect(row.locator(".chip")).to_have_count(2)
    assert row.locator(".chip").evaluate_all("all => all.every(one => one.scrollWidth <= one.clientWidth)")
    expect(row.locator(".more")).to_have_text("+1")
    expect(row.locator(".more")).to_have_attribute("title", "stock")


def test_on_a_narrow_screen_a_waterfall_has_whole_names_of_services_or_none(
    visit: Visit, parts: Parts
) -> None:
    """A service that does not fit beside its operation is told by its colour, and in the details."""
    trace, root, child = os.urandom(16).hex(), os.urandom(8).hex(), os.urandom(8).hex()
    begin = (int(SENT.timestamp()) - 1200) * SECOND
    operation = "shop.recommendation.v1.Recommendations/ListForReturningCustomers"
    parts.send("traces", at(span("GET /home", "shop", trace, root), begin, 40))
    parts.send("traces", at(span(operation, "recommendation", trace, child, root), begin, 20))
    visitor = visit(parts)
    visitor.page.set_viewport_size({"width": 1100, "height": 800})
    visitor.open(f"traces?trace={trace}&span={child}")
    is_open(visitor, "GET /home")
    is_seen = "e.offsetTop < e.parentElement.offsetTop + e.parentElement.clientHeight"
    services = visitor.find("waterfall-row").locator(".service")
    seen = services.evaluate_all(f"all => all.filter(e => {is_seen}).map(e => e.textContent)")
    assert seen == ["shop"]
    origin = visitor.page.locator("[data-testid=stMain] [data-testid=stCode] pre").last
    assert origin.evaluate("e => e.scrollWidth <= e.clientWidth")
    keys = visitor.find("attributes").first.locator("td:first-child").all_inner_texts()
    assert keys == ["test.text"]


def box(found: Locator) -> Any:
    deadline = time.monotonic() + SECONDS_MAX
    while (drawn := found.bounding_box()) is None:
        assert time.monotonic() < deadline
    return drawn


def test_a_service_has_one_colour_in_the_list_and_in_the_waterfall(visit: Visit, parts: Parts) -> None:
    visitor = visit(parts)
    visitor.open_with_data("traces", "live=false&service=carrier")
    tint = "chips => chips.map(chip => [chip.textContent, chip.style.getPropertyValue('--tint')])"
    listed = dict(visitor.find("trace-row").locator(".chip").evaluate_all(tint))
    visitor.find("trace-row").click()
    is_open(visitor, "POST /ship")
    drawn = dict(
        visitor.find("waterfall-row").evaluate_all(
            "rows => rows.map(row => [row.querySelector('.service').textContent,"
            " row.querySelector('.colour').style.background])"
        )
    )
    assert len(set(listed.values())) == len(listed) == 3
    as_rgb = {
        name: f"rgb({', '.join(str(int(tint[at : at + 2], 16)) for at in (1, 3, 5))})"
        for name, tint in listed.items()
    }
    assert drawn == as_rgb
