"""Converts OTLP/JSON to OTLP protobuf bytes and back. Pure.

OTLP/JSON is the protobuf JSON mapping with three differences: ids are in hex, enums are integers only, and
fields have only their lowerCamelCase names. Protobuf's own JSON parser reads it wrong, and is slow.

JSON is converted directly to wire bytes by one writer function per field, built at import from the protobuf
descriptors. Measured: about half the time of filling messages and serialising them.
"""

from __future__ import annotations

import math
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from binascii import unhexlify
from collections.abc import Callable
from decimal import Decimal
from functools import cache, lru_cache
from json import dumps
from struct import Struct
from typing import Any

import orjson
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from frazil.errors import RequestInvalid
from frazil.otlp.framing import varint

# The deepest nesting of arrays and key-value lists that protobuf parsers accept (100 nested messages).
VALUE_DEPTH_MAX = 32

_REQUESTS: dict[str, Descriptor] = {
    "logs": ExportLogsServiceRequest.DESCRIPTOR,
    "spans": ExportTraceServiceRequest.DESCRIPTOR,
    "metrics": ExportMetricsServiceRequest.DESCRIPTOR,
}
_IDS = {"trace_id", "span_id", "parent_span_id"}


def request_from_json(signal: str, body: bytes, *, depth_max: int) -> bytes:
    """Converts an OTLP/JSON export request to protobuf bytes. Raises RequestInvalid.

    `depth_max` limits the nesting of arrays and key-value lists. Ids of a wrong length are kept.
    """
    return _write(_message_writers[_REQUESTS[signal]], _parse(body), depth_max)


def request_to_json(message: Message) -> bytes:
    """Converts any OTLP message to OTLP/JSON."""
    return orjson.dumps(_to_json(message))


def any_value_from_json(value: Any, *, depth_max: int = VALUE_DEPTH_MAX) -> AnyValue:
    """Converts parsed OTLP/JSON to an AnyValue."""
    encoded = _write(_message_writers[AnyValue.DESCRIPTOR], value, depth_max)
    try:
        return AnyValue.FromString(encoded)
    except DecodeError:
        raise RequestInvalid("the value is nested too deeply") from None


def any_value_to_json(value: AnyValue) -> Any:
    """Converts an AnyValue to OTLP/JSON, not serialised."""
    return _to_json(value)


# From JSON ----------------------------------------------------------------------------------------

_Writer = Callable[[Any, int], bytes]  # JSON value, remaining nesting depth -> tag and value in wire format
_FIELD = FieldDescriptor
_UINT64_MAX = 2**64 - 1


