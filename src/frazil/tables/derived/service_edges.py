"""Calls between services, and to databases, queues and hosts that send no spans.

A call is a pair of spans: one of the client side (client, producer) and one of the server side (server, consumer) whose
parent it is. If both are in the rows that are derived together, they are a call at once. Otherwise each becomes a
*half*, a pending row. Halves of a call have the same `call_id`, and are put together by queries, and later for good.
The half of a client without a server is a call to a *virtual node*, which is named after the client's attributes.

Databases do not send spans. So a client span with `db_system_name` is always a call to a virtual node, and has no half.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from frazil.tables.columns import TIMESTAMP, Column, Mask, TableSpec
from frazil.tables.derived import callees
from frazil.tables.derived.calls_sql import completed_calls
from frazil.tables.derived.pairs import (
    SPREAD_SECONDS,
    Pairs,
    call_codes,
    hour_around_midnight,
    micros,
    one_of_each,
    pairs_of,
)
from frazil.tables.derived.rules import (
    KEY,
    MAX,
    MIN,
    OPEN,
    RESOLUTIONS,
    SETTLED,
    SUM,
    Derived,
    Merge,
    Pending,
)
from frazil.tables.derived.sketch import sketch_of
from frazil.tables.hashing import hashes_of_ids

_SERVER, _CLIENT, _CONSUMER = 2, 3, 5
_ERROR = 2
_MINUTE, _SECOND = 60_000_000, 1_000_000
_ID_LENGTHS = (32, 16)
_SETTLED_AFTER_SECONDS = 86_400


def service_edge_rows(spans: pa.Table) -> pa.Table:
    """Returns the calls whose spans are all here, and the halves of others."""
    clients = _client_halves(_of_kinds(spans, _CLIENT, callees.PRODUCER))
    servers = _server_halves(_of_kinds(spans, _SERVER, _CONSUMER))
    # A database sends no spans, and a span without ids has no other half: these calls are complete.
    is_complete = pc.or_(pc.equal(clients["connection"], "database"), pc.is_null(clients["call_id"]))
    complete, clients = clients.filter(is_complete), one_of_each(clients.filter(pc.invert(is_complete)))
    # Halves of two days stay pending: each day can then be derived again without the other.
    pairs = pairs_of(clients, servers, of_one_day=True)
    # A message may have more consumers in other tasks: its half stays, but is no call to a virtual node.
    is_kept = ~pairs.has_server | _is_message(clients)
    return _rows(
        [_edges(complete), _paired(clients, servers, pairs)],
        [_waiting(clients, pairs).filter(pa.array(is_kept)), servers.filter(pa.array(~pairs.has_client))],
    )


def settle_calls(rows: pa.Table, latest: int) -> tuple[pa.Table, pa.Table]:
    """Puts the halves of calls together, of which all have arrived until `latest`. A half near midnight may have its
    other half on the day before or after: it stays, unless it has one here.
    """
    rows = rows.select(_HALF)
    groups, count = call_codes(rows)
    last = np.full(count, np.iinfo(np.int64).min)
    np.maximum.at(last, groups, rows["received_time"].cast(pa.int64()).combine_chunks().to_numpy())
    is_open = (last > latest)[groups]
    still, rows = rows.filter(pa.array(is_open)), rows.filter(pa.array(~is_open))
    clients = one_of_each(rows.filter(pc.equal(rows["side"], "client")))
    servers = rows.filter(pc.equal(rows["side"], "server"))
    pairs = pairs_of(clients, servers)
    is_near = hour_around_midnight(clients)
    is_virtual = ~pairs.has_server & ~is_near & (clients["calls"].combine_chunks().to_numpy() > 0)
    is_kept = is_near & (~pairs.has_server | _is_message(clients))
    left = servers.filter(pa.array(~pairs.has_client & hour_around_midnight(servers)))
    edges = [_edges(clients.filter(pa.array(is_virtual))), _paired(clients, servers, pairs)]
    kept = [_waiting(clients, pairs).filter(pa.array(is_kept)), left]
    return _rows(edges, []), pa.concat_tables([_rows([], [still]), _rows([], kept, SETTLED)])


def lone_calls(rows: pa.Table) -> pa.Table:
    """Returns the calls to virtual nodes of the clients among these halves, which nothing is put together with."""
    clients = rows.select(_HALF).filter(
        pc.and_(pc.equal(rows["side"], "client"), pc.greater(rows["calls"], 0))
    )
    return _rows([_edges(one_of_each(clients))], [])


def _of_kinds(spans: pa.Table, *kinds: int) -> pa.Table:
    return spans.filter(pc.is_in(spans.column("kind"), pa.array(kinds, pa.int32())))


def _client_halves(spans: pa.Table) -> pa.Table:
    made = {
        "side": pa.repeat("client", len(spans)),
        "call_id": _ids(spans, "span_id"),
        "caller": callees.services(spans),
        "callee": callees.virtual_nodes(spans),
        "connection": callees.connections(spans),
        "protocol": callees.protocols(spans),
        "duration_nano_max": spans.column("duration_nano"),
    }
    return _halves(spans, made)


def _server_halves(spans: pa.Table) -> pa.Table:
    """Returns the halves of the spans with a parent. A span that was sent twice is one."""
    nothing = pa.nulls(len(spans), pa.string())
    made = {
        "side": pa.repeat("server", len(spans)),
        "call_id": _ids(spans, "parent_span_id"),
        "caller": nothing,
        "callee": callees.services(spans),
        "connection": nothing,
        "protocol": nothing,
        "duration_nano_max": pa.nulls(len(spans), pa.int64()),
        "own_id": _ids(spans, "span_id"),
    }
    halves = _halves(spans, made)
    halves = halves.filter(pc.and_(pc.is_valid(halves["call_id"]), pc.is_valid(halves["own_id"])))
    codes, count = call_codes(halves, "own_id")
    if count < len(halves):
        halves = halves.take(pa.array(np.sort(np.unique(codes, return_index=True)[1])))
    return halves.select(_HALF)


def _halves(spans: pa.Table, made: dict[str, pa.Array | pa.ChunkedArray]) -> pa.Table:
    received = spans.column("received_time").cast(pa.int64()).to_numpy()
    time = micros(spans)
    made |= {
        "tenant_id": spans.column("tenant_id"),
        "time": _times(time - time % _MINUTE),
        "calls": pa.repeat(pa.scalar(1, pa.int64()), len(spans)),
        "errors": pc.fill_null(pc.equal(spans.column("status_code"), _ERROR), False).cast(pa.int64()),
        # Measured: whole seconds take a tenth of the bytes in files.
        "received_time": _times(received - received % _SECOND),
    }
    return pa.table(made)


def _ids(spans: pa.Table, name: str) -> pa.Array:
    """Returns the id of the call whose client span has the id in this column; NULL if there is none."""
    ids = (callees.text_of(spans, each) for each in ("trace_id", name))
    hashes, known = hashes_of_ids(*ids, lengths=_ID_LENGTHS)
    return pa.array(hashes.view(np.int64), mask=~known)


def _times(values: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(values).cast(pa.timestamp("us")).cast(TIMESTAMP)


def _is_message(clients: pa.Table) -> Mask:
    found: Mask = pc.equal(clients["connection"], "messaging").combine_chunks().to_numpy(zero_copy_only=False)
    return found


def _waiting(clients: pa.Table, pairs: Pairs) -> pa.Table:
    """Returns the clients; those with a server count no calls to a virtual node."""
    calls = pc.if_else(pa.array(pairs.has_server), 0, clients["calls"])
    return clients.set_column(clients.column_names.index("calls"), "calls", calls)


def _edges(clients: pa.Table) -> pa.Table:
    """Returns one call to the virtual node for each client."""
    made = {name: pc.min_element_wise(clients[name], 1) for name in ("calls", "errors")}
    return pa.table([made.get(name, clients[name]) for name in clients.column_names], clients.column_names)


def _paired(clients: pa.Table, servers: pa.Table, pairs: Pairs) -> pa.Table:
    """Returns one row for each pair: a call of the client to the server's service."""
    found = _edges(clients.take(pa.array(pairs.client)))
    of_server = servers.select(["callee", "calls", "errors"]).take(pa.array(pairs.server))
    calls, connection = of_server["calls"], found["connection"]
    made = {
        "callee": of_server["callee"],
        "connection": pc.if_else(pc.equal(connection, "external"), "service", connection),
        "calls": calls,
        "errors": pc.if_else(pc.greater(found["errors"], 0), calls, of_server["errors"]),
    }
    return pa.table([made.get(name, found[name]) for name in found.column_names], found.column_names)


