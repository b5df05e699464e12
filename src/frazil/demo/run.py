"""Runs the demo: traces at their arrival times, metrics, and an orderly shutdown."""

from __future__ import annotations

import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from opentelemetry.sdk.metrics.export import MetricsData

from frazil.demo.clock import Arrivals, Clock, WallClock
from frazil.demo.exporters import Points
from frazil.demo.instances import Instances
from frazil.demo.options import DemoOptions, DemoTotals
from frazil.demo.randomness import stream
from frazil.demo.sender import Sender
from frazil.demo.simulate import Simulator
from frazil.demo.summary import LegacySummary

_TICK_SECONDS = 1.0
_METRICS_EVERY_TICKS = 10
# When the simulation is this late, it skips traffic.
_LAG_SECONDS_MAX = 2.0
# Time limits of the shutdown: at the end of the run, and after a stop signal.
_CLOSE_SECONDS_MAX = 15.0
_CLOSE_SECONDS_MAX_STOPPED = 1.5

Progress = Callable[[DemoTotals, float], None]


def run_demo(
    options: DemoOptions,
    *,
    stop: threading.Event | None = None,
    on_progress: Progress | None = None,
    clock: Clock | None = None,
) -> DemoTotals:
    """Simulate the shop until the duration is over or `stop` is set. Returns the totals.

    Without `stop`, and in the main thread, SIGINT and SIGTERM end the run; the previous handlers handle a
    second signal. `on_progress` is called immediately and then every second, in this thread, with totals and
    elapsed seconds.
    """
    with _stopped_by_signals(stop) as stopping:
        run = _Run(options, stopping, clock or WallClock())
        try:
            run.run(on_progress)
        finally:
            run.close()
        return run.totals()


class _Run:
    def __init__(self, options: DemoOptions, stop: threading.Event, clock: Clock) -> None:
        seed = secrets.randbits(64) if options.seed is None else options.seed
        self._options = options
        self._stop = stop
        self._clock = clock
        self._sender = Sender(options, wait_when_full=clock.virtual)
        self._instances = Instances(seed, self._sender.span_processor, self._sender.log_processor)
        self._simulator = Simulator(self._instances, seed)
        self._arrivals = Arrivals(
            options.traces_per_second,
            lambda seconds: options.incident_at(seconds) == "drop",
            stream(seed, "arrivals"),
        )
        self._summary = LegacySummary(stream(seed, "summary"), clock.unix_nanos(0.0))
        self._traces = 0
        self._collected_at = 0.0

    def totals(self) -> DemoTotals:
        return self._sender.totals(self._traces)

    def run(self, on_progress: Progress | None) -> None:
        """Emit traces on arrival, logs every second, and metrics every ten seconds and at the end."""
        clock, stop = self._clock, self._stop
        end = self._options.duration_seconds
        self._simulator.started(clock.unix_nanos(0.0))
        if on_progress is not None:
            on_progress(self.totals(), 0.0)
        arrival, ticks = self._arrivals.next(), 1
        while not stop.is_set():
            due = min(arrival, ticks * _TICK_SECONDS)
            if end is not None and due >= end:
                clock.wait_until(end, stop)
                break
            clock.wait_until(due, stop)
            if stop.is_set():
                break
            if due == arrival:
                self._simulator.trace(clock.unix_nanos(due), self._options.incident_at(due))
                self._traces += 1
                if clock.elapsed() - due > _LAG_SECONDS_MAX:
                    self._arrivals.skip_to(clock.elapsed())
                arrival = self._arrivals.next()
                continue
            self._simulator.background(clock.unix_nanos(due))
            if ticks % _METRICS_EVERY_TICKS == 0:
                self._collect(due)
            if on_progress is not None:
                on_progress(self.totals(), due)
            ticks = max(ticks + 1, int((clock.elapsed() - _LAG_SECONDS_MAX) / _TICK_SECONDS))
        self._collect(end if end is not None and not stop.is_set() else clock.elapsed())

    def close(self) -> None:
        self._instances.shutdown()
        self._sender.close(_CLOSE_SECONDS_MAX_STOPPED if self._stop.is_set() else _CLOSE_SECONDS_MAX)

    def _collect(self, elapsed_seconds: float) -> None:
        data = self._instances.collect()
        self._sender.send_points(Points(data, _count(data)))
        since = max(elapsed_seconds - self._collected_at, 0.0)
        self._collected_at = elapsed_seconds
        self._sender.send_points(
            Points(*self._summary.scrape(self._clock.unix_nanos(elapsed_seconds), since))
        )


def _count(data: MetricsData) -> int:
    return sum(
        len(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    )


@contextmanager
def _stopped_by_signals(stop: threading.Event | None) -> Iterator[threading.Event]:
    """Yield `stop`, or without one an event that SIGINT and SIGTERM set."""
    if stop is not None or threading.current_thread() is not threading.main_thread():
        yield stop or threading.Event()
        return
    stopping = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stopping.set()
        restore()

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield stopping
    finally:
        restore()
