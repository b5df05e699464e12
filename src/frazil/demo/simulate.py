"""The walk that turns planned traces into spans, log records and measurements, through the SDK."""

from __future__ import annotations

from collections import deque
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

from frazil.demo.background import background_line
from frazil.demo.chance import stream
from frazil.demo.facts import Facts, visit
from frazil.demo.instances import Instance, Instances
from frazil.demo.journeys import ENDPOINTS, JOURNEYS
from frazil.demo.options import Incident
from frazil.demo.plan import PlannedLine, PlannedSpan, plan_trace
from frazil.demo.steps import Measure

_WEIGHTS = [journey.weight for journey in JOURNEYS]
# What a log record without a span is given: an empty context would mean the caller's current one.
_NO_SPAN = set_span_in_context(INVALID_SPAN, Context())
# An A/B test that the frontend passes on with the W3C trace state.
_EXPERIMENT = TraceState([("shop", "exp:one-page-checkout")])


class Simulator:
    """Makes one trace after the other. Does not sleep: times are computed."""

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
        """What the instances say when no request is at work: log records without a trace."""
        for instance in self._all:
            line = background_line(instance.service.name, self._background)
            if line is not None:
                self._log(instance, line, _NO_SPAN, unix_nanos)

    def started(self, unix_nanos: int) -> None:
        """The lines with which each instance begins."""
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
            planned.name,
            parent,
            planned.kind,
            planned.attributes,
            links,
            begin + int(planned.start * 1e9),
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
