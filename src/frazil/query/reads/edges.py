"""The service graph: which services call which, from `service_edges`."""

# ruff: noqa: S608 -- values are parameters
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frazil.query.reads.rolled import aligned, finest, pieces
from frazil.query.reads.sketches import measured
from frazil.query.reads.statement import Conditions, Statement
from frazil.query.reads.time_range import TimeRange
from frazil.tables import table_specs

EDGES_MAX = 1000
"""The most edges that are read: those with the most calls."""
SERVICE = "service"
"""The connection between two services. Others are `database`, `external`, and `messaging`: to the service
that reads the messages if it is known, and otherwise to their queue.
"""
_NAME = "service_edges"
_KEYS = ("caller", "callee", "connection", "protocol")


@dataclass(frozen=True)
class Edge:
    caller: str
    callee: str
    connection: str
    protocol: str | None
    calls: int
    errors: int
    p50_ms: float | None = None
    p99_ms: float | None = None
    is_read_by_service: bool = False
    """The callee of messages is a service that sends spans, not the queue."""

    @property
    def error_share(self) -> float:
        return self.errors / self.calls if self.calls else 0.0


@dataclass(frozen=True)
class ServiceGraph:
    edges: Sequence[Edge]
    """The edges with the most calls first."""
    left_out: int = 0
    """Edges beyond `EDGES_MAX`."""


def edges_range(range: TimeRange, now: int) -> tuple[TimeRange, Sequence[int]]:
    """Return the range in whole buckets of the finest resolution that is still there and that the length of
    the range needs, and the resolutions to read.
    """
    derived = table_specs()[_NAME].derived
    assert derived is not None  # noqa: S101
    resolutions = sorted(derived.resolutions)
    first = finest(_NAME, range.begin, now) or resolutions[-1]
    needed = next((each for each in reversed(resolutions) if range.seconds / each >= 24), resolutions[0])
    step = max(first, min(needed, 3600))
    return aligned(range, step, now), [each for each in resolutions if each >= step]


def service_edges(range: TimeRange, now: int, service: str | None = None) -> Statement:
    """Return the edges of the graph in a time range. Those of `service` come first, so that they are read
    whatever `EDGES_MAX` leaves out. The others say how much its neighbours are called.
    """
    whole, resolutions = edges_range(range, now)
    columns = "caller, callee, connection, protocol, calls, errors, duration_codes, duration_counts"
    parts, params = [], []
    for resolution, piece in pieces(whole, resolutions):
        where = Conditions.within(piece)
        where.add("resolution = ?", resolution)
        parts.append(f"SELECT {columns} FROM {_NAME} WHERE {where.sql}")
        params += where.params
    edges = measured(" UNION ALL ".join(parts), _KEYS, (_KEYS,))
    days = Conditions.within(aligned(range, 86_400, now))
    days.add("resolution = 86400")
    params[:0] = days.params
    own = "" if service is None else "(caller IS NOT DISTINCT FROM ? OR callee IS NOT DISTINCT FROM ?) DESC, "
    params += [] if service is None else [service, service]
    sql = f"""
SELECT *, count(*) OVER () AS edges, connection = 'messaging' AND callee IN (
  SELECT service_name FROM service_versions WHERE {days.sql} AND service_name IS NOT NULL
) AS is_read_by_service
FROM ({edges})
ORDER BY {own}requests DESC, {", ".join(_KEYS)} LIMIT {EDGES_MAX}"""
    return Statement(sql, tuple(params))


def service_graph(rows: Iterable[Mapping[str, Any]]) -> ServiceGraph:
    """Read the result of `service_edges`."""
    found, total = [], 0
    for row in rows:
        total = row["edges"]
        found.append(
            Edge(
                row["caller"] or "",
                row["callee"] or "",
                row["connection"],
                row["protocol"],
                row["requests"] or 0,
                row["errors"] or 0,
                *_milliseconds(row["quantiles"]),
                is_read_by_service=bool(row["is_read_by_service"]),
            )
        )
    found.sort(key=lambda edge: (-edge.calls, edge.caller, edge.callee, edge.connection, edge.protocol or ""))
    return ServiceGraph(found, max(0, total - len(found)))


def _milliseconds(quantiles: Sequence[float | None] | None) -> tuple[float | None, float | None]:
    p50, _, p99 = (None if nanos is None else nanos / 1e6 for nanos in quantiles or (None, None, None))
    return p50, p99