class _UnwritableError(Exception):
    """A JSON value that does not fit its field. The path is collected innermost first."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.path: list[str] = []

    def __str__(self) -> str:
        path = "".join(reversed(self.path)).removeprefix(".")
        if len(path) > 300:
            path = f"{path[:200]} … {path[-100:]}"
        return f"{path}: {self.reason}" if path else self.reason


def _mismatch(expected: str, value: Any) -> _UnwritableError:
    if isinstance(value, dict):
        shown = "an object"
    elif isinstance(value, list):
        shown = "an array"
    else:
        shown = dumps(value[:40] if isinstance(value, str) else value, default=repr)
    return _UnwritableError(f"expected {expected}, got {shown}")


def _write(write: _Writer, value: Any, depth_max: int) -> bytes:
    try:
        return write(value, depth_max)
    except _UnwritableError as error:
        raise RequestInvalid(str(error)) from None
    except RecursionError:
        raise RequestInvalid("a value is nested too deeply") from None
    except UnicodeEncodeError:
        raise RequestInvalid("a string contains a lone surrogate, which is not Unicode text") from None


def _parse(body: bytes) -> Any:
    try:
        document = orjson.loads(body)
        if _NEGATIVE_ZERO.search(body):
            del document  # do not hold both in memory
            document = orjson.loads(_with_fractions(body))
    except orjson.JSONDecodeError as error:
        raise RequestInvalid(f"the body is not valid JSON: {error}") from None
    return document


# Go writes the double -0.0 as -0, which orjson reads as the integer 0. The pattern is possessive, so that
# matching takes linear time for any body.
_NEGATIVE_ZERO = re.compile(rb"-0\s*[,}\]]")
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_UP_TO_NEGATIVE_ZERO = re.compile(rb'(?:[^"-]++|' + _STRING + rb"|-(?!0\s*[,}\]]))*+-0")


def _with_fractions(body: bytes) -> bytes:
    """Replaces every -0 outside of strings by -0.0. `body` must be valid JSON."""
    out = bytearray()
    start = 0
    while match := _UP_TO_NEGATIVE_ZERO.match(body, start):
        out += match[0]
        out += b".0"
        start = match.end()
    return bytes(out + body[start:])


_message_writers: dict[Descriptor, _Writer] = {}


def _message_writer(descriptor: Descriptor) -> _Writer:
    """Returns a writer of a JSON object as the message, without tag and length."""
    if descriptor in _message_writers:
        return _message_writers[descriptor]
    fields: dict[str, _Writer] = {}
    oneofs = [[field.json_name for field in one.fields] for one in descriptor.oneofs if len(one.fields) > 1]

    def write(value: Any, depth_left: int) -> bytes:
        if type(value) is not dict:
            raise _mismatch("an object", value)
        out = []
        name = ""
        try:
            for name, item in value.items():
                if item is not None and name in fields:
                    out.append(fields[name](item, depth_left))
        except _UnwritableError as error:
            error.path.append("." + name)
            raise
        if oneofs and len(out) > 1:
            _check_oneofs(oneofs, value)
        return b"".join(out)

    _message_writers[descriptor] = write  # before its fields, because messages contain each other
    fields.update((field.json_name, _field_writer(field)) for field in descriptor.fields)
    return write


def _check_oneofs(oneofs: list[list[str]], value: dict[str, Any]) -> None:
    for names in oneofs:
        present = [name for name in names if value.get(name) is not None]
        if len(present) > 1:
            raise _UnwritableError(f"only one of {' and '.join(present)} may be set")


def _field_writer(field: FieldDescriptor) -> _Writer:
    """Returns a writer of a JSON value as the field, with its tag."""
    tag = _tag(field)
    if field.message_type is KeyValue.DESCRIPTOR and field.is_repeated:
        return _key_values_writer(tag)
    if field.message_type is not None:
        write = _embedded_writer(tag, _message_writer(field.message_type))
        if field.containing_type is AnyValue.DESCRIPTOR:
            return _nested_writer(write)
        return _repeated_writer(write) if field.is_repeated else write
    if not field.is_repeated:
        return _scalar_writer(field, tag)
    if not field.is_packed:
        return _repeated_writer(_scalar_writer(field, tag))
    return _embedded_writer(tag, _repeated_writer(_scalar_writer(field, b"")))


def _embedded_writer(tag: bytes, write: _Writer) -> _Writer:
    """Returns a writer that puts tag and length before the output of `write`."""

    def write_embedded(value: Any, depth_left: int) -> bytes:
        encoded = write(value, depth_left)
        return tag + _varint(len(encoded)) + encoded

    return write_embedded


def _nested_writer(write: _Writer) -> _Writer:
    """Returns a writer that limits the nesting of arrays and key-value lists."""

    def write_nested(value: Any, depth_left: int) -> bytes:
        if depth_left <= 0:
            raise _UnwritableError("arrays and key-value lists are nested too deeply")
        return write(value, depth_left - 1)

    return write_nested


def _repeated_writer(write: _Writer) -> _Writer:
    def write_all(values: Any, depth_left: int) -> bytes:
        if type(values) is not list:
            raise _mismatch("an array", values)
        out = bytearray()  # a list of small parts would take ten times the memory
        index = 0
        try:
            for index, value in enumerate(values):  # noqa: B007 (used below)
                out += write(value, depth_left)
        except _UnwritableError as error:
            error.path.append(f"[{index}]")
            raise
        return bytes(out)

    return write_all


def _key_values_writer(tag: bytes) -> _Writer:
    """Returns a writer of attributes, with a fast path for short keys with short string values."""
    heads = [tag + _varint(size) for size in range(128)]
    write_any = _embedded_writer(tag, _message_writer(KeyValue.DESCRIPTOR))
    write_value = _embedded_writer(b"\x12", _message_writer(AnyValue.DESCRIPTOR))

    def write(item: Any, depth_left: int) -> bytes:
        if type(item) is not dict or len(item) != 2:
            return write_any(item, depth_left)
        key, value = item.get("key"), item.get("value")
        if type(key) is not str or len(key) > 64 or type(value) is not dict:
            return write_any(item, depth_left)
        key_field = _short_key_field(key)
        if type(text := value.get("stringValue")) is str and len(value) == 1:
            data = text.encode()
            size = len(key_field) + 4 + len(data)
            if size < 128:
                return heads[size] + key_field + _SHORT_STRING_HEADS[len(data)] + data
        try:
            data = write_value(value, depth_left)
        except _UnwritableError as error:
            error.path.append(".value")
            raise
        return tag + _varint(len(key_field) + len(data)) + key_field + data

    return _repeated_writer(write)


# Scalars from JSON --------------------------------------------------------------------------------

_INTEGERS: dict[int, tuple[str, int, int]] = {
    _FIELD.TYPE_INT32: ("a signed 32-bit integer", -(2**31), 2**31 - 1),
    _FIELD.TYPE_SINT32: ("a signed 32-bit integer", -(2**31), 2**31 - 1),
    _FIELD.TYPE_UINT32: ("an unsigned 32-bit integer", 0, 2**32 - 1),
    _FIELD.TYPE_FIXED32: ("an unsigned 32-bit integer", 0, 2**32 - 1),
    _FIELD.TYPE_INT64: ("a signed 64-bit integer", -(2**63), 2**63 - 1),
    _FIELD.TYPE_SFIXED64: ("a signed 64-bit integer", -(2**63), 2**63 - 1),
    _FIELD.TYPE_UINT64: ("an unsigned 64-bit integer", 0, 2**64 - 1),
    _FIELD.TYPE_FIXED64: ("an unsigned 64-bit integer", 0, 2**64 - 1),
    _FIELD.TYPE_ENUM: ("a signed 32-bit integer", -(2**31), 2**31 - 1),
}
_FIXED = {
    _FIELD.TYPE_FIXED32: Struct("<I"),
    _FIELD.TYPE_SFIXED64: Struct("<q"),
    _FIELD.TYPE_FIXED64: Struct("<Q"),
}
_DOUBLE = Struct("<d")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,4})?")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_URL_SAFE = str.maketrans("-_", "+/")


def _scalar_writer(field: FieldDescriptor, tag: bytes) -> _Writer:
    """Returns a writer of a scalar after `tag`, which is empty for packed fields."""
    if field.type == _FIELD.TYPE_STRING:
        return lambda value, _: tag + _string(value)
    if field.type == _FIELD.TYPE_BYTES:
        convert = _hex if field.name in _IDS else _base64
        return lambda value, _: tag + convert(value)
    if field.type == _FIELD.TYPE_BOOL:
        return lambda value, _: tag + _bool(value)
    if field.type == _FIELD.TYPE_DOUBLE:
        return lambda value, _: tag + _DOUBLE.pack(_double(value))
    if field.enum_type is not None:
        enum = field.enum_type
        return lambda value, _: tag + _varint(_enum_number(value, enum) & _UINT64_MAX)
    expected, low, high = _INTEGERS[field.type]
    if field.type in _FIXED:
        pack = _FIXED[field.type].pack
        return lambda value, _: tag + pack(_integer(value, expected, low, high))
    if field.type == _FIELD.TYPE_SINT32:
        return lambda value, _: tag + _varint(_zigzag(_integer(value, expected, low, high)))
    return lambda value, _: tag + _varint(_integer(value, expected, low, high) & _UINT64_MAX)


def _string(value: Any) -> bytes:
    if type(value) is not str:
        raise _mismatch("a string", value)
    data = value.encode()
    return _varint(len(data)) + data


def _hex(value: Any) -> bytes:
    if type(value) is not str:
        raise _mismatch("an id in hex", value)
    try:
        data = unhexlify(value)
    except ValueError:
        raise _mismatch("an id in hex", value) from None
    return _varint(len(data)) + data


def _base64(value: Any) -> bytes:
    """Accepts the standard and the URL-safe alphabet, padded or not, as protobuf's JSON parsers do."""
    if type(value) is not str:
        raise _mismatch("base64", value)
    digits = value.translate(_URL_SAFE).rstrip("=")
    padding = -len(digits) % 4
    try:
        if len(value) - len(digits) not in (0, padding):
            raise Base64Error
        data = b64decode(digits + "=" * padding, validate=True)
    except ValueError:
        raise _mismatch("base64", value) from None
    return _varint(len(data)) + data


