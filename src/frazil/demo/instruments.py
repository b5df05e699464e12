"""The metric instruments as data, and one set of them per instance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.trace import SpanKind

from frazil.demo.plan import PlannedSpan

# Bucket bounds that the semantic conventions advise for request durations.
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_SCORES = (0.05, 0.1, 0.2, 0.4, 0.8)


@dataclass(frozen=True, slots=True)
class Instrument:
    kind: Literal["counter", "up_down", "gauge", "histogram"]
    unit: str
    description: str
    bounds: Sequence[float] | None = None


INSTRUMENTS: dict[str, Instrument] = {
    "http.server.request.duration": Instrument(
        "histogram", "s", "Duration of HTTP server requests.", _SECONDS
    ),
    "http.client.request.duration": Instrument(
        "histogram", "s", "Duration of HTTP client requests.", _SECONDS
    ),
    "rpc.server.duration": Instrument("histogram", "ms", "Duration of inbound RPCs."),
    "db.client.operation.duration": Instrument("histogram", "s", "Duration of database client operations."),
    "messaging.client.consumed.messages": Instrument("counter", "{message}", "Messages consumed."),
    "shop.orders": Instrument("counter", "{order}", "Orders placed."),
    "shop.revenue": Instrument("counter", "{currency}", "Value of the orders placed."),
    "shop.sign_ins": Instrument("counter", "{sign_in}", "Successful sign-ins."),
    "shop.carts.items": Instrument("up_down", "{item}", "Items in carts."),
    "shop.inventory.stock": Instrument("gauge", "{unit}", "Units left."),
    "shop.order.value": Instrument("histogram", "{currency}", "Value of one order."),
    "shop.payment.fraud_score": Instrument("histogram", "1", "Fraud score of a payment.", _SCORES),
}

# These instruments use exponential buckets instead of the SDK's explicit ones. The last view drops two
# attributes, which exemplars then carry as filtered attributes.
VIEWS: tuple[View, ...] = (
    View(instrument_name="rpc.server.duration", aggregation=ExponentialBucketHistogramAggregation(80)),
    View(
        instrument_name="db.client.operation.duration", aggregation=ExponentialBucketHistogramAggregation(80)
    ),
    View(
        instrument_name="shop.order.value",
        aggregation=ExponentialBucketHistogramAggregation(40),
        attribute_keys={"shop.currency"},
    ),
)

_HTTP_KEYS = (
    "http.request.method",
    "http.route",
    "http.response.status_code",
    "server.address",
    "error.type",
)
_RPC_KEYS = ("rpc.system", "rpc.service", "rpc.method", "rpc.grpc.status_code")
_DB_KEYS = ("db.system.name", "db.collection.name", "db.operation.name", "error.type")
_MESSAGING_KEYS = (
    "messaging.system",
    "messaging.destination.name",
    "messaging.consumer.group.name",
    "error.type",
)

_Record = Callable[[float, Mapping[str, Any], Context], None]


class Instruments:
    """The instruments of one instance, created on first use."""

    def __init__(self, meter: Meter, random: Random) -> None:
        self._meter = meter
        self._random = random
        self._records: dict[str, _Record] = {}
        self._cpu_seconds = random.uniform(50, 5000)
        self._memory_bytes = random.randint(90, 700) * 2**20
        self._observe_process()

    def record(self, name: str, amount: float, attributes: Mapping[str, Any], context: Context) -> None:
        """Record a measurement. The SDK may keep the span of the context as an exemplar."""
        record = self._records.get(name)
        if record is None:
            record = self._records[name] = self._make(name)
        record(amount, attributes, context)

    def record_span(self, span: PlannedSpan, context: Context) -> None:
        """Record the measurements that instrumentation libraries take with their spans."""
        attributes, seconds = span.attributes, span.end - span.start
        if span.kind is SpanKind.SERVER and "http.route" in attributes:
            self.record("http.server.request.duration", seconds, _only(attributes, _HTTP_KEYS), context)
        elif span.kind is SpanKind.SERVER:
            self.record("rpc.server.duration", seconds * 1e3, _only(attributes, _RPC_KEYS), context)
        elif "db.system.name" in attributes:
            self.record("db.client.operation.duration", seconds, _only(attributes, _DB_KEYS), context)
        elif span.kind is SpanKind.CLIENT and "url.full" in attributes:
            self.record("http.client.request.duration", seconds, _only(attributes, _HTTP_KEYS), context)
        elif span.kind is SpanKind.CONSUMER:
            self.record("messaging.client.consumed.messages", 1, _only(attributes, _MESSAGING_KEYS), context)

    def _make(self, name: str) -> _Record:
        instrument, meter = INSTRUMENTS[name], self._meter
        unit, description = instrument.unit, instrument.description
        if instrument.kind == "counter":
            return meter.create_counter(name, unit, description).add
        if instrument.kind == "up_down":
            return meter.create_up_down_counter(name, unit, description).add
        if instrument.kind == "gauge":
            return meter.create_gauge(name, unit, description).set
        return meter.create_histogram(
            name, unit, description, explicit_bucket_boundaries_advisory=instrument.bounds
        ).record

    def _observe_process(self) -> None:
        """Register the process metrics: a gauge, a counter and two up-down counters."""
        self._meter.create_observable_gauge(
            "process.cpu.utilization", [self._cpu_utilization], "1", "CPU utilization of the process."
        )
        self._meter.create_observable_counter(
            "process.cpu.time", [self._cpu_time], "s", "CPU time of the process."
        )
        self._meter.create_observable_up_down_counter(
            "process.memory.usage", [self._memory], "By", "Physical memory in use."
        )
        self._meter.create_observable_up_down_counter(
            "db.client.connection.count",
            [self._connections],
            "{connection}",
            "Connections of the pool, by state.",
        )

    def _cpu_utilization(self, _: CallbackOptions) -> Iterable[Observation]:
        yield Observation(round(min(self._random.lognormvariate(-2.2, 0.5), 1.0), 4))

    def _cpu_time(self, _: CallbackOptions) -> Iterable[Observation]:
        user = self._random.uniform(0.2, 2.0)
        self._cpu_seconds += user
        yield Observation(round(self._cpu_seconds * 0.8, 3), {"cpu.mode": "user"})
        yield Observation(round(self._cpu_seconds * 0.2, 3), {"cpu.mode": "system"})

    def _memory(self, _: CallbackOptions) -> Iterable[Observation]:
        self._memory_bytes = max(60 * 2**20, self._memory_bytes + self._random.randint(-4, 5) * 2**20)
        yield Observation(self._memory_bytes)

    def _connections(self, _: CallbackOptions) -> Iterable[Observation]:
        used = self._random.randint(0, 10)
        yield Observation(used, {"db.client.connection.state": "used"})
        yield Observation(10 - used, {"db.client.connection.state": "idle"})


def _only(attributes: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: attributes[key] for key in keys if key in attributes}
