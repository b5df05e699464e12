"""Estimates the time to decode a batch from the lengths of its lists.

Two bytes on the wire can be an attribute, an event or a nested value. ptars reads a million of them in 0.1 s,
but the steps after it can take twenty times as long. The estimate is made between the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from frazil.errors import RequestTooLarge
from frazil.otlp.columns import LISTS
from frazil.otlp.metrics import TYPES
from frazil.otlp.values import REPEATED_ENTRIES_MAX
from frazil.tables import Signal

_SECONDS_MAX = 0.12
# Measured upper estimates for each:
_MESSAGE_SECONDS = 0.8e-6  # record, data point, event, link
_ATTRIBUTE_SECONDS = 0.7e-6
_ENTITY_SECONDS = 3e-6
_NUMBER_SECONDS = 0.02e-6
_NESTED_SECONDS = 2e-6  # value in an array or a key-value list: decoded one by one in Python
_REPEATED_SECONDS = 0.065e-6  # attribute of a resource, scope or metric, in each of its rows
_NESTED_TAG = 0x0A

_Counts = npt.NDArray[np.int64]


class TooDense(Exception):
    """Decoding these requests at once would take too long, by the factor `times`.

    The caller decodes fewer records at once. The message is for the client, if a single record is too much.
    `is_nested`: only nested values exceed the limit, and their number is estimated from their bytes.
    """

    def __init__(self, message: str, times: float, *, is_nested: bool) -> None:
        super().__init__(message)
        self.times = times
        self.is_nested = is_nested


def check_density(signal: Signal, batch: pa.RecordBatch) -> None:
    """Raises TooDense if decoding would take too long, RequestTooLarge if rows would repeat too much."""
    requests = batch.column(0)
    repeated = _repeated(signal, requests.values)
    if repeated > REPEATED_ENTRIES_MAX:
        raise RequestTooLarge(
            "too many records share too large a resource, scope or metric; send smaller batches", bytes_max=0
        )
    known, nested = _seconds(requests, _plan(signal, requests.type))
    known += _REPEATED_SECONDS * repeated
    seconds = known + nested
    if seconds > _SECONDS_MAX:
        raise TooDense(
            "a record, with its resource and scope, has too many attributes, events, links, buckets or "
            "nested values; the limit is about 100,000",
            seconds / _SECONDS_MAX,
            is_nested=known <= _SECONDS_MAX,
        )


@dataclass(frozen=True)
class _Plan:
    """The cost estimate of one list: the time per element, and the lists in the elements by their path.

    Kept per signal, because inspecting a batch's types takes as long as decoding a hundred records.
    """

    each_seconds: float
    is_nested: bool
    inner: tuple[tuple[tuple[int, ...], _Plan], ...]


_plans: dict[Signal, _Plan] = {}


def _plan(signal: Signal, type_: pa.ListType) -> _Plan:
    if signal not in _plans:
        _plans[signal] = _plan_of(type_, "")
    return _plans[signal]


def _plan_of(type_: pa.ListType, name: str) -> _Plan:
    element = type_.value_type
    if pa.types.is_binary(element):  # the pieces of nested values
        return _Plan(_NESTED_SECONDS, True, ())
    if not pa.types.is_struct(element):
        return _Plan(_NUMBER_SECONDS, False, ())
    each = _MESSAGE_SECONDS
    if element.get_field_index("key") >= 0:
        each = _ATTRIBUTE_SECONDS
    elif name == "entity_refs":
        each = _ENTITY_SECONDS
    return _Plan(each, False, tuple(_lists_in(element, ())))


def _lists_in(type_: pa.StructType, path: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], _Plan]]:
    for number, field in enumerate(type_):
        if pa.types.is_list(field.type):
            yield (*path, number), _plan_of(field.type, field.name)
        elif pa.types.is_struct(field.type):
            yield from _lists_in(field.type, (*path, number))


def _seconds(lists: pa.ListArray, plan: _Plan) -> tuple[float, float]:
    """Returns the time for everything known from lengths, and for nested values."""
    elements = lists.values
    count = len(elements)
    if not count:
        return 0.0, 0.0
    if plan.is_nested:
        return 0.0, plan.each_seconds * _tags(elements)
    known, nested = plan.each_seconds * count, 0.0
    for path, inner in plan.inner:
        array = elements
        for number in path:
            array = array.field(number)
        more, more_nested = _seconds(array, inner)
        known, nested = known + more, nested + more_nested
    return known, nested


def _tags(values: pa.BinaryArray) -> int:
    """Returns an upper bound on the number of values nested in these unparsed ones."""
    data = values.buffers()[2]
    if data is None:
        return 0
    return int(np.count_nonzero(np.frombuffer(data, dtype=np.uint8) & 0x7F == _NESTED_TAG))


def _repeated(signal: Signal, resources: pa.StructArray) -> int:
    """Counts the attributes of resources, scopes and metrics once for each row that will repeat them."""
    scope_name, record_name = LISTS[signal]
    scope_lists = resources.field(scope_name)
    scopes = scope_lists.values
    record_lists = scopes.field(record_name)
    repeated = 0
    if signal == "metrics":
        metrics = record_lists.values
        rows = np.zeros(len(metrics), np.int64)
        for name in TYPES:
            rows += _lengths(metrics.field(name).field("data_points"))
        repeated += int(rows @ _lengths(metrics.field("metadata")))
        rows = _summed(rows, record_lists)
    else:
        rows = _lengths(record_lists)
    repeated += int(rows @ _lengths(scopes.field("scope").field("attributes")))
    rows = _summed(rows, scope_lists)
    return repeated + int(rows @ _lengths(resources.field("resource").field("attributes")))


def _lengths(lists: pa.ListArray) -> _Counts:
    return np.diff(np.asarray(lists.offsets)).astype(np.int64)


def _summed(counts: _Counts, lists: pa.ListArray) -> _Counts:
    """Returns for each list the sum of its elements' counts."""
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    summed: _Counts = np.diff(before[np.asarray(lists.offsets)])
    return summed
