"""Emits planned traces as spans, log records and measurements through the SDK."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    StatusCode,
    TraceState,
    set_span_in_context,
)

from frazil.demo.facts import Facts, visit
from frazil.demo.instances import Instance, Instances
from frazil.demo.journeys import ENDPOINTS, JOURNEYS
from frazil.demo.options import Incident
from frazil.demo.plan import PlannedLine, PlannedSpan, plan_trace
from frazil.demo.randomness import stream
from frazil.demo.steps import Measure

_BACKGROUND_CHANCE = 0.03
"""Probability that an instance logs a background line in any one second."""
_WEIGHTS = [journey.weight for journey in JOURNEYS]
# Context of log records without a span. An empty context would mean the current span.
_NO_SPAN = set_span_in_context(INVALID_SPAN, Context())
# An A/B test that the frontend propagates in the W3C trace state.
_EXPERIMENT = TraceState([("shop", "exp:one-page-checkout")])


class Simulator:
    """Emits one trace at a time. It never sleeps: timestamps are computed."""

    def __init__(self, instances: Instances, seed: int) -> None:
        self._instances = instances
        self._all = list(instances)
        self._random = stream(seed, "journeys")
        self._background = stream(seed, "background")
        self._orders: deque[SpanContext] = deque(maxlen=4)

    def trace(self, end_unix_nanos: int, incident: Incident | None) -> None:
        """Simulate one journey whose last span ends at this time."""
        journey = self._random.choices(JOURNEYS, _WEIGHTS)[0]
        facts = visit(self._random)
        root = plan_trace(journey.entry, facts, self._random, incident)
        begin = end_unix_nanos - int(max(span.end for span in root.walk()) * 1e9) - 1
        is_cron = ENDPOINTS[journey.entry].protocol == "cron"
        links = [Link(order, {"shop.link": "order"}) for order in self._orders] if is_cron else []
        self._emit(root, Context(), begin, facts, links)

    def background(self, unix_nanos: int) -> None:
        """Emit log records without a trace, for one second."""
        for instance in self._all:
            line = _background_line(instance.service.name, self._background)
            if line is not None:
                self._log(instance, line, _NO_SPAN, unix_nanos)

    def started(self, unix_nanos: int) -> None:
        """Emit the startup log record of each instance."""
        for instance in self._all:
            service = instance.service
            text = f"{service.name} {service.version} listens on 0.0.0.0:{service.port}"
            attributes = {"server.port": service.port, "process.pid": self._background.randint(7, 40)}
            line = PlannedLine(0.0, "INFO", text, attributes, event="shop.service.started")
            self._log(instance, line, _NO_SPAN, unix_nanos)

    def _emit(
        self, planned: PlannedSpan, parent: Context, begin: int, facts: Facts, links: list[Link] | None = None
    ) -> None:
        instance = self._instances.get(planned.service, planned.instance)
        span = instance.tracer(planned.scope).start_span(
            planned.name, parent, planned.kind, planned.attributes, links, begin + int(planned.start * 1e9)
        )
        context = set_span_in_context(span, Context())
        for line in planned.lines:
            self._log(instance, line, context, begin)
        for name, at, attributes in planned.events:
            span.add_event(name, attributes, begin + int(at * 1e9))
        if planned.children:
            self._emit_children(planned, span, context, begin, facts)
        if planned.error is not None:
            span.set_status(StatusCode.ERROR, planned.error)
        instance.instruments.record_span(planned, context)
        for measure in planned.measures:
            self._measure(instance, measure, facts, context)
        span.end(begin + int(planned.end * 1e9))

    def _emit_children(
        self, planned: PlannedSpan, span: Span, context: Context, begin: int, facts: Facts
    ) -> None:
        remote: Context | None = None
        for child in planned.children:
            if child.service == planned.service:
                self._emit(child, context, begin, facts)
                continue
            here = span.get_span_context()
            state = _EXPERIMENT if facts["experiment"] else here.trace_state
            there = SpanContext(here.trace_id, here.span_id, True, here.trace_flags, state)
            remote = remote or set_span_in_context(NonRecordingSpan(there), Context())
            if child.asynchronous:
                self._orders.append(here)
                self._emit(child, remote, begin, facts, [Link(there, {"messaging.operation.type": "send"})])
            else:
                self._emit(child, remote, begin, facts)

    def _log(self, instance: Instance, line: PlannedLine, context: Context, begin: int) -> None:
        body: Any = {"message": line.text, **line.attributes} if line.structured else line.text
        at = begin + int(line.at * 1e9)
        instance.logger.emit(
            LogRecord(
                timestamp=at,
                observed_timestamp=at + 50_000,
                context=context,
                severity_text=line.severity,
                severity_number=SeverityNumber[line.severity],
                body=body,
                attributes={} if line.structured else line.attributes,
                event_name=line.event,
            )
        )

    def _measure(self, instance: Instance, measure: Measure, facts: Facts, context: Context) -> None:
        amount = measure.amount
        if isinstance(amount, str):
            amount = -facts[amount[1:]] if amount.startswith("-") else facts[amount]
        attributes = {f"shop.{name}": facts[name] for name in measure.facts}
        instance.instruments.record(measure.instrument, amount, attributes, context)


def _background_line(service: str, random: Random) -> PlannedLine | None:
    """Return a log line of the service for one second, usually None."""
    if random.random() >= _BACKGROUND_CHANCE:
        return None
    attributes: dict[str, Any]
    kind = random.choice(("pool", "gc", "config", "health", "disk", "clock"))
    if kind == "pool":
        used, size = random.randint(0, 10), 10
        attributes = {"pool.used": used, "pool.size": size, "pool.saturated": used == size}
        return PlannedLine(0.0, "DEBUG", f"connection pool: {used} of {size} in use", attributes)
    if kind == "gc":
        pause, generation = round(random.lognormvariate(0.5, 0.8), 3), random.randint(0, 2)
        attributes = {"gc.pause_ms": pause, "gc.generation": generation, "gc.collected": [7, generation, 31]}
        return PlannedLine(0.0, "DEBUG", f"gc generation {generation} took {pause} ms", attributes)
    if kind == "config":
        revision = f"{random.getrandbits(28):07x}"
        attributes = {
            "revision": revision,
            "flags": {"one_page_checkout": True, "dark_mode": random.random() < 0.5},
        }
        return PlannedLine(
            0.0, "INFO", "configuration reloaded", attributes, "shop.config.reloaded", structured=True
        )
    if kind == "health":
        return PlannedLine(
            0.0, "INFO", f"{service}: health check passed", {"checks": ["db", "cache", "self"]}
        )
    if kind == "disk":
        free = round(random.uniform(4.0, 14.0), 1)
        return PlannedLine(0.0, "WARN", f"only {free} % of /var/log is free", {"disk.free_percent": free})
    return PlannedLine(0.0, "WARN", f"clock is {random.randint(20, 90)} ms off", {"ntp.stratum": 3})
