"""The id of a time series: a 64-bit hash, the same in every process and release.

Each distinct string is hashed once; the rest is integer arithmetic. The hashes of attributes are added, so
that their order does not matter.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import xxhash

from frazil.otlp.columns import Envelope
from frazil.otlp.values import Attributes, Codes
from frazil.tables.hashing import Hashes, mixed


def _hash(text: str) -> int:
    return int(xxhash.xxh3_64_intdigest(text.encode()))


_KEY, _VALUE, _KIND, _RESOURCE, _SCOPE, _NAME, _UNIT, _TYPE = (
    np.uint64(_hash(f"frazil.series.{part}") | 1)
    for part in ("key", "value", "kind", "resource", "scope", "name", "unit", "type")
)


def series_ids(
    envelope: Envelope,
    metrics: pa.StructArray,
    type_of_row: Codes,
    attributes: Attributes,
    scope_of_row: Codes,
    metric_of_row: Codes,
) -> pa.Int64Array:
    scope = envelope.scopes.field("scope")
    resources = _attribute_hashes(envelope.resource_attributes)
    scopes = (
        _attribute_hashes(envelope.scope_attributes)
        + _text_hashes(scope.field("name")) * _NAME
        + _text_hashes(scope.field("version")) * _VALUE
    )
    metric = _text_hashes(metrics.field("name")) * _NAME + _text_hashes(metrics.field("unit")) * _UNIT
    rows = (
        _attribute_hashes(attributes)
        + mixed(resources)[envelope.resource_of_scope[scope_of_row]] * _RESOURCE
        + mixed(scopes)[scope_of_row] * _SCOPE
        + mixed(metric)[metric_of_row]
        + (type_of_row.astype(np.uint64) + np.uint64(1)) * _TYPE
    )
    return pa.array(mixed(rows).view(np.int64))


def _attribute_hashes(attributes: Attributes) -> Hashes:
    keys = np.array([_hash(name) for name in attributes.key_names] or [0], dtype=np.uint64)
    pairs = keys[attributes.codes] * _KEY + _text_hashes(attributes.text) * _VALUE
    if attributes.kinds is not None:
        pairs += attributes.kinds.astype(np.uint64) * _KIND
    total = np.concatenate((np.zeros(1, np.uint64), np.cumsum(mixed(pairs), dtype=np.uint64)))
    return total[attributes.offsets[1:]] - total[attributes.offsets[:-1]]


def _text_hashes(column: pa.StringArray) -> Hashes:
    encoded = column.dictionary_encode()
    distinct = [_hash(text) for text in encoded.dictionary.to_pylist()]
    hashes = np.array([*distinct, 0], dtype=np.uint64)  # the last is for NULL
    codes: Codes = np.asarray(encoded.indices.fill_null(len(distinct)))
    return hashes[codes]
