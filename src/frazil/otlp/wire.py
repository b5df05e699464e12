"""OTLP protobuf bytes to nested Arrow arrays, by ptars.

The trick: ptars gets the OTLP descriptors with `AnyValue.array_value` and `.kvlist_value` re-declared as
repeated bytes. That is the same wire format, it ends the recursion (so that a nesting bomb stays bytes until
a bounded check), and it loses nothing: a message that is on the wire in two pieces is the two pieces joined.
The string-table indices of profiles are left out: they have no meaning in these signals.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import ptars
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from frazil.errors import RequestInvalid
from frazil.tables import Signal

REQUESTS: dict[Signal, type[Message]] = {
    "logs": logs_service_pb2.ExportLogsServiceRequest,
    "spans": trace_service_pb2.ExportTraceServiceRequest,
    "metrics": metrics_service_pb2.ExportMetricsServiceRequest,
}
RESPONSES: dict[Signal, type[Message]] = {
    "logs": logs_service_pb2.ExportLogsServiceResponse,
    "spans": trace_service_pb2.ExportTraceServiceResponse,
    "metrics": metrics_service_pb2.ExportMetricsServiceResponse,
}
_FILES = (
    common_pb2,
    resource_pb2,
    logs_pb2,
    trace_pb2,
    metrics_pb2,
    logs_service_pb2,
    trace_service_pb2,
    metrics_service_pb2,
)
_NESTED_AS_BYTES = frozenset({"array_value", "kvlist_value"})
_GROUP_START = 3
GROUPS_MAX = 1 << 15
"""Safe on any thread's stack; `STACK_BYTES` of it are enough for `GROUPS_MAX_ON_STACK`."""
GROUPS_MAX_ON_STACK = 1 << 17
STACK_BYTES = 32 << 20
_PROFILES_ONLY = frozenset({"string_value_strindex", "key_strindex"})


@cache
def _handler(signal: Signal) -> Any:
    pool = descriptor_pool.DescriptorPool()
    for module in _FILES:
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for message in file.message_type:
            kept = [field for field in message.field if field.name not in _PROFILES_ONLY]
            if message.name == "AnyValue":
                for field in kept:
                    if field.name in _NESTED_AS_BYTES:
                        field.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
                        field.label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
                        field.ClearField("type_name")
                        field.ClearField("oneof_index")
            copies = [descriptor_pb2.FieldDescriptorProto.FromString(f.SerializeToString()) for f in kept]
            del message.field[:]
            message.field.extend(copies)
        pool.Add(file)
    request = REQUESTS[signal].DESCRIPTOR
    handlers = ptars.HandlerPool([pool.FindFileByName(request.file.name)])
    return handlers.get_for_message(pool.FindMessageTypeByName(request.full_name))


def nested(signal: Signal, bodies: Sequence[bytes], groups_max: int = GROUPS_MAX) -> pa.RecordBatch:
    """One row a request body, in OTLP's own nesting."""
    for body in bodies:
        _check_groups(signal, body, groups_max)
    try:
        return _handler(signal).list_to_record_batch(list(bodies))
    except ValueError as error:
        raise RequestInvalid(f"not an OTLP {signal} request: {error}") from None
    except BaseException as error:  # ptars panics on some lengths that lie, and a panic is no Exception
        if type(error).__name__ != "PanicException":
            raise
        raise RequestInvalid(f"not an OTLP {signal} request: {error}") from None


def _check_groups(signal: Signal, body: bytes, groups_max: int) -> None:
    """Refuses groups inside one another, as protobuf 2 had them, that are too deep for ptars.

    It skips them by recursion without a bound: 110,000 of them end the process on a stack of 8 MiB. Each
    needs a byte that may begin one. Bodies with more than `groups_max` such bytes are read by the stock
    parser first, which is bounded, but costs a third of ptars' own work.
    """
    if len(body) <= groups_max:
        return
    if np.count_nonzero(np.frombuffer(body, dtype=np.uint8) & 7 == _GROUP_START) > groups_max:
        _parsed(signal, body)


def _parsed(signal: Signal, body: bytes) -> Message:
    try:
        return REQUESTS[signal].FromString(body)
    except DecodeError as error:
        raise RequestInvalid(f"not an OTLP {signal} request: {error}") from None


def check(signal: Signal, body: bytes) -> None:
    """Raises RequestInvalid unless the reference parser can read the body."""
    _parsed(signal, body)


def normalised(signal: Signal, body: bytes) -> bytes:
    """The same request in its plainest encoding: of a oneof that is there twice, the last one is kept."""
    return _parsed(signal, body).SerializeToString()


_PARTIAL = "frazil.partial"


def partial_request(messages: Sequence[DescriptorProto]) -> Any:
    """The class of requests of which only these messages are known; the first is the request itself. What is
    not known stays as it is.
    """
    pool = descriptor_pool.DescriptorPool()
    pool.Add(
        descriptor_pb2.FileDescriptorProto(
            name=f"{_PARTIAL}.proto", package=_PARTIAL, syntax="proto3", message_type=messages
        )
    )
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PARTIAL}.{messages[0].name}"))


def partial_list(name: str, number: int, of: str | None = None) -> FieldDescriptorProto:
    """A field of such a message: a list of messages, or of bytes."""
    return partial_field(name, number, of, label=FieldDescriptorProto.LABEL_REPEATED)


def partial_field(name: str, number: int, of: str | None = None, **options: Any) -> FieldDescriptorProto:
    """A field of such a message: a message, or bytes."""
    return FieldDescriptorProto(
        name=name,
        number=number,
        type=FieldDescriptorProto.TYPE_MESSAGE if of else FieldDescriptorProto.TYPE_BYTES,
        type_name=f".{_PARTIAL}.{of}" if of else None,
        **{"label": FieldDescriptorProto.LABEL_OPTIONAL, **options},
    )