def _bool(value: Any) -> bytes:
    if type(value) is not bool:
        raise _mismatch("true or false", value)
    return b"\x01" if value else b"\x00"


def _double(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value)
    if type(value) is str:
        if value in _NOT_FINITE:
            return _NOT_FINITE[value]
        if _NUMBER.fullmatch(value) and math.isfinite(number := float(value)):
            return number
    raise _mismatch('a number, "NaN", "Infinity" or "-Infinity"', value)


def _enum_number(value: Any, enum: EnumDescriptor) -> int:
    if type(value) is str:
        known = enum.values_by_name.get(value)
        hint = f": {value} is {known.number}" if known else ""
        raise _mismatch(f"an integer (OTLP/JSON has no enum names{hint})", value)
    return _integer(value, *_INTEGERS[_FIELD.TYPE_ENUM])


def _integer(value: Any, expected: str, low: int, high: int) -> int:
    if type(value) is str:
        # The usual form; the limit on the length keeps int() cheap.
        number = int(value) if len(value) < 24 and value.isdecimal() and value.isascii() else _exact(value)
    elif type(value) is int:
        number = value
    elif type(value) is float and value.is_integer() and -(2.0**63) < value < 2.0**64:
        # Larger values are refused, because orjson rounds integers beyond 64 bits to doubles.
        number = int(value)
    else:
        raise _mismatch(expected, value)
    if number is None or not low <= number <= high:
        raise _mismatch(expected, value)
    return number


