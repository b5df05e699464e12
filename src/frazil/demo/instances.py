"""Service instances of the shop, each with its own resource and SDK providers."""

from __future__ import annotations

from collections.abc import Iterator

from opentelemetry._logs import Logger
from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor
from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider, ObservableCounter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    InMemoryMetricReader,
    MetricsData,
    ResourceMetrics,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Tracer

from frazil.demo.instruments import VIEWS, Instruments
from frazil.demo.randomness import SeededIds, stream
from frazil.demo.topology import SCHEMA_URL, SCOPES, SERVICES, Service, instance_resource

_DELTA: dict[type, AggregationTemporality] = {
    Counter: AggregationTemporality.DELTA,
    Histogram: AggregationTemporality.DELTA,
    ObservableCounter: AggregationTemporality.DELTA,
}


class Instance:
    """One simulated process of a service.

    All instances share the given processors. With the SDK's own processors, each of the 24 instances would
    need three threads and three connections.
    """

    def __init__(
        self,
        service: Service,
        number: int,
        seed: int,
        sdk: Resource,
        ids: IdGenerator,
        span_processor: SpanProcessor,
        log_processor: LogRecordProcessor,
    ) -> None:
        self.service = service
        self.resource = instance_resource(service, number, seed, sdk)
        self._tracers = TracerProvider(ALWAYS_ON, self.resource, shutdown_on_exit=False, id_generator=ids)
        self._tracers.add_span_processor(span_processor)
        self._loggers = LoggerProvider(self.resource, shutdown_on_exit=False)
        self._loggers.add_log_record_processor(log_processor)
        # Collected by the main loop, and sent together with the metrics of the other instances.
        self._reader = InMemoryMetricReader(preferred_temporality=_DELTA if service.delta_metrics else None)
        self._meters = MeterProvider([self._reader], self.resource, shutdown_on_exit=False, views=VIEWS)
        self._tracer_by_scope: dict[str, Tracer] = {}
        self.logger: Logger = self._loggers.get_logger(f"shop.{service.name}", service.version, SCHEMA_URL)
        meter = self._meters.get_meter(f"shop.{service.name}", service.version, SCHEMA_URL)
        self.instruments = Instruments(meter, stream(seed, f"process/{service.name}/{number}"))

    def tracer(self, scope: str) -> Tracer:
        tracer = self._tracer_by_scope.get(scope)
        if tracer is None:
            tracer = self._tracer_by_scope[scope] = self._tracers.get_tracer(scope, SCOPES[scope], SCHEMA_URL)
        return tracer

    def collect(self) -> list[ResourceMetrics]:
        data = self._reader.get_metrics_data()
        return list(data.resource_metrics) if data else []

    def shutdown(self) -> None:
        self._tracers.shutdown()
        self._loggers.shutdown()
        self._meters.shutdown()


class Instances:
    def __init__(self, seed: int, span_processor: SpanProcessor, log_processor: LogRecordProcessor) -> None:
        sdk, ids = Resource.create(), SeededIds(seed)
        self._by_service = {
            service.name: [
                Instance(service, number, seed, sdk, ids, span_processor, log_processor)
                for number in range(service.instances)
            ]
            for service in SERVICES.values()
        }

    def get(self, service: str, number: int) -> Instance:
        return self._by_service[service][number]

    def __iter__(self) -> Iterator[Instance]:
        for instances in self._by_service.values():
            yield from instances

    def collect(self) -> MetricsData:
        return MetricsData([metrics for instance in self for metrics in instance.collect()])

    def shutdown(self) -> None:
        for instance in self:
            instance.shutdown()
