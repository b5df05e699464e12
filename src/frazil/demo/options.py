"""Options and totals of a demo run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import urlsplit

from frazil.errors import ConfigError

Protocol = Literal["grpc", "http"]
Incident = Literal["errors", "slow", "drop"]
Compression = Literal["gzip", "none"]

_DEFAULT_ENDPOINTS: dict[Protocol, str] = {"grpc": "http://127.0.0.1:4317", "http": "http://127.0.0.1:4318"}


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Options of one run. Raises ConfigError for invalid values."""

    endpoint: str | None = None
    """Base URL of the receiver, without the path of a signal. None: the default port on 127.0.0.1."""
    protocol: Protocol = "grpc"
    traces_per_second: float = 5.0
    """Mean number of traces per second. A trace has about 14 spans and costs about 4 ms of CPU."""
    duration_seconds: float | None = None
    """None: until stopped."""
    incident: Incident | None = None
    incident_after_seconds: float = 20.0
    incident_seconds: float = 60.0
    api_key: str | None = None
    """Sent as `authorization: Bearer …`."""
    ca_file: str | None = None
    """CA certificate (PEM) for the receiver, for https."""
    compression: Compression = "gzip"
    seed: int | None = None
    """Runs with the same seed send the same content, including IDs; only timestamps differ."""

    def __post_init__(self) -> None:
        if self.protocol not in get_args(Protocol):
            raise ConfigError(f"demo: protocol must be 'grpc' or 'http', not {self.protocol!r}")
        if self.compression not in get_args(Compression):
            raise ConfigError(f"demo: compression must be 'gzip' or 'none', not {self.compression!r}")
        if self.incident is not None and self.incident not in get_args(Incident):
            raise ConfigError(f"demo: incident must be 'errors', 'slow' or 'drop', not {self.incident!r}")
        if not (math.isfinite(self.traces_per_second) and self.traces_per_second > 0):
            raise ConfigError(
                f"demo: the rate must be more than 0 traces per second, not {self.traces_per_second}"
            )
        if self.duration_seconds is not None and not self.duration_seconds >= 0:
            raise ConfigError(f"demo: the duration must be 0 seconds or more, not {self.duration_seconds}")
        if not (self.incident_after_seconds >= 0 and self.incident_seconds >= 0):
            raise ConfigError("demo: the delay and duration of an incident must be 0 seconds or more")
        url = urlsplit(self.base_url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError(
                f"demo: {self.endpoint!r} is not a valid receiver URL: use a form like http://127.0.0.1:4317"
            )

    @property
    def base_url(self) -> str:
        """The receiver's URL without a trailing slash."""
        endpoint = self.endpoint or _DEFAULT_ENDPOINTS[self.protocol]
        return (endpoint if "://" in endpoint else f"http://{endpoint}").rstrip("/")

    def incident_at(self, elapsed_seconds: float) -> Incident | None:
        """Return the incident that is active at this time of the run."""
        since = elapsed_seconds - self.incident_after_seconds
        return self.incident if 0 <= since < self.incident_seconds else None


@dataclass(frozen=True, slots=True)
class DemoTotals:
    """Simulated traces, and records that were sent (acknowledged by the receiver) or failed."""

    traces: int = 0
    spans: int = 0
    logs: int = 0
    points: int = 0
    spans_failed: int = 0
    """Rejected, not delivered after the exporter's retries, or dropped because the queue was full."""
    logs_failed: int = 0
    points_failed: int = 0
    last_error: str | None = None
    """The last error message of an exporter. None after an export succeeds."""

    @property
    def sent(self) -> int:
        return self.spans + self.logs + self.points

    @property
    def failed(self) -> int:
        return self.spans_failed + self.logs_failed + self.points_failed
