"""The parts on their own: lanes, arrivals, options, the clock, the progress display."""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from frazil.demo import DemoOptions, DemoTotals, VirtualClock, WallClock
from frazil.demo.clock import Arrivals
from frazil.demo.export_queue import ExportQueue
from frazil.demo.facts import visit
from frazil.demo.journeys import ENDPOINTS, JOURNEYS
from frazil.demo.plan import plan_trace
from frazil.demo.progress import describe, run_with_progress
from frazil.demo.topology import SERVICES
from frazil.errors import ConfigError
from tests.support.demo_receivers import grpc_receiver


def ended(queue: ExportQueue[Any]) -> None:
    queue.close()
    assert queue.join(5)


def test_a_queue_sends_all_items_in_order_in_batches() -> None:
    batches: list[Sequence[int]] = []
    queue = ExportQueue[int]("t", lambda b: not batches.append(b), batch_items_max=10, queue_items_max=100)
    for item in range(95):
        queue.offer(item)
    ended(queue)
    assert [item for batch in batches for item in batch] == list(range(95))
    assert max(map(len, batches)) <= 10
    assert (queue.sent, queue.failed) == (95, 0)


def test_a_full_queue_drops_the_oldest_item_and_counts_it() -> None:
    entered, go = threading.Event(), threading.Event()
    sent: list[int] = []

    def export(batch: Sequence[int]) -> bool:
        entered.set()
        go.wait(5)
        sent.extend(batch)
        return True

    queue = ExportQueue[int]("t", export, batch_items_max=1, queue_items_max=3)
    queue.offer(0)
    assert entered.wait(5)
    for item in range(1, 9):
        queue.offer(item)
    go.set()
    ended(queue)
    assert sent == [0, 6, 7, 8]
    assert (queue.sent, queue.failed) == (4, 5)


def test_a_queue_that_waits_when_full_loses_nothing() -> None:
    sent: list[int] = []
    queue = ExportQueue[int](
        "t", lambda b: not sent.extend(b), batch_items_max=2, queue_items_max=4, wait_when_full=True
    )
    for item in range(200):
        queue.offer(item)
    ended(queue)
    assert sent == list(range(200))


def test_a_queue_counts_batches_that_fail_or_raise() -> None:
    def export(batch: Sequence[int]) -> bool:
        if 3 in batch:
            raise ValueError
        return 5 not in batch

    queue = ExportQueue[int]("t", export, batch_items_max=1, queue_items_max=100, weigh=lambda item: item)
    for item in (1, 3, 5, 7):
        queue.offer(item)
    ended(queue)
    assert (queue.sent, queue.failed) == (8, 8)


def test_an_abandoned_queue_counts_the_rest_as_failed() -> None:
    entered, go = threading.Event(), threading.Event()

    def export(_: Sequence[int]) -> bool:
        entered.set()
        return not go.wait(5)

    queue = ExportQueue[int]("t", export, batch_items_max=1, queue_items_max=100)
    for item in range(5):
        queue.offer(item)
    assert entered.wait(5)
    queue.abandon()
    queue.offer(6)
    go.set()
    assert queue.join(5)
    queue.count_rest()
    assert (queue.sent, queue.failed) == (0, 6)


@given(st.floats(0.05, 500), st.integers())
def test_arrivals_come_in_order_and_at_the_rate(rate: float, seed: int) -> None:
    arrivals = Arrivals(rate, lambda _: False, Random(seed))
    times = [arrivals.next() for _ in range(300)]
    assert times == sorted(times)
    assert 0.6 * rate < 300 / times[-1] < 1.6 * rate


def test_arrivals_can_skip() -> None:
    arrivals = Arrivals(10, lambda _: False, Random(1))
    arrivals.next()
    arrivals.skip_to(50)
    assert 50 < arrivals.next() < 52


