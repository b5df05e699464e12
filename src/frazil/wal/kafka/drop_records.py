"""Removes records from a request without parsing the records themselves.

Uses protobuf's parser with a schema that has only the path to the records. All other fields are unknown
fields, which the parser keeps. So the cost does not depend on the records' content (a request may be
hostile), and fields of later OTLP versions are kept.
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


def drop_records(signal: Signal, body: bytes, seen: int, dropped: Indices) -> bytes:
    """Returns the request of `seen` records without those at the indices `dropped`, ordered as in `Decoded`.

    Raises RequestInvalid if protobuf 2 groups are nested too deeply for protobuf's parser.
    """
    try:
        request = _schema(signal).FromString(body)
    except DecodeError as error:
        raise RequestInvalid(f"not an OTLP {signal} request: {error}") from None
    kept = np.ones(seen, dtype=np.bool_)
    kept[dropped] = False
    lists = list(_record_lists(signal, request))
    if sum(map(len, lists)) != seen:
        raise RequestInvalid("the request's records cannot be separated")
    first = 0
    for records in lists:
        of_list = kept[first : first + len(records)]
        first += len(records)
        if not of_list.all():
            remaining = [record for record, keep in zip(records, of_list.tolist(), strict=True) if keep]
            del records[:]  # deleting one by one takes quadratic time
            records.extend(remaining)
    _clear_empty(request)
    return request.SerializeToString()  # type: ignore[no-any-return]


def _record_lists(signal: Signal, request: Any) -> Iterator[Any]:
    """Yields the lists of records in the order of decoded rows."""
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
    """Clears containers without records, and returns whether `message` has none."""
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
    """Returns the message class that has only the path to the records."""
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
                oneof_decl=[OneofDescriptorProto(name="data")],  # the last of several counts, as in OTLP
                field=[partial_field(name, types[name].number, "Points", oneof_index=0) for name in TYPES],
            ),
            DescriptorProto(name="Points", field=[partial_list("records", 1)]),
        ]
    )
