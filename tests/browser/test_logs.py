"""The page of logs: found, followed, shared, and from one to its trace."""

from __future__ import annotations

import os
import re
import statistics
import time

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visit
from tests.support.browser.running import Up
from tests.support.browser.telemetry import log, marked, span
from tests.support.browser.visitor import seconds_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TAIL_SECONDS_MAX = 5.0
"""Meant is one second; a machine that runs other tests beside may take longer. `bench` measures it."""


def test_a_search_finds_the_log_and_its_address_shows_the_same_to_others(visit: Visit, up: Up) -> None:
    word, service = marked("needle"), marked("haystack-")
    up.send("logs", log(f"a {word} in the hay", service, severity=17))
    up.send("logs", log("only hay", service))
    visitor = visit(up)
    visitor.open_with_data("logs", f"live=false&service={service}")
    expect(visitor.find("record")).to_have_count(2)
    visitor.search_logs(word.upper())
    expect(visitor.find("record")).to_have_count(1)
    expect(visitor.find("record-text").locator("mark")).to_have_text(word)
    expect(visitor.find("histogram-total")).to_contain_text("1")
    visitor.expect_url(rf"q={word.upper()}")

    other = visit(up)
    other.page.goto(visitor.page.url)
    expect(other.find("record-text")).to_have_text([f"a {word} in the hay"])
    expect(other.page.locator(".st-key-q input")).to_have_value(word.upper())
    expect(other.page.locator(".st-key-service")).to_contain_text(service)


def test_the_counts_of_services_follow_the_search_and_all_of_them_can_be_reached(
    visit: Visit, up: Up
) -> None:
    word = marked("faceted")
    names = [f"{marked('facet-with-a-long-name-')}-{number:02}" for number in range(12)]
    for number, name in enumerate(names):
        for _ in range(1 + number % 3):
            up.send("logs", log(f"a {word}", name))
        up.send("logs", log("other", name, severity=17))
    visitor = visit(up)
    visitor.open_with_data("logs", f"live=false&q={word}")
    counts = {f"{name} {1 + number % 3}" for number, name in enumerate(names)}
    expect(visitor.find("facet")).to_have_count(len(names))
    told = visitor.find("facet").evaluate_all(
        "all => all.map((e) => [...e.querySelectorAll('span')].map((s) => s.textContent).join(' '))"
    )
    assert set(told) == counts
    more = visitor.find("facets-more")
    expect(more).to_have_text(re.compile(r"\+\d+ more"))
    hidden = int(re.findall(r"\d+", more.inner_text())[0])
    expect(visitor.find("facet").filter(visible=True)).to_have_count(len(names) - hidden)
    more.click()
    expect(visitor.find("facet").filter(visible=True)).to_have_count(len(names))
    row = visitor.find("facets")
    assert row.evaluate("e => e.scrollWidth <= e.clientWidth"), "no sideways scroll"

    visitor.find("facet").filter(has_text=names[5]).click()
    visitor.expect_url(f"service={names[5]}")
    expect(visitor.find("record")).to_have_count(3)
    expect(visitor.find("facet")).to_have_count(len(names))  # others can still be added

    visitor.open(f"logs?live=false&q={word}&attr=test.text%3Dnever")
    visitor.says("No logs match")
    expect(visitor.find("facet")).to_have_count(0)


def test_the_live_tail_shows_a_record_soon_after_its_ack(
    visit: Visit, up: Up, record_property: pytest.RecordProperty
) -> None:
    visitor = visit(up)
    service = marked("tailed-")
    visitor.open(f"logs?tail=true&service={service}")
    visitor.find("records-status").get_by_text("Following").wait_for()
    took = []
    for _ in range(5):
        word = marked("just-now-")
        up.send("logs", log(word, service))
        acked = time.perf_counter()
        took.append(seconds_until(visitor.find("record-text").get_by_text(word), acked))
    record_property("live_tail_seconds", [round(each, 3) for each in took])
    print(f"live tail, from ack to seen: {', '.join(f'{each:.2f}' for each in took)} s")
    assert statistics.median(took) <= TAIL_SECONDS_MAX


def test_a_log_leads_to_its_trace_and_the_waterfall_has_its_spans(visit: Visit, up: Up) -> None:
    trace, root, child = os.urandom(16).hex(), os.urandom(8).hex(), os.urandom(8).hex()
    word, service = marked("traced"), marked("way-")
    up.send("traces", span("GET /way", service, trace, root))
    up.send("traces", span("SELECT way", f"{service}-db", trace, child, root, error="no such way"))
    up.send("traces", span("elsewhere", service, os.urandom(16).hex(), os.urandom(8).hex()))
    up.send("logs", log(f"{word} lost its way", service, severity=17, trace=trace, span=child))
    visitor = visit(up)
    visitor.open_with_data("logs", f"live=false&q={word}")
    visitor.find("record").click()
    expect(visitor.find("record-detail").locator("[data-name='test.count'] .value")).to_have_text("7")
    expect(visitor.find("record-detail").locator("[data-name='test.count'] .kind")).to_have_text("int")
    visitor.find("record-trace").click()
    visitor.heading("GET /way")
    visitor.expect_url(f"trace={trace}")
    rows = visitor.find("waterfall-row")
    expect(rows.locator(".operation")).to_have_text(["GET /way", "SELECT way"])
    expect(rows.locator(".service")).to_have_text([service, f"{service}-db"])
    expect(visitor.find("waterfall-error")).to_have_count(1)
    rows.nth(1).click()
    visitor.says("no such way")