@given(st.sampled_from(JOURNEYS), st.sampled_from([None, "errors", "slow", "drop"]), st.integers())
def test_every_planned_trace_is_well_formed(journey: Any, incident: Any, seed: int) -> None:
    random = Random(seed)
    root = plan_trace(journey.entry, visit(random), random, incident)
    for span in root.walk():
        assert 0 <= span.instance < SERVICES[span.service].instances
        assert span.start < span.end
        assert all(span.start <= line.at <= span.end for line in span.lines)
        assert all(span.start <= at <= span.end for _, at, _ in span.events)
        for child in span.children:
            assert child.asynchronous or span.start <= child.start <= child.end <= span.end


def test_every_service_and_endpoint_is_reached_from_a_journey() -> None:
    random = Random(1)
    spans = [
        span
        for journey in JOURNEYS
        for _ in range(10)
        for span in plan_trace(journey.entry, visit(random), random, None).walk()
    ]
    assert {span.service for span in spans} == set(SERVICES)
    assert {endpoint.service for endpoint in ENDPOINTS.values()} == set(SERVICES)


@pytest.mark.parametrize(
    "wrong",
    [
        {"protocol": "udp"},
        {"compression": "zstd"},
        {"incident": "fire"},
        {"traces_per_second": 0},
        {"traces_per_second": math.nan},
        {"duration_seconds": -1},
        {"incident_after_seconds": -1},
        {"endpoint": "ftp://x"},
        {"endpoint": "http://"},
    ],
)
def test_invalid_options_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        DemoOptions(**wrong)


def test_endpoints_have_defaults_and_a_scheme() -> None:
    assert DemoOptions().base_url == "http://127.0.0.1:4317"
    assert DemoOptions(protocol="http").base_url == "http://127.0.0.1:4318"
    assert DemoOptions("otel.example:4317").base_url == "http://otel.example:4317"
    assert DemoOptions("https://otel.example/in/", "http").base_url == "https://otel.example/in"


def test_an_incident_has_a_beginning_and_an_end() -> None:
    options = DemoOptions(incident="slow", incident_after_seconds=5, incident_seconds=10)
    assert [options.incident_at(at) for at in (4.9, 5, 14.9, 15)] == [None, "slow", "slow", None]
    assert DemoOptions().incident_at(30) is None


def test_the_wall_clock_follows_jumps_of_the_system_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    clock = WallClock()
    now = time.time_ns()
    assert abs(clock.unix_nanos(clock.elapsed()) - now) < 10**9
    monkeypatch.setattr(time, "time_ns", lambda: now + 3600 * 10**9)
    assert abs(clock.unix_nanos(clock.elapsed()) - now - 3600 * 10**9) < 10**9


def test_a_stopped_virtual_clock_does_not_advance() -> None:
    clock, stop = VirtualClock(0), threading.Event()
    clock.wait_until(3, stop)
    stop.set()
    clock.wait_until(9, stop)
    assert clock.elapsed() == 3
    assert clock.unix_nanos(3) == 3 * 10**9


def test_the_description_contains_failures_and_the_incident() -> None:
    options = DemoOptions(incident="errors", incident_after_seconds=10, incident_seconds=10)
    totals = DemoTotals(traces=1200, spans=15000, logs=9, points=4, spans_failed=3)
    assert describe(options, totals, 4, 61.4) == (
        "1,200 traces · 15,000 spans · 9 logs · 4 points · 61/s · 3 failed · incident 'errors' in 6 s"
    )
    assert describe(options, totals, 12, 0).endswith("incident 'errors' active, 8 s left")
    assert "incident" not in describe(options, totals, 20, 0)


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_ends_with_the_totals(terminal: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=80)
    with grpc_receiver() as received:
        options = DemoOptions(received.endpoint, duration_seconds=0.2, traces_per_second=50, seed=1)
        totals = run_with_progress(options, console=console)
    assert totals.failed == 0
    assert (
        f"sent {totals.spans:,} spans, {totals.logs:,} logs and {totals.points:,} metric points"
        in out.getvalue()
    )
    assert ("\x1b" in out.getvalue()) == terminal
    assert ("0:00:00" in out.getvalue()) == terminal