def _rows(edges: list[pa.Table], pending: list[pa.Table], resolution: int = OPEN) -> pa.Table:
    """Returns rows of the table: calls with their durations, and pending rows."""
    parts = [_with_durations(each) for each in edges]
    for each in pending:
        codes, counts = sketch_of(each["duration_nano_max"])
        more = {
            "resolution": pa.repeat(pa.scalar(resolution, pa.int32()), len(each)),
            "duration_codes": codes,
            "duration_counts": counts,
        }
        parts.append(pa.table(dict(zip(each.column_names, each.columns, strict=True)) | more))
    return pa.concat_tables(parts, promote_options="default")


def _with_durations(edges: pa.Table) -> pa.Table:
    duration, calls = edges["duration_nano_max"].combine_chunks(), edges["calls"].combine_chunks()
    codes, counts = sketch_of(duration)
    if (
        len(counts.values) and not pc.all(pc.equal(calls, 1)).as_py()
    ):  # each duration counts once for each call
        numbers = calls.filter(pc.is_valid(duration))
        counts = pa.ListArray.from_arrays(counts.offsets, numbers, mask=pc.is_null(duration))
    made = {
        "duration_nano_sum": pc.multiply(duration.cast(pa.float64()), calls.cast(pa.float64())),
        "duration_nano_min": duration,
        "duration_nano_max": duration,
        "duration_codes": codes,
        "duration_counts": counts,
    }
    kept = [name for name in _EDGE if name not in made]
    return pa.table({**{name: edges[name] for name in kept}, **made})


