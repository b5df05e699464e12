"""Spans of calls, and the edges that follow from them: once from all spans, in plain Python, and once from
stored rows."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from frazil.tables import landed_spec
from frazil.tables.columns import TIMESTAMP
from frazil.tables.derived.service_edges import SERVICE_EDGES
from frazil.tables.derived.sketch import sketch_of

MICROS = 1_000_000
MINUTE, HOUR, DAY = 60, 3600, 86_400
MIDNIGHT = 20_000 * DAY
NOON = MIDNIGHT + 12 * HOUR
SERVER, CLIENT, PRODUCER, CONSUMER = 2, 3, 4, 5
Key = tuple[str, int, str, str, str, str | None, int]
"""Tenant, resolution, caller, callee, connection, protocol, and the bucket in seconds since 1970."""


@dataclass(frozen=True)
class Span:
    span_id: str
    parent_span_id: str | None = None
    kind: int = CLIENT
    service_name: str | None = "web"
    at: float = NOON
    """Start in seconds since 1970, as `time` has it."""
    received: float | None = None
    """A second after the start, unless it is given."""
    duration_nano: int | None = 1000
    status_code: int | None = 0
    trace_id: str = "a" * 32
    tenant_id: str = "acme"
    attributes: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Values of promoted columns."""

    @property
    def received_seconds(self) -> int:
        return math.floor(self.at + 1 if self.received is None else self.received)

    @property
    def minute(self) -> int:
        return math.floor(self.at / MINUTE) * MINUTE

    @property
    def is_client(self) -> bool:
        return self.kind in (CLIENT, PRODUCER)


def hex16(number: int) -> str:
    return f"{number:016x}"


def span_table(spans: Iterable[Span], *, coded: bool = False) -> pa.Table:
    """The columns that the declaration names, and no others."""
    assert SERVICE_EDGES.derived is not None
    spec, names = landed_spec("spans"), ["tenant_id", "time", *SERVICE_EDGES.derived.columns]
    rows = [
        dict.fromkeys(names)
        | {name: value for name, value in dataclasses.asdict(span).items() if name in names}
        | {"time": round(span.at * MICROS), "received_time": span.received_seconds * MICROS + 250_000}
        | dict(span.attributes)
        for span in spans
    ]
    columns = [pa.array([row[name] for row in rows], spec.column(name).type) for name in names]
    if coded:
        columns = [each.dictionary_encode() if pa.types.is_string(each.type) else each for each in columns]
    return pa.table(columns, names)


class Edges(defaultdict[Key, list[tuple[int | None, bool]]]):
    """The duration of each call, and whether it failed, by edge and bucket."""

    def __init__(self) -> None:
        super().__init__(list)

    def add(
        self,
        tenant: str,
        nodes: tuple[str, str, str, str | None],
        at: int,
        duration: int | None,
        failed: bool,
    ) -> None:
        for resolution in (60, 300, 3600, 86_400):
            self[(tenant, resolution, *nodes, at - at % resolution)].append((duration, failed))

    def rows(self) -> dict[Key, tuple[Any, ...]]:
        return {key: _row(calls) for key, calls in self.items()}


def _row(calls: Sequence[tuple[int | None, bool]]) -> tuple[Any, ...]:
    known = [duration for duration, _ in calls if duration is not None]
    counts = Counter(sketch_of(pa.array(known, pa.int64()))[0].flatten().to_pylist())
    total = float(sum(known)) if known else None
    extremes = (min(known), max(known)) if known else (None, None)
    return len(calls), sum(failed for _, failed in calls), total, *extremes, dict(counts)