def _exact(text: str) -> int | None:
    """Returns the integer of a JSON number in a string; None if it is no integer or too large."""
    if len(text) > 100 or not _NUMBER.fullmatch(text):
        return None
    decimal = Decimal(text)
    if decimal.adjusted() > 20:
        return None
    number = int(decimal)
    return number if number == decimal else None


# Wire format --------------------------------------------------------------------------------------


_SMALL_VARINTS = [varint(number) for number in range(1 << 11)]
# Tag and length of KeyValue.value and of its string_value, by the length of the string.
_SHORT_STRING_HEADS = [bytes([0x12, size + 2, 0x0A, size]) for size in range(126)]


def _varint(number: int) -> bytes:
    return _SMALL_VARINTS[number] if number < 1 << 11 else varint(number)


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else -number * 2 - 1


@lru_cache(maxsize=4096)
def _short_key_field(key: str) -> bytes:
    return b"\x0a" + _string(key)


def _tag(field: FieldDescriptor) -> bytes:
    if field.type in (_FIELD.TYPE_DOUBLE, _FIELD.TYPE_FIXED64, _FIELD.TYPE_SFIXED64):
        wire_type = 1
    elif field.type == _FIELD.TYPE_FIXED32:
        wire_type = 5
    else:
        wire_type = 0
    if field.message_type or field.type in (_FIELD.TYPE_STRING, _FIELD.TYPE_BYTES) or field.is_packed:
        wire_type = 2
    return varint(field.number << 3 | wire_type)


for _descriptor in _REQUESTS.values():
    _message_writer(_descriptor)

# To JSON ------------------------------------------------------------------------------------------

_TEXT_INTEGERS = {_FIELD.TYPE_INT64, _FIELD.TYPE_UINT64, _FIELD.TYPE_FIXED64, _FIELD.TYPE_SFIXED64}


def _to_json(message: Message) -> dict[str, Any]:
    readers = _readers(message.DESCRIPTOR)
    out = {}
    for field, value in message.ListFields():
        name, read, repeated = readers[field.number]
        out[name] = [read(item) for item in value] if repeated else read(value)
    return out


@cache
def _readers(descriptor: Descriptor) -> dict[int, tuple[str, Callable[[Any], Any], bool]]:
    return {field.number: (field.json_name, _reader(field), field.is_repeated) for field in descriptor.fields}


def _reader(field: FieldDescriptor) -> Callable[[Any], Any]:
    if field.message_type is not None:
        return _to_json
    if field.type == _FIELD.TYPE_BYTES:
        return bytes.hex if field.name in _IDS else lambda value: b64encode(value).decode()
    if field.type == _FIELD.TYPE_DOUBLE:
        return _double_to_json
    return str if field.type in _TEXT_INTEGERS else lambda value: value


def _double_to_json(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
