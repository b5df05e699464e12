"""How long it will take to make the rows of a batch, estimated from the lengths of its lists.

Two bytes on the wire can be an attribute, an event or a nested value. ptars reads a million of them in a
tenth of a second, but the steps after it can take twenty times as long. The estimate is made between the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from frazil.errors import RequestTooLarge
from frazil.otlp.values import REPEATED_ENTRIES_MAX
from frazil.tables import Signal

_SECONDS_MAX = 0.12
# Measured, and on the high side, for each:
_MESSAGE_SECONDS = 0.8e-6  # record, data point, event, link
_ATTRIBUTE_SECONDS = 0.7e-6
_ENTITY_SECONDS = 3e-6
_NUMBER_SECONDS = 0.02e-6
_NESTED_SECONDS = 2e-6  # value in an array or a key-value list: these go through Python one by one
_REPEATED_SECONDS = 0.065e-6  # attribute of a resource, scope or metric, in each of its rows
_NESTED_TAG = 0x0A
_LISTS: dict[Signal, tuple[str, str]] = {
    "logs": ("scope_logs", "log_records"),
    "spans": ("scope_spans", "spans"),
    "metrics": ("scope_metrics", "metrics"),
}
_POINTS = ("gauge", "sum", "histogram", "exponential_histogram", "summary")

_Counts = npt.NDArray[np.int64]


class TooDense(Exception):
    """Decoding these requests at once would take too long: `times` as long as it may.

    The caller decodes fewer records at once. The text is for the client, if a single record is too much.
    `is_nested`: only nested values make it so, and their number is a guess from their bytes.
    """

    def __init__(self, message: str, times: float, *, is_nested: bool) -> None:
        super().__init__(message)
        self.times = times
        self.is_nested = is_nested


def check_density(signal: Signal, batch: pa.RecordBatch) -> None:
    """Raises TooDense if it would take too long to make the rows of the batch, RequestTooLarge if its records
    repeat too much.
    """
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
    """How to estimate one list: the time for each element, and the lists in the elements by their path.

    Types are looked at once: looking at those of a batch takes as long as decoding a hundred records.
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
    """For what is known from lengths, and for nested values."""
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
    """At most so many values are nested in these, whose framing was not read yet."""
    data = values.buffers()[2]
    if data is None:
        return 0
    return int(np.count_nonzero(np.frombuffer(data, dtype=np.uint8) & 0x7F == _NESTED_TAG))


def _repeated(signal: Signal, resources: pa.StructArray) -> int:
    """The attributes of resources, scopes and metrics, counted for each row that will repeat them."""
    scope_name, record_name = _LISTS[signal]
    scope_lists = resources.field(scope_name)
    scopes = scope_lists.values
    record_lists = scopes.field(record_name)
    repeated = 0
    if signal == "metrics":
        metrics = record_lists.values
        rows = np.zeros(len(metrics), np.int64)
        for name in _POINTS:
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
    """For each list the sum of the counts of its elements."""
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    summed: _Counts = np.diff(before[np.asarray(lists.offsets)])
    return summed
