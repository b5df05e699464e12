"""The dashboard's pages in a browser, over 5 million rows: until one sees what one came for."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from playwright.sync_api import Browser
from tests.components.chromium import chromium, running_chromium
from tests.components.process import end, free_port, wait_until
from tests.support.browser.running import Parts, running_parts
from tests.support.browser.telemetry import log, marked
from tests.support.browser.visitor import PAGES, Visitor, seconds_until, visiting

from bench.lake import make_lake
from bench.payloads import BASE_UNIX_NANO, MAKERS
from bench.table import Bench, Row
from frazil.config import Config
from frazil.tables import Signal

_SERVICES = ("frontend", "cart", "checkout", "payment", "search", "catalog")
_ROUTES = ("/api/cart", "/api/checkout", "/api/products/{id}", "/api/search")
_DAY_MICROS = 86_400_000_000
FILES: dict[Signal, int] = {"logs": 100, "spans": 80, "metrics": 20}
RECORDS_PER_FILE, QUICK_RECORDS_PER_FILE = 25_000, 2_000
RANGES = ("15m", "24h")
ROUNDS, QUICK_ROUNDS = 7, 3
COLD_ROUNDS = 5
PROBES, QUICK_PROBES = 40, 10
PAINT_SECONDS_TARGET = 2.0
TAIL_SECONDS_TARGET = 1.0
_PAUSE_SECONDS = 0.37
"""Between probes: not in step with the page's own looks."""


def pages(bench: Bench) -> None:
    records = QUICK_RECORDS_PER_FILE if bench.quick else RECORDS_PER_FILE
    program = chromium()
    with tempfile.TemporaryDirectory(prefix="frazil-bench-pages-") as folder:
        place = Path(folder)
        config = Config(data_dir=place / "data")
        last = time.time_ns() // 1000
        for signal, files in FILES.items():
            make = metrics_request if signal == "metrics" else MAKERS[signal]
            make_lake(config, files, records, last - _DAY_MICROS, last, signal, make)
        rows = records * sum(FILES.values())
        with (
            running_parts(place, {"query": {"workers": 2}, "log": {"level": "warning"}}) as parts,
            running_chromium(program) as browser,
        ):
            _paint_streamlit(bench, browser, place)
            for span in RANGES:
                for page in PAGES:
                    if span == RANGES[0] or page not in ("sql", "pipeline"):  # they have no range
                        _paint(bench, browser, parts, page, span, rows)
            _tail(bench, browser, parts)


def metrics_request(seed: int, records: int) -> bytes:
    """Points of few series, as metrics have: a gauge, a counter and a histogram of each route and host."""
    rng = random.Random(seed)
    request = ExportMetricsServiceRequest()
    resource_metrics = request.resource_metrics.add()
    service = _SERVICES[seed % len(_SERVICES)]
    for key, value in (("service.name", service), ("host.name", f"node-{seed % 4}")):
        resource_metrics.resource.attributes.add(key=key).value.string_value = value
    scope = resource_metrics.scope_metrics.add()
    used = scope.metrics.add(name="process.memory.usage", unit="By").gauge
    served = scope.metrics.add(name="shop.requests", unit="{request}").sum
    served.aggregation_temporality, served.is_monotonic = 2, True
    lasted = scope.metrics.add(name="http.server.request.duration", unit="s").histogram
    lasted.aggregation_temporality = 2
    for index in range(records):
        points = (used.data_points, served.data_points, lasted.data_points)[index % 3]
        point = points.add(time_unix_nano=BASE_UNIX_NANO, start_time_unix_nano=BASE_UNIX_NANO - 10**10)
        point.attributes.add(key="http.route").value.string_value = rng.choice(_ROUTES)
        if index % 3 < 2:
            point.as_double = rng.random() * 1e6
            continue
        point.explicit_bounds.extend((0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5))
        point.bucket_counts.extend(rng.randrange(100) for _ in range(11))
        point.count, point.sum = sum(point.bucket_counts), rng.random() * 50
    return request.SerializeToString()


