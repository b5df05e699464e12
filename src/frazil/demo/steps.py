"""The vocabulary of journeys.py: endpoints, the steps they take, what they log and measure, their faults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"]


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log line. Texts and attributes are filled from the visit's facts."""

    severity: Severity
    text: str
    facts: tuple[str, ...] = ()
    chance: float = 1.0
    event: str | None = None
    structured: bool = False
    """The body is a map of the facts, with the text as its `message`."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A measurement of the business; `amount` is a number or the name of a fact."""

    instrument: str
    amount: float | int | str = 1
    facts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """A way to fail, as the callee reports it."""

    exception: str
    message: str
    http_status: int = 500
    grpc_status: int = 13
    chance: float = 0.0


@dataclass(frozen=True, slots=True)
class Work:
    """Time spent inside a service, with a span of its own."""

    name: str
    milliseconds: float
    sigma: float = 0.4


@dataclass(frozen=True, slots=True)
class DatabaseQuery:
    """A statement to a store."""

    store: str
    operation: str
    target: str
    text: str
    milliseconds: float
    sigma: float = 0.5


@dataclass(frozen=True, slots=True)
class Cached:
    """A lookup in the cache, and what is done when it misses."""

    key: str
    hit_chance: float
    miss: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of another service's endpoint: a client span here, a server span there."""

    endpoint: str
    required: bool = True
    """The caller fails when this fails; otherwise it answers with less."""
    retries: int = 0


@dataclass(frozen=True, slots=True)
class External:
    """A call of somebody else's service: only the client span is ours."""

    host: str
    method: str
    path: str
    milliseconds: float
    sigma: float = 0.5
    timeout_seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class Publish:
    """A message: a producer span, and for each consumer a span that begins later and links back."""

    topic: str
    consumers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Parallel:
    """Steps that begin together; done when the slowest is."""

    steps: tuple[Step, ...]


Step = Work | DatabaseQuery | Cached | Call | External | Publish | Parallel


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Something a service can be asked for."""

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
    """What a user (or the clock) wants; one journey makes one trace."""

    name: str
    entry: str
    weight: float