def expected_edges(spans: Iterable[Span], now: float) -> dict[Key, tuple[Any, ...]]:
    """In a single pass over all spans."""
    found, spans = Edges(), list(dict.fromkeys(spans))
    clients = {(span.tenant_id, span.trace_id, span.span_id): span for span in spans if span.is_client}
    servers = defaultdict(list)
    for span in spans:
        parent = clients.get((span.tenant_id, span.trace_id, span.parent_span_id or ""))
        if (
            span.kind in (SERVER, CONSUMER)
            and parent is not None
            and abs(parent.minute - span.minute) <= HOUR
        ):
            servers[parent].append(span)
    for client in clients.values():
        node, connection, protocol = _other_side(client)
        caller, is_database = client.service_name or "unknown", connection == "database"
        failed = client.status_code == 2
        if servers[client] and not is_database:
            kind = "service" if connection == "external" else connection
            for server in servers[client]:
                nodes = caller, server.service_name or "unknown", kind, protocol
                is_error = failed or server.status_code == 2
                found.add(client.tenant_id, nodes, client.minute, client.duration_nano, is_error)
        elif is_database or client.received_seconds <= now - 300:
            nodes = caller, node, connection, protocol
            found.add(client.tenant_id, nodes, client.minute, client.duration_nano, failed)
    return found.rows()


def _other_side(client: Span) -> tuple[str, str, str | None]:
    has = client.attributes
    system, namespace = has.get("db_system_name"), has.get("db_namespace")
    database = f"{system}/{namespace}" if system and namespace else system
    names = [has.get(name) for name in ("messaging_destination_name", "server_address", "rpc_service")]
    node = next(filter(None, [has.get("peer_service"), database, *names]), "unknown")
    protocols = [has.get(name) for name in ("rpc_system", "db_system_name", "messaging_system")]
    protocol = "http" if has.get("http_request_method") else next(filter(None, protocols), None)
    is_message = client.kind == PRODUCER or "messaging_system" in has
    return node, "database" if system else "messaging" if is_message else "external", protocol