def _paint(bench: Bench, browser: Browser, parts: Parts, page: str, span: str, rows: int) -> None:
    """Cold: a browser that was never here. Warm: the same one again, each time in a session of its own."""
    colds = []
    for _ in range(1 if bench.quick else COLD_ROUNDS - 1):
        with visiting(browser, parts.url) as visitor:
            colds.append(_seconds(visitor, page, span))
    with visiting(browser, parts.url) as visitor:
        colds.append(_seconds(visitor, page, span))
        before = parts.queries(page)
        rounds = QUICK_ROUNDS if bench.quick else ROUNDS
        warm = [_seconds(visitor, page, span) for _ in range(rounds)]
        asked = (parts.queries(page) - before) / rounds
    usual, cold = statistics.median(warm), statistics.median(colds)
    bench.add(
        Row(
            f"{PAGES[page].heading}, {span}, of {rows:,} rows",
            f"{usual:.2f} s",
            f"{cold:.2f} s",
            f"slowest {max(warm):.2f} s; {asked:.1f} queries per load",
            f"< {PAINT_SECONDS_TARGET:g} s" if span == RANGES[0] else "",
            max(usual, cold) < PAINT_SECONDS_TARGET if span == RANGES[0] else None,
        )
    )


def _paint_streamlit(bench: Bench, browser: Browser, place: Path) -> None:
    """Measures Streamlit itself: a page with a title, a chart and a table of three rows, and no API."""
    script, url = place / "alone.py", f"http://127.0.0.1:{free_port()}"
    script.write_text(_ALONE)
    command = [sys.executable, "-m", "streamlit", "run", str(script), "--server.headless=true"]
    command += ["--server.address=127.0.0.1", f"--server.port={url.rpartition(':')[2]}"]
    process = subprocess.Popen(
        [*command, "--browser.gatherUsageStats=false"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        assert wait_until(lambda: _responds(f"{url}/_stcore/health"), seconds_max=60)
        colds = []
        for _ in range(2 if bench.quick else COLD_ROUNDS):
            with visiting(browser, url) as visitor:
                cold = _streamlit_seconds(visitor)
                warm = [_streamlit_seconds(visitor) for _ in range(2)]
                colds.append((cold, statistics.median(warm)))
    finally:
        end(process, 10)
    cold, usual = (statistics.median(each) for each in zip(*colds, strict=True))
    what = "Streamlit alone: a title, a chart and a table"
    bench.add(Row(what, f"{usual:.2f} s", f"{cold:.2f} s", "no API"))


_ALONE = """import pandas as pd, streamlit as st
st.title("Alone")
rows = pd.DataFrame({"x": [1, 2, 3], "y": [3, 1, 2]})
st.line_chart(rows, x="x", y="y")
st.dataframe(rows)
"""


def _streamlit_seconds(visitor: Visitor) -> float:
    begin = time.perf_counter()
    visitor.page.goto(visitor.url, wait_until="commit")
    seconds_until(visitor.page.locator("[data-testid=stVegaLiteChart] svg"), begin)
    return seconds_until(visitor.page.locator("[data-testid=stDataFrame] canvas"), begin)


def _responds(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.HTTPError:
        return False


def _seconds(visitor: Visitor, page: str, span: str) -> float:
    """From the request of the address until its heading and its data are visible."""
    begin = time.perf_counter()
    visitor.page.goto(f"{visitor.url}/{PAGES[page].path}?range={span}&live=false", wait_until="commit")
    visitor.heading(PAGES[page].heading)
    return seconds_until(visitor.page.locator(PAGES[page].data), begin)


def _tail(bench: Bench, browser: Browser, parts: Parts) -> None:
    took = []
    with visiting(browser, parts.url) as visitor:
        visitor.open("logs?tail=true")
        visitor.find("records-status").get_by_text("Following").wait_for()
        for _ in range(QUICK_PROBES if bench.quick else PROBES):
            word = marked("probe")
            parts.send("logs", log(word, "probe"))
            acked = time.perf_counter()
            took.append(seconds_until(visitor.find("record-text").get_by_text(word), acked))
            time.sleep(_PAUSE_SECONDS)
    took.sort()
    bench.add(
        Row(
            "live tail: from ack to visible in the browser",
            f"{statistics.median(took):.2f} s",
            "",
            f"{len(took)} probes, slowest {took[-1]:.2f} s",
            f"< {TAIL_SECONDS_TARGET:g} s",
            took[-1] < TAIL_SECONDS_TARGET,
        )
    )
