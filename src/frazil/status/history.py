"""Some lines over the last while, a point a look: bounded, in memory."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

from frazil.config import StatusConfig
from frazil.status.model import History, Series, Stages
from frazil.status.rates import Rates
from frazil.tables import SIGNALS

_DIGITS = 5
Key = tuple[str, str | None]
SERIES: tuple[Key, ...] = (
    *(("received_records_per_second", signal) for signal in SIGNALS),
    *(("landed_rows_per_second", table) for table in SIGNALS),
    ("backlog_bytes", None),
    ("backlog_age_seconds", None),
    *(("landing_lag_seconds", table) for table in SIGNALS),
    *(("freshness_seconds", table) for table in SIGNALS),
    ("ack_p99_seconds", None),
    ("refusals_per_second", None),
    ("queries_per_second", None),
    ("query_p95_seconds", None),
)


class Lines:
    def __init__(self, config: StatusConfig) -> None:
        self._sample_seconds = config.sample_seconds
        length = math.ceil(config.kept_seconds / config.sample_seconds)
        self._times: deque[float] = deque(maxlen=length)
        self._values: dict[Key, deque[float | None]] = {key: deque(maxlen=length) for key in SERIES}
        self._kept: deque[Mapping[str, bool]] = deque(maxlen=length)

    def add(self, at: float, stages: Stages, recent: Rates, kept: Mapping[str, bool]) -> None:
        values = _values(stages, recent)
        self._times.append(round(at, 3))
        for key, line in self._values.items():
            line.append(_short(values[key]))
        self._kept.append(kept)

    def kept_ratio(self, objective: str) -> float | None:
        """None before the first look."""
        found = [kept[objective] for kept in self._kept if objective in kept]
        return sum(found) / len(found) if found else None

    def history(self) -> History:
        series = [Series(name, of, list(values)) for (name, of), values in self._values.items()]
        return History(self._sample_seconds, list(self._times), series)


def _values(stages: Stages, span: Rates) -> dict[Key, float | None]:
    """Rates are of the last seconds, so that a burst is seen where it was."""
    outcomes = span.rates("frazil_receive_requests_total", "outcome")
    refused = sum(rate for outcome, rate in outcomes.items() if outcome not in ("ok", "partial"))
    values: dict[Key, float | None] = {
        ("backlog_bytes", None): stages.wal.backlog.bytes,
        ("backlog_age_seconds", None): stages.wal.backlog.age_seconds,
        ("ack_p99_seconds", None): stages.receive.total.ack.p99_seconds,
        ("refusals_per_second", None): refused if span.is_known else None,
        ("queries_per_second", None): span.rate("frazil_queries_total"),
        ("query_p95_seconds", None): stages.query.latency.p95_seconds,
    }
    for name in SIGNALS:
        table = stages.land.tables[name]
        values["received_records_per_second", name] = span.rate(
            "frazil_receive_records_total", signal=name, outcome="accepted"
        )
        values["landed_rows_per_second", name] = span.rate("frazil_landed_rows_total", table=name)
        values["landing_lag_seconds", name] = table.lag_seconds
        values["freshness_seconds", name] = table.freshness_seconds
    return values


def _short(value: float | None) -> float | None:
    """Five digits: an hour of lines is sent with every answer."""
    return None if value is None else float(f"{value:.{_DIGITS}g}")