_EDGE = ("tenant_id", "time", "caller", "callee", "connection", "protocol", "calls", "errors")
_HALF = [*_EDGE, "side", "call_id", "duration_nano_max", "received_time"]

_HALVES = "NULL in other rows"
SERVICE_EDGES = TableSpec(
    "service_edges",
    "Calls between services, and from services to databases, queues and hosts that send no spans, in buckets of 1 minute, "
    "5 minutes, 1 hour and 1 day. Rows with resolution 0 and 1 are halves of calls, which queries put together.",
    (
        Column("tenant_id", pa.string(), "spans", "Tenant that sent the spans", "hot", required=True, coded=True, merge=KEY),
        Column("resolution", pa.int32(), "frazil", "Length of the bucket in seconds: 60, 300, 3600 or 86400. In files also 0 and 1: a half of a call", "hot", required=True, merge=KEY),
        Column("call_id", pa.int64(), "spans.trace_id, spans.span_id of the client", f"Equal in the halves of a call; {_HALVES}", "hot", internal=True, merge=KEY),
        Column("side", pa.string(), "spans.kind", f"Of a half: client or server; {_HALVES}", "hot", coded=True, internal=True, merge=KEY),
        Column("caller", pa.string(), "spans.service_name of the client", "Service that calls; `unknown` if it has no name", "hot", coded=True, merge=KEY),
        Column("callee", pa.string(), "spans.service_name of the server", "Service that is called. If it sends no spans: `peer_service`, else of databases `db_system_name/db_namespace` or `db_system_name`, else `messaging_destination_name`, `server_address` or `rpc_service` of the client, else `unknown`", "hot", coded=True, merge=KEY),
        Column("connection", pa.string(), "spans", "What is called: `service`, `messaging` (a service through a queue, or the queue if no service is known to read it), `database` or `external`", "hot", coded=True, merge=KEY),
        Column("protocol", pa.string(), "spans of the client", "`http`, else `rpc_system`, `db_system_name` or `messaging_system`; NULL if unknown", "hot", coded=True, merge=KEY),
        Column("time", TIMESTAMP, "spans.time of the client", "Start of the bucket, in which the client's span started", "hot", required=True, merge=KEY),
        Column("received_time", TIMESTAMP, "spans.received_time", f"When the last span of a half arrived, in whole seconds; {_HALVES}", "hot", internal=True, merge=MAX),
        Column("calls", pa.int64(), "spans", "Number of calls: pairs of a client's and a server's span, or spans of clients without one", merge=SUM),
        Column("errors", pa.int64(), "spans.status_code", "Number of calls in which one of the spans has status error", merge=SUM),
        Column("duration_nano_sum", pa.float64(), "spans.duration_nano of the client", "Sum of the durations of calls in nanoseconds, as the caller saw them", merge=SUM),
        Column("duration_nano_min", pa.int64(), "spans.duration_nano of the client", "Shortest duration in nanoseconds", merge=MIN),
        Column("duration_nano_max", pa.int64(), "spans.duration_nano of the client", "Longest duration in nanoseconds", merge=MAX),
        Column("duration_codes", pa.list_(pa.int32()), "spans.duration_nano of the client", "Sketch of the durations in nanoseconds: codes of buckets", merge=Merge("counted")),
        Column("duration_counts", pa.list_(pa.int64()), "spans.duration_nano of the client", "Sketch of the durations: how often each code of `duration_codes` occurs", merge=Merge("counts", by="duration_codes")),
    ),
    sort_by=("resolution", "call_id", "side", "caller", "callee", "connection", "protocol", "time"),
    derived=Derived(
        "spans",
        (
            "trace_id",
            "span_id",
            "parent_span_id",
            "service_name",
            "kind",
            "status_code",
            "duration_nano",
            "received_time",
            *callees.COLUMNS,
        ),
        service_edge_rows,
        RESOLUTIONS,
        kept_days=((0, 90), (60, 14), (300, 60), (3600, 90), (86_400, 90)),
        pending=Pending(
            by="call_id",
            spread_seconds=SPREAD_SECONDS,
            settled_after_seconds=_SETTLED_AFTER_SECONDS,
            complete=completed_calls,
            settle=settle_calls,
            give_up=lone_calls,
        ),
    ),
)  # fmt: skip
