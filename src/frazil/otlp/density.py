"""How long it will take to make the rows of a batch, estimated from the lengths of its lists.

Two bytes on the wire can be an attribute, an event or a nested value. ptars reads a million of them in a
tenth of a second, but the steps after it can take twenty times as long. The estimate is made between the two.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_SECONDS_MAX = 0.12
# Measured, and on the high side, for each:
_MESSAGE_SECONDS = 0.8e-6  # record, data point, event, link
_ATTRIBUTE_SECONDS = 0.7e-6
_ENTITY_SECONDS = 3e-6
_NUMBER_SECONDS = 0.02e-6
_NESTED_SECONDS = 2e-6  # value in an array or a key-value list: these go through Python one by one
_REPEATED_SECONDS = 0.065e-6  # attribute of a resource, scope or metric, in each of its rows
_NESTED_TAG = 0x0A
_POINTS = ("gauge", "sum", "histogram", "exponential_histogram", "summary")

_Counts = npt.NDArray[np.int64]


class TooDense(Exception):
    """Decoding these requests at once would take too long: `times` as long as it may.

    The caller decodes fewer records at once. The text is for the client, if a single record is too much.
    """

    def __init__(self, message: str, times: float) -> None:
        super().__init__(message)
        self.times = times


def check_density(batch: pa.RecordBatch) -> None:
    """Raises TooDense if it would take too long to make the rows of the batch."""
    seconds = _seconds(batch.column(0), "") + _REPEATED_SECONDS * _repeated(batch.column(0).values)
    if seconds > _SECONDS_MAX:
        raise TooDense(
            "a record, with its resource and scope, has too many attributes, events, links, buckets or "
            "nested values; about 100,000 of them are possible",
            seconds / _SECONDS_MAX,
        )


def _seconds(array: pa.Array, name: str) -> float:
    if not len(array):
        return 0.0
    if pa.types.is_struct(array.type):
        return sum(
            _seconds(array.field(number), array.type[number].name)
            for number in range(array.type.num_fields)
            if pa.types.is_nested(array.type[number].type)
        )
    if not pa.types.is_list(array.type):
        return 0.0
    elements = array.values
    if pa.types.is_binary(elements.type):  # the pieces of nested values
        return _NESTED_SECONDS * _tags(elements)
    if not pa.types.is_struct(elements.type):
        return _NUMBER_SECONDS * len(elements)
    each = _MESSAGE_SECONDS
    if elements.type.get_field_index("key") >= 0:
        each = _ATTRIBUTE_SECONDS
    elif name == "entity_refs":
        each = _ENTITY_SECONDS
    return each * len(elements) + _seconds(elements, name)


def _tags(values: pa.BinaryArray) -> int:
    """At most so many values are nested in these, whose framing was not read yet."""
    data = values.buffers()[2]
    if data is None:
        return 0
    return int(np.count_nonzero(np.frombuffer(data, dtype=np.uint8) & 0x7F == _NESTED_TAG))


def _repeated(resources: pa.StructArray) -> int:
    """The attributes of resources, scopes and metrics, counted for each row that will repeat them."""
    scope_lists = _only_list(resources)
    scopes = scope_lists.values
    record_lists = _only_list(scopes)
    repeated = 0
    if record_lists.values.type.get_field_index("metadata") >= 0:
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


def _only_list(array: pa.StructArray) -> pa.ListArray:
    """The scopes of resources, or the records of scopes: they hold no other list themselves."""
    (number,) = (number for number, inner in enumerate(array.type) if pa.types.is_list(inner.type))
    return array.field(number)


def _lengths(lists: pa.ListArray) -> _Counts:
    return np.diff(np.asarray(lists.offsets)).astype(np.int64)


def _summed(counts: _Counts, lists: pa.ListArray) -> _Counts:
    """For each list the sum of the counts of its elements."""
    before = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    summed: _Counts = np.diff(before[np.asarray(lists.offsets)])
    return summed
