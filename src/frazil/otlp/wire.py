"""Converts OTLP protobuf bytes to nested Arrow arrays with ptars.

ptars gets the OTLP descriptors with `AnyValue.array_value` and `.kvlist_value` declared as repeated bytes.
The wire format is the same, the recursion ends there (a nesting bomb stays bytes until a bounded check), and
nothing is lost: a message in two pieces on the wire equals the concatenated pieces. The string-table indices
of profiles are left out: they have no meaning in these signals.
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
"""Safe on any thread's stack. A stack of `STACK_BYTES` is enough for `GROUPS_MAX_ON_STACK`."""
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


def to_arrow(signal: Signal, bodies: Sequence[bytes], groups_max: int = GROUPS_MAX) -> pa.RecordBatch:
    """Returns one row per request body, nested as in OTLP. Raises RequestInvalid."""
    for body in bodies:
        _check_groups(signal, body, groups_max)
    try:
        return _handler(signal).list_to_record_batch(list(bodies))
    except ValueError as error:
        raise RequestInvalid(f"not an OTLP {signal} request: {error}") from None
    except BaseException as error:  # ptars panics on some wrong lengths, and a panic is not an Exception
        if type(error).__name__ != "PanicException":
            raise
        raise RequestInvalid(f"not an OTLP {signal} request: {error}") from None


def _check_groups(signal: Signal, body: bytes, groups_max: int) -> None:
    """Refuses protobuf 2 groups that are nested too deeply for ptars.

    ptars skips them with unbounded recursion: 110,000 of them crash the process on a stack of 8 MiB. A body
    with more than `groups_max` bytes that could start a group is first read by protobuf's parser, whose
    recursion is bounded. That costs a third of ptars' time.
    """
    if len(body) <= groups_max:
        return
    if np.count_nonzero(np.frombuffer(body, dtype=np.uint8) & 7 == _GROUP_START) > groups_max:
        check_parsable(signal, body)


def _parse(signal: Signal, body: bytes) -> Message:
    try:
        return REQUESTS[signal].FromString(body)
    except DecodeError as error:
        raise RequestInvalid(f"not an OTLP {signal} request: {error}") from None


def check_parsable(signal: Signal, body: bytes) -> None:
    """Raises RequestInvalid unless protobuf's parser can read the body."""
    _parse(signal, body)


def canonical(signal: Signal, body: bytes) -> bytes:
    """Returns the request re-encoded by protobuf: only the last of duplicate oneof members is kept."""
    return _parse(signal, body).SerializeToString()


_PARTIAL = "frazil.partial"


def partial_request(messages: Sequence[DescriptorProto]) -> Any:
    """Returns a message class that defines only these messages; the first is the request.

    Unknown fields are kept as bytes.
    """
    pool = descriptor_pool.DescriptorPool()
    pool.Add(
        descriptor_pb2.FileDescriptorProto(
            name=f"{_PARTIAL}.proto", package=_PARTIAL, syntax="proto3", message_type=messages
        )
    )
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PARTIAL}.{messages[0].name}"))


def partial_list(name: str, number: int, of: str | None = None) -> FieldDescriptorProto:
    """Declares a field of a partial message: a list of messages, or of bytes."""
    return partial_field(name, number, of, label=FieldDescriptorProto.LABEL_REPEATED)


def partial_field(name: str, number: int, of: str | None = None, **options: Any) -> FieldDescriptorProto:
    """Declares a field of a partial message: a message, or bytes."""
    return FieldDescriptorProto(
        name=name,
        number=number,
        type=FieldDescriptorProto.TYPE_MESSAGE if of else FieldDescriptorProto.TYPE_BYTES,
        type_name=f".{_PARTIAL}.{of}" if of else None,
        **{"label": FieldDescriptorProto.LABEL_OPTIONAL, **options},
    )
