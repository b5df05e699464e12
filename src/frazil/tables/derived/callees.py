"""What a client span says about the other side of its call: the protocol, and a name for a node that sends no spans, such
as a database, a queue or an external host. Reads promoted columns only.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

COLUMNS = (
    "peer_service",
    "server_address",
    "db_system_name",
    "db_namespace",
    "messaging_system",
    "messaging_destination_name",
    "http_request_method",
    "rpc_system",
    "rpc_service",
)
"""The columns of `spans` that the functions read."""
PRODUCER = 4
UNKNOWN = "unknown"
NAME_CHARACTERS_MAX = 256
"""Longer names of nodes are cut, also of services."""


def text_of(spans: pa.Table, name: str) -> pa.Array:
    """Returns a column as plain text; empty text is NULL. Converts each value of a dictionary once."""
    column = spans.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(pa.string())
    whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if whole.null_count == len(whole):
        return whole
    is_empty = pc.equal(pc.binary_length(whole), 0)
    return pc.if_else(is_empty, None, whole) if pc.any(is_empty).as_py() else whole


def cut(names: pa.Array) -> pa.Array:
    """Returns the names, at most `NAME_CHARACTERS_MAX` characters of each."""
    longest = pc.max(pc.binary_length(names)).as_py() or 0
    return pc.utf8_slice_codeunits(names, 0, NAME_CHARACTERS_MAX) if longest > NAME_CHARACTERS_MAX else names


def connections(spans: pa.Table) -> pa.Array:
    """Returns the kind of what each client span calls: `database`, `messaging` or `external`."""
    is_messaging = pc.or_(
        pc.equal(spans.column("kind"), PRODUCER), pc.is_valid(text_of(spans, "messaging_system"))
    )
    is_database = pc.is_valid(text_of(spans, "db_system_name"))
    found = pc.if_else(is_database, "database", pc.if_else(is_messaging, "messaging", "external"))
    return _whole(found)


def protocols(spans: pa.Table) -> pa.Array:
    """Returns the protocol of each client span; NULL if it is not known."""
    is_http = pc.is_valid(text_of(spans, "http_request_method"))
    others = (text_of(spans, name) for name in ("rpc_system", "db_system_name", "messaging_system"))
    return cut(_whole(pc.coalesce(pc.if_else(is_http, "http", pa.scalar(None, pa.string())), *others)))


def virtual_nodes(spans: pa.Table) -> pa.Array:
    """Returns the name of the node that each client span calls, if that sends no spans itself.

    Databases are named `system/namespace`, so that equal names in two systems are two nodes; without a namespace by the
    system alone, as Tempo does.
    """
    system, namespace = text_of(spans, "db_system_name"), text_of(spans, "db_namespace")
    database = pc.coalesce(pc.binary_join_element_wise(system, namespace, "/"), system)
    others = (
        text_of(spans, name) for name in ("messaging_destination_name", "server_address", "rpc_service")
    )
    found = pc.coalesce(text_of(spans, "peer_service"), database, *others, pa.scalar(UNKNOWN))
    return cut(_whole(found))


def services(spans: pa.Table) -> pa.Array:
    """Returns the name of each span's own service, which is never NULL."""
    return cut(_whole(pc.coalesce(text_of(spans, "service_name"), pa.scalar(UNKNOWN))))


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
