"""Types of journeys.py: endpoints, their steps, log lines, measurements and faults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"]


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log line. Its text and attributes are filled from the facts of the visit."""

    severity: Severity
    text: str
    facts: tuple[str, ...] = ()
    chance: float = 1.0
    event: str | None = None
    structured: bool = False
    """The body is a map of the facts, with the text as its `message`."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A business measurement. `amount` is a number or the name of a fact."""

    instrument: str
    amount: float | int | str = 1
    facts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """An error, as the callee reports it."""

    exception: str
    message: str
    http_status: int = 500
    grpc_status: int = 13
    chance: float = 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """Time spent inside a service, with its own span."""

    name: str
    milliseconds: float
    sigma: float = 0.4


@dataclass(frozen=True, slots=True)
class DatabaseQuery:
    """A statement sent to a store."""

    store: str
    operation: str
    target: str
    text: str
    milliseconds: float
    sigma: float = 0.5


@dataclass(frozen=True, slots=True)
class Cached:
    """A cache lookup, and the steps on a miss."""

    key: str
    hit_chance: float
    miss: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A call to an endpoint of another service: a client span and a server span."""

    endpoint: str
    required: bool = True
    """If True, the caller fails too. If False, it returns a degraded response."""
    retries: int = 0


@dataclass(frozen=True, slots=True)
class External:
    """A call to a third-party service: only a client span."""

    host: str
    method: str
    path: str
    milliseconds: float
    sigma: float = 0.5
    timeout_seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class Publish:
    """A message: a producer span, and for each consumer a later span that links to it."""

    topic: str
    consumers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Parallel:
    """Steps that start together. The slowest one determines the end."""

    steps: tuple[Step, ...]


Step = Work | DatabaseQuery | Cached | Call | External | Publish | Parallel


@dataclass(frozen=True, slots=True)
class Endpoint:
    service: str
    protocol: Literal["http", "grpc", "consumer", "cron"]
    name: str
    """The route, `package.Service/Method`, the topic, or the job."""
    milliseconds: float
    steps: tuple[Step, ...] = ()
    method: str = "GET"
    lines: tuple[LogLine, ...] = ()
    measures: tuple[Measure, ...] = ()
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class Journey:
    """An action of a user or a cron job. One journey makes one trace."""

    name: str
    entry: str
    weight: float
