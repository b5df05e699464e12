"""The services of the shop, their instances, and the stores they use, as data."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from opentelemetry.sdk.resources import Resource
from opentelemetry.util.types import AnyValue

from frazil.demo.randomness import stream

SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"
NAMESPACE = "shop"
REGION = "eu-central-1"


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    version: str
    instances: int = 1
    port: int = 8080
    delta_metrics: bool = False
    """Send counters and histograms as deltas, not as cumulative values (the SDK's default)."""


SERVICES: dict[str, Service] = {
    service.name: service
    for service in (
        Service("frontend", "4.12.0", instances=2, port=3000),
        Service("gateway", "2.7.3", instances=3),
        Service("catalog", "3.1.4", instances=2, port=9090),
        Service("search", "1.20.1", port=9090, delta_metrics=True),
        Service("recommendation", "0.9.7", port=9090, delta_metrics=True),
        Service("inventory", "2.2.0", port=9090),
        Service("cart", "1.8.2", instances=2, port=9090),
        Service("checkout", "5.0.1", instances=2, port=9090),
        Service("payment", "3.3.0", instances=2, port=9090),
        Service("shipping", "1.1.9", port=9090),
        Service("currency", "1.0.6", port=9090),
        Service("user", "2.5.0", instances=2, port=9090),
        Service("email", "1.4.4"),
        Service("fulfilment", "2.0.8", instances=2),
        Service("scheduler", "0.6.1"),
    )
}


@dataclass(frozen=True, slots=True)
class Database:
    """A database or cache. It has no telemetry of its own, only the spans of its clients."""

    system: str
    address: str
    port: int
    namespace: str
    timeout_seconds: float = 3.0
    timeout_error: str = "TimeoutError"


STORES: dict[str, Database] = {
    "shop-db": Database(
        "postgresql", "shop-db.data.svc.cluster.local", 5432, "shop", 3.0, "psycopg.errors.QueryCanceled"
    ),
    "cache": Database(
        "redis", "cache.data.svc.cluster.local", 6379, "0", 0.5, "redis.exceptions.TimeoutError"
    ),
    "index": Database("opensearch", "index.data.svc.cluster.local", 9200, "products-v7", 2.0),
}

# Instrumentation scopes and their versions.
SCOPES: dict[str, str] = {
    "opentelemetry.instrumentation.asgi": "0.66b2",
    "opentelemetry.instrumentation.httpx": "0.66b2",
    "opentelemetry.instrumentation.grpc": "0.66b2",
    "opentelemetry.instrumentation.psycopg": "0.66b2",
    "opentelemetry.instrumentation.redis": "0.66b2",
    "opentelemetry.instrumentation.opensearch": "0.66b2",
    "opentelemetry.instrumentation.confluent_kafka": "0.66b2",
    "shop.application": "1.0.0",
}


class HashedResource(Resource):
    """A resource that computes its hash once.

    The exporters hash the resource of every span and log record, and the SDK's hash is a JSON dump of all
    attributes: measured at 14 µs, a tenth of the total cost of a span.
    """

    def __init__(self, attributes: dict[str, AnyValue], schema_url: str) -> None:
        super().__init__(attributes, schema_url)
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or super().__eq__(other)


def instance_resource(service: Service, number: int, seed: int, sdk: Resource) -> HashedResource:
    """Return the resource of one instance. `sdk` provides the telemetry.sdk.* attributes."""
    random = stream(seed, f"instance/{service.name}/{number}")
    replica_set, pod = f"{random.getrandbits(36):09x}", f"{random.getrandbits(20):05x}"
    node = f"ip-10-20-{random.randint(1, 3)}-{random.randint(4, 250)}.{REGION}.compute.internal"
    attributes: dict[str, AnyValue] = {
        **{key: value for key, value in sdk.attributes.items() if key.startswith("telemetry.sdk.")},
        "service.name": service.name,
        "service.namespace": NAMESPACE,
        "service.version": service.version,
        "service.instance.id": str(UUID(int=random.getrandbits(128), version=4)),
        "deployment.environment.name": "demo",
        "host.name": node,
        "k8s.cluster.name": "shop-eu",
        "k8s.namespace.name": NAMESPACE,
        "k8s.pod.name": f"{service.name}-{replica_set}-{pod}",
        "k8s.container.name": service.name,
        "k8s.node.name": node,
        "cloud.provider": "aws",
        "cloud.region": REGION,
    }
    return HashedResource(attributes, SCHEMA_URL)