def edges_seen(rows: pa.Table, now: float) -> dict[Key, tuple[Any, ...]]:
    """The edges of partial rows of the table, as a query at a time sees them."""
    stored, clients, servers = defaultdict(list), defaultdict(list), defaultdict(list)
    times = {name: rows[name].cast(pa.int64()).to_pylist() for name in ("time", "received_time")}
    for at, row in enumerate(rows.drop_columns(list(times)).to_pylist()):
        row |= {name: values[at] and values[at] // MICROS for name, values in times.items()}
        if row["resolution"] > 1:
            stored[_key(row)].append(row)
        elif row["side"] == "client":
            clients[(row["tenant_id"], row["call_id"])].append(row)
        else:
            servers[(row["tenant_id"], row["call_id"])].append(row)
    found = Edges()
    for call, halves in clients.items():
        client = min(halves, key=lambda row: (row["time"], row["caller"], row["callee"]))
        failed = any(row["errors"] > 0 for row in halves)
        duration = max(
            (row["duration_nano_max"] for row in halves if row["duration_nano_max"] is not None), default=None
        )
        fitting = [row for row in servers[call] if abs(row["time"] - client["time"]) <= HOUR]
        protocol, connection = client["protocol"], client["connection"]
        for server in fitting:
            kind = "service" if connection == "external" else connection
            for number in range(server["calls"]):
                is_error = failed or number < server["errors"]
                found.add(
                    call[0],
                    (client["caller"], server["callee"], kind, protocol),
                    client["time"],
                    duration,
                    is_error,
                )
        is_waiting = max(row["received_time"] for row in halves) > now - 300
        if not fitting and any(row["calls"] > 0 for row in halves) and not is_waiting:
            found.add(
                call[0],
                (client["caller"], client["callee"], connection, protocol),
                client["time"],
                duration,
                failed,
            )
    return _merged(found.rows(), stored)


def _key(row: Mapping[str, Any]) -> Key:
    names = ("tenant_id", "resolution", "caller", "callee", "connection", "protocol", "time")
    return tuple(row[name] for name in names)  # type: ignore[return-value]


def _merged(
    made: dict[Key, tuple[Any, ...]], stored: Mapping[Key, Sequence[Mapping[str, Any]]]
) -> dict[Key, tuple[Any, ...]]:
    parts = {key: [each] for key, each in made.items()}
    for key, rows in stored.items():
        for row in rows:
            counts = dict(zip(row["duration_codes"] or (), row["duration_counts"] or (), strict=True))
            names = ("calls", "errors", "duration_nano_sum", "duration_nano_min", "duration_nano_max")
            parts.setdefault(key, []).append((*(row[name] for name in names), counts))
    return {key: _sum(each) for key, each in parts.items()}


def _sum(parts: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    calls, errors, totals, lows, highs, counts = zip(*parts, strict=True)
    known = [[value for value in values if value is not None] for values in (totals, lows, highs)]
    merged: Counter[int] = Counter()
    for each in counts:
        merged.update(each)
    total, low, high = (
        made(values) if values else None for made, values in zip((sum, min, max), known, strict=True)
    )
    return sum(calls), sum(errors), total, low, high, dict(merged)


_ATTRIBUTES = st.fixed_dictionaries(
    {},
    optional={
        "peer_service": st.just("billing"),
        "server_address": st.sampled_from(["api.example.com", "10.0.0.1"]),
        "db_system_name": st.just("postgresql"),
        "db_namespace": st.sampled_from(["orders", "users"]),
        "messaging_system": st.just("kafka"),
        "messaging_destination_name": st.just("orders"),
        "http_request_method": st.just("GET"),
        "rpc_system": st.just("grpc"),
        "rpc_service": st.just("shop.Cart"),
    },
)
_STARTS = st.integers(-2 * HOUR, 2 * HOUR) | st.integers(10 * HOUR, 14 * HOUR)
_DELAYS = st.sampled_from([0, 1, 59, 61, 200, 3000, 3600, 3660, 7200])


@st.composite
def spans_of_calls(draw: st.DrawFn) -> list[Span]:
    """A client span that is no producer has at most one server. Tenants use the same ids."""
    found = []
    for number in range(draw(st.integers(1, 6))):
        tenant, trace = draw(st.sampled_from(["acme", "globex"])), draw(st.sampled_from(["a" * 32, "b" * 32]))
        at, kind = MIDNIGHT + draw(_STARTS), draw(st.sampled_from([CLIENT, CLIENT, PRODUCER]))
        common = {"tenant_id": tenant, "trace_id": trace}
        client = Span(
            hex16(number + 1),
            kind=kind,
            service_name=draw(st.sampled_from(["web", "cart", None])),
            at=at,
            received=at + draw(st.sampled_from([1, 200, 5000])),
            duration_nano=draw(st.sampled_from([None, 0, 5, 10**6, 3 * 10**9])),
            status_code=draw(st.sampled_from([0, 2, None])),
            attributes=draw(_ATTRIBUTES),
            **common,
        )
        if draw(st.integers(0, 9)) > 0:
            found.append(client)
        for server in range(draw(st.integers(0, 3 if kind == PRODUCER else 1))):
            begin = at + draw(_DELAYS)
            found.append(
                Span(
                    hex16(1000 * (number + 1) + server),
                    client.span_id,
                    draw(st.sampled_from([SERVER, CONSUMER])),
                    draw(st.sampled_from(["stock", "mail", None])),
                    begin,
                    begin + draw(st.sampled_from([1, 400])),
                    status_code=draw(st.sampled_from([0, 2])),
                    **common,
                )
            )
        if draw(st.booleans()):  # a server span of another service's internal span
            found.append(Span(hex16(500 + number), hex16(700 + number), SERVER, at=at, **common))
            found.append(Span(hex16(700 + number), None, 1, at=at, **common))
    return draw(st.permutations(found))


def time_column(values: Sequence[int]) -> pa.Array:
    return pa.array([value * MICROS for value in values], pa.timestamp("us")).cast(TIMESTAMP)
