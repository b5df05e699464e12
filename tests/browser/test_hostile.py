"""Telemetry is written by strangers: whatever they write is text on every page."""

from __future__ import annotations

import os
import re
from urllib.parse import quote, urlencode

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visit
from tests.support.browser.running import Up
from tests.support.browser.telemetry import database_call, gauge, log, marked, span
from tests.support.browser.visitor import Visitor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
IMAGE = "<img src=hacked onerror=window.hacked=1>"
MARKUP = f"{IMAGE}<script>window.hacked=1</script>![x](/hacked) **bold** :red[red]"


def test_what_strangers_write_stays_text_on_every_page(visit: Visit, up: Up) -> None:
    word = marked("hostile")
    service, text = f"{word}{IMAGE}", f"{word} {MARKUP}"
    trace, root = os.urandom(16).hex(), os.urandom(8).hex()
    up.send("logs", log(text, service, severity=17, trace=trace, span=root))
    up.send("traces", span(text, service, trace, root, error=text))
    up.send("traces", database_call(text, service, trace, root, f"{word}{MARKUP}"))
    up.send("metrics", gauge(text, service, 1.0))
    visitor = visit(up)

    visitor.open_with_data("logs", f"live=false&q={word}")
    expect(visitor.find("record-text")).to_have_text(text)
    visitor.find("record").click()
    expect(visitor.find("record-body")).to_have_text(text)
    _is_unharmed(visitor)

    visitor.open_with_data("traces", f"live=false&{urlencode({'service': service})}")
    expect(visitor.find("trace-row").locator(".name")).to_have_text(text)
    _is_unharmed(visitor)
    visitor.open(f"traces?trace={trace}&span={root}")
    expect(visitor.find("waterfall-row").locator(".operation")).to_have_text([text, text])
    visitor.says(IMAGE)
    _is_unharmed(visitor)

    visitor.open_with_data("overview", "live=false")
    expect(visitor.cells().filter(has_text=service)).to_have_count(1)
    _is_unharmed(visitor)

    visitor.open_with_data("services", f"live=false&{urlencode({'find': word})}")
    nodes = visitor.find("service-node")
    expect(nodes).to_have_count(2)
    assert set(nodes.evaluate_all("all => all.map(e => e.dataset.name)")) == {service, f"{word}{MARKUP}"}
    expect(visitor.find("service-row").locator(".name")).to_have_text(service)
    visitor.find("service-call").dispatch_event("click")
    visitor.says(re.compile(re.escape(f"{service} → {word}")))
    _is_unharmed(visitor)
    visitor.open(f"services?live=false&{urlencode({'service': service})}")
    visitor.heading(service)
    expect(visitor.cells().filter(has_text=text).first).to_be_attached()
    _is_unharmed(visitor)

    visitor.open(f"logs?live=false&{urlencode({'show': 'Patterns', 'service': service})}")
    expect(visitor.find("pattern-text")).to_contain_text("<img src=hacked onerror=window.hacked=")
    _is_unharmed(visitor)
    visitor.find("pattern").click()
    expect(visitor.find("record-text")).to_have_text(text)
    _is_unharmed(visitor)

    visitor.open_with_data("metric", f"live=false&metric={quote(text)}")
    _is_unharmed(visitor)

    sql = f"SELECT body, service_name FROM logs WHERE body LIKE '{word}%'"
    visitor.open(f"sql?{urlencode({'q': sql, 'run': 1})}")
    expect(visitor.cells()).to_have_text([text, service])
    _is_unharmed(visitor)


def _is_unharmed(visitor: Visitor) -> None:
    """Neither did a script run, nor was an image asked for that could have started one."""
    visitor.settle()
    assert visitor.page.evaluate("window.hacked") is None
    assert [path for path in visitor.asked if "hacked" in path] == []
