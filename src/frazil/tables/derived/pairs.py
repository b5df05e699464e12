"""Finds the halves of a call: a row of the client side and one of the server side with the same tenant and `call_id`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.tables.columns import Longs, Mask

SPREAD_SECONDS = 3600
"""How far apart the halves of a call may be. It bounds how much more than its time range a query reads, and how many
halves may have the other half on another day. A message that waits longer in its queue is not a call.
"""
_SPREAD_MICROS = SPREAD_SECONDS * 1_000_000
_DAY_MICROS = 86_400_000_000


@dataclass(frozen=True)
class Pairs:
    """`client` and `server` are the rows of each pair. A client may be in several pairs, a server in one."""

    client: Longs
    server: Longs
    has_server: Mask
    """By client."""
    has_client: Mask
    """By server."""


def pairs_of(clients: pa.Table, servers: pa.Table, *, of_one_day: bool = False) -> Pairs:
    """Returns the pairs. Clients have distinct ids in each tenant. `of_one_day`: only those whose halves are of the same
    day (UTC).
    """
    has_server, has_client = np.zeros(len(clients), np.bool_), np.zeros(len(servers), np.bool_)
    codes, count = call_codes(
        pa.concat_tables([each.select(["tenant_id", "call_id"]) for each in (clients, servers)])
    )
    client_of = np.full(count, -1)
    client_of[codes[: len(clients)]] = np.arange(len(clients))
    found = client_of[codes[len(clients) :]]
    server = np.flatnonzero(found >= 0)
    client = found[server]
    of_client, of_server = micros(clients)[client], micros(servers)[server]
    is_near = np.abs(of_client - of_server) <= _SPREAD_MICROS
    if of_one_day:
        is_near &= of_client // _DAY_MICROS == of_server // _DAY_MICROS
    client, server = client[is_near], server[is_near]
    has_server[client], has_client[server] = True, True
    return Pairs(client, server, has_server, has_client)


def call_codes(halves: pa.Table, column: str = "call_id") -> tuple[Longs, int]:
    """Returns a number for each row, which is equal if tenant and id are equal, and the number of different ones."""
    ids, size = _codes(halves[column])
    tenants, owners = _codes(halves["tenant_id"])
    return (ids, size) if owners < 2 else _codes(pa.chunked_array([tenants * size + ids]))


def _codes(column: pa.ChunkedArray) -> tuple[Longs, int]:
    encoded = column.combine_chunks()
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)


def one_of_each(clients: pa.Table) -> pa.Table:
    """Returns one row for each call: a span that was sent twice is one client. It is the first by time, then by name."""
    codes, count = call_codes(clients)
    if count == len(clients):
        return clients
    names = ["time", "caller", "callee", "connection"]
    found = clients.select(names).append_column("protocol", pc.fill_null(clients["protocol"], ""))
    order = pc.sort_indices(found, [(name, "ascending") for name in found.column_names])
    clients, codes = clients.take(order), codes[order.to_numpy()]
    _, first = np.unique(codes, return_index=True)
    found = clients.take(pa.array(first))
    for name in ("calls", "errors", "duration_nano_max", "received_time"):
        values = clients[name].cast(pa.int64()).fill_null(-1).combine_chunks().to_numpy()
        largest = np.full(count, -1)
        np.maximum.at(largest, codes, values)
        column = pa.array(largest, mask=largest < 0).cast(clients[name].type)
        found = found.set_column(found.column_names.index(name), name, column)
    return found


def hour_around_midnight(halves: pa.Table) -> Mask:
    """Returns which halves may have the other half on another day."""
    of_day = micros(halves) % _DAY_MICROS
    found: Mask = (of_day < _SPREAD_MICROS) | (of_day >= _DAY_MICROS - _SPREAD_MICROS)
    return found


def micros(rows: pa.Table) -> Longs:
    found: Longs = rows["time"].cast(pa.int64()).combine_chunks().to_numpy()
    return found
