"""Data that has not landed yet: how new it is, and traces as real instrumentations send them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visit
from tests.support.browser.running import Parts, running_parts

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
RECORDED = Path(__file__).parents[1] / "unit" / "dashboard" / "traces"


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    with running_parts(tmp_path_factory.mktemp("parts")) as running:
        for name in ("express", "messaging", "skewed"):
            running.send("traces", recorded(name))
        yield running


def recorded(name: str) -> dict[str, Any]:
    """A trace whose root started five seconds ago. A database query of Express has failed."""
    text = (RECORDED / f"{name}.json").read_text()
    first = min(int(nano) for nano in re.findall(r'"startTimeUnixNano": "(\d+)"', text))
    later = time.time_ns() - 5 * 10**9 - first
    text = re.sub(r'(TimeUnixNano": ")(\d+)', lambda match: f"{match[1]}{int(match[2]) + later}", text)
    found: dict[str, Any] = json.loads(text)
    for resource in found["resourceSpans"]:
        for span in (span for scope in resource["scopeSpans"] for span in scope["spans"]):
            if span["name"].startswith("pg.query"):
                message = {"key": "exception.message", "value": {"stringValue": "kaboom: deadlock"}}
                event = {
                    "name": "exception",
                    "timeUnixNano": span["endTimeUnixNano"],
                    "attributes": [message],
                }
                span["events"] = [event]
    return found


def test_the_newest_data_is_what_a_query_sees_before_anything_has_landed(visit: Visit, parts: Parts) -> None:
    visitor = visit(parts)
    visitor.open("/?live=false")
    metric = visitor.page.locator("[data-testid=stMetric]", has_text="Newest data")
    expect(metric).to_have_text(re.compile(r"Newest data.*\d (s|min) ago$", re.DOTALL))


def test_a_trace_is_found_by_the_message_of_an_exception(visit: Visit, parts: Parts) -> None:
    visitor = visit(parts)
    for filter in ("q=kaboom", "attr=exception.message=kaboom: deadlock"):
        visitor.open_with_data("traces", f"live=false&{filter}")
        expect(visitor.find("trace-row")).to_have_count(1)
        expect(visitor.find("trace-row").locator(".name")).to_have_text("GET /orders/:id")


def test_work_after_the_end_of_its_parent_is_marked_as_asynchronous(visit: Visit, parts: Parts) -> None:
    visitor = visit(parts)
    visitor.open("traces?trace=7b8efff798038103d269b633813fc601&span=a000000000000004")
    rows = visitor.find("waterfall-row")
    late = rows.filter(has_text="middleware - requestLogger")
    expect(visitor.find("waterfall-async")).to_have_count(1)
    expect(late.get_by_test_id("waterfall-async")).to_have_text("async")
    expect(late.get_by_test_id("waterfall-after")).to_have_count(1)
    visitor.says("Hatched and marked async: work after the parent span ended.")
    visitor.says("Asynchronous: this span continues for 510 µs after its parent ended.")
    on_path = rows.filter(has_text="pg.query").get_by_test_id("waterfall-critical")
    expect(on_path).to_have_count(1)
    visitor.open("traces?trace=7b8efff798038103d269b633813fc603&span=e000000000000001")
    expect(visitor.find("waterfall-async")).to_have_count(1)
    visitor.says("Asynchronous: this span starts 17.4 ms after its parent ended.")
