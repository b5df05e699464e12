"""A request without some of its records. Records stay bytes: only what is around them is parsed.

Protobuf's own parser does the work, with a schema that knows nothing but the way down to the records. All
else is unknown fields to it, which it keeps as they are. So the cost does not depend on what is in records (a
request may be hostile), and fields of a later OTLP are not lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from google.protobuf.descriptor_pb2 import DescriptorProto, OneofDescriptorProto
from google.protobuf.message import DecodeError
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric

from frazil.errors import RequestInvalid
from frazil.otlp.decode import Indices
from frazil.otlp.metrics import TYPES
from frazil.otlp.wire import partial_field, partial_list, partial_request
from frazil.tables import Signal


def without(signal: Signal, body: bytes, seen: int, left_out: Indices) -> bytes:
    """The request, which has `seen` records, without those at `left_out`, which count as in `Decoded`.

    RequestInvalid where groups, as protobuf 2 had them, are nested too deeply for the stock parser.
    """
    try:
        request = _schema(signal).FromString(body)
    except DecodeError as error:
        raise RequestInvalid(f"not an OTLP {signal} request: {error}") from None
    kept = np.ones(seen, dtype=np.bool_)
    kept[left_out] = False
    lists = list(_record_lists(signal, request))
    if sum(map(len, lists)) != seen:
        raise RequestInvalid("the request's records cannot be told apart")
    first = 0
    for records in lists:
        of_list = kept[first : first + len(records)]
        first += len(records)
        if not of_list.all():
            staying = [record for record, stays in zip(records, of_list.tolist(), strict=True) if stays]
            del records[:]  # one by one, it would take the square of their number
            records.extend(staying)
    _clear_empty(request)
    return request.SerializeToString()  # type: ignore[no-any-return]


def _record_lists(signal: Signal, request: Any) -> Iterator[Any]:
    """The lists that hold records, in the order of decoded rows."""
    scopes = [scope for resource in request.inner for scope in resource.inner]
    if signal != "metrics":
        yield from (scope.records for scope in scopes)
        return
    metrics = [metric for scope in scopes for metric in scope.inner]
    kinds = [metric.WhichOneof("data") for metric in metrics]
    for type_name in TYPES:
        for metric, kind in zip(metrics, kinds, strict=True):
            if kind == type_name:
                yield getattr(metric, kind).records


def _clear_empty(message: Any) -> bool:
    """Clears whatever has no record (any more), lest a message be made of it alone. Whether this is empty."""
    if "records" in message.DESCRIPTOR.fields_by_name:
        empty = not message.records
    elif "inner" in message.DESCRIPTOR.fields_by_name:
        empty = sum(not _clear_empty(inner) for inner in message.inner) == 0  # visits all, where `any` stops
    else:
        kind = message.WhichOneof("data")
        empty = kind is None or _clear_empty(getattr(message, kind))
    if empty:
        message.Clear()
    return empty


@cache
def _schema(signal: Signal) -> Any:
    """The class of requests of which only the way to the records is known."""
    of_metrics = signal == "metrics"
    in_scope = partial_list("inner", 2, "Metric") if of_metrics else partial_list("records", 2)
    types = Metric.DESCRIPTOR.fields_by_name
    return partial_request(
        [
            DescriptorProto(name="Request", field=[partial_list("inner", 1, "Resource")]),
            DescriptorProto(name="Resource", field=[partial_list("inner", 2, "Scope")]),
            DescriptorProto(name="Scope", field=[in_scope]),
            DescriptorProto(
                name="Metric",
                oneof_decl=[OneofDescriptorProto(name="data")],  # of two, the last counts, as in the real one
                field=[partial_field(name, types[name].number, "Points", oneof_index=0) for name in TYPES],
            ),
            DescriptorProto(name="Points", field=[partial_list("records", 1)]),
        ]
    )
