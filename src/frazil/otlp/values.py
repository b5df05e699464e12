"""Converts OTLP values and attribute lists to text columns, vectorised.

A value becomes text: ints in decimal, doubles in the shortest form that round-trips, bytes in base64, arrays
and key-value lists as OTLP/JSON; an empty value is NULL. Its kind is stored separately, so that nothing is
lost.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from json.encoder import encode_basestring

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValueList

from frazil.errors import RequestInvalid, RequestTooLarge
from frazil.otlp.json import any_value_to_json
from frazil.tables.promoted import ACCEPTED_KINDS, Promoted

Codes = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]

KINDS = ("string", "bool", "int", "double", "bytes", "array", "kvlist")
"""Names of the kinds in the `*_types` columns; a value's kind is an index into this tuple."""
KIND = {name: code for code, name in enumerate(KINDS)}
_FIELDS = (
    "string_value",
    "bool_value",
    "int_value",
    "double_value",
    "bytes_value",
    "array_value",
    "kvlist_value",
)


REPEATED_ENTRIES_MAX = 1 << 23
_REPEATED_BYTES_MAX = 1 << 30


class DuplicateOneof(Exception):
    """A value has two members of its oneof on the wire; the caller retries with the canonical encoding."""


@dataclass(frozen=True)
class Values:
    """Attribute values as text. `kinds` is None if every value is a string or empty."""

    text: pa.StringArray
    kinds: npt.NDArray[np.uint8] | None


def render(values: pa.StructArray, depth_max: int) -> Values:
    """Converts AnyValues to text and kinds."""
    children = [values.field(name) for name in _FIELDS[:-2]]
    children += [_join_pieces(values.field(name)) for name in _FIELDS[-2:]]
    present = [len(child) - child.null_count for child in children]
    if not any(present[1:]):
        return Values(children[0], None)
    kinds = np.zeros(len(values), dtype=np.uint8)
    texts = []
    for code, (child, count) in enumerate(zip(children, present, strict=True)):
        if not count:
            continue
        if code:
            kinds[np.asarray(child.is_valid())] = code
        texts.append(_text(child, KINDS[code], depth_max))
    text = pc.coalesce(*texts) if len(texts) > 1 else texts[0]
    if len(text) - text.null_count != sum(present):
        raise DuplicateOneof
    return Values(text, kinds)


def _join_pieces(pieces: pa.ListArray) -> pa.Array:
    """Joins the pieces in which each nested message is on the wire: none, usually one, or more."""
    if len(pieces.values) == 0:
        return pa.nulls(len(pieces), pa.binary())
    starts = np.asarray(pieces.offsets)
    present = np.diff(starts) > 0
    values = pieces.values
    piece_starts = np.frombuffer(values.buffers()[1], dtype=np.int32, count=len(values) + 1)
    return pa.BinaryArray.from_buffers(  # pieces are contiguous: joining them means leaving out offsets
        pa.binary(),
        len(pieces),
        [
            pa.py_buffer(np.packbits(present, bitorder="little")),
            pa.py_buffer(piece_starts[starts]),
            values.buffers()[2],
        ],
    )


def _text(child: pa.Array, kind: str, depth_max: int) -> pa.StringArray:
    if kind == "string":
        return child
    if kind in ("bool", "int", "double"):
        return child.cast(pa.string())
    encoded = child.dictionary_encode()  # the other kinds go through Python, once per distinct value
    distinct = encoded.dictionary.to_pylist()
    if kind == "bytes":
        texts = [base64.b64encode(raw).decode() for raw in distinct]
    else:
        texts = [_nested_text(raw, kind, depth_max) for raw in distinct]
    return pa.array(texts, pa.string()).take(encoded.indices)


def _nested_text(raw: bytes, kind: str, depth_max: int) -> str:
    try:
        if kind == "array":
            value = AnyValue(array_value=ArrayValue.FromString(raw))
        else:
            value = AnyValue(kvlist_value=KeyValueList.FromString(raw))
    except DecodeError:
        raise RequestInvalid("a nested attribute value is malformed or nested too deeply") from None
    if nesting(value) > depth_max:
        raise RequestInvalid(f"an attribute value is nested deeper than {depth_max} levels")
    return orjson.dumps(any_value_to_json(value)).decode()


def nesting(value: AnyValue) -> int:
    """Returns the nesting depth of arrays and key-value lists. The parser limits the recursion."""
    which = value.WhichOneof("value")
    if which == "array_value":
        return 1 + max((nesting(item) for item in value.array_value.values), default=0)
    if which == "kvlist_value":
        return 1 + max((nesting(item.value) for item in value.kvlist_value.values), default=0)
    return 0


class Attributes:
    """The attribute lists of `len(offsets) - 1` owners, with dictionary-encoded keys."""

    def __init__(self, column: pa.ListArray, depth_max: int) -> None:
        pairs = column.values
        values = render(pairs.field("value"), depth_max)
        self.offsets: Codes = np.asarray(column.offsets)
        keys = pairs.field("key").dictionary_encode()
        self.key_names: list[str] = keys.dictionary.to_pylist()
        self._key_dictionary = keys.dictionary
        self.codes: Codes = np.asarray(keys.indices)
        self.text = values.text
        self.kinds = values.kinds
        self._drop_repeated_keys()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def _drop_repeated_keys(self) -> None:
        """Keeps the last of repeated keys: OTLP forbids them, and query engines refuse such maps."""
        owners, distinct = len(self), len(self.key_names)
        slots = np.repeat(np.arange(owners, dtype=np.int64) * distinct, np.diff(self.offsets)) + self.codes
        if owners * distinct <= max(4 * len(slots), 1 << 20):
            seen = np.zeros(owners * distinct, dtype=np.bool_)
            seen[slots] = True
            if np.count_nonzero(seen) == len(slots):
                return
        _, last_from_end = np.unique(slots[::-1], return_index=True)
        if len(last_from_end) == len(slots):
            return
        keep = np.zeros(len(slots), dtype=np.bool_)
        keep[len(slots) - 1 - last_from_end] = True
        kept_before = np.concatenate(([0], np.cumsum(keep))).astype(np.int32)
        self.offsets = kept_before[self.offsets]
        self.codes = self.codes[keep]
        self.text = self.text.filter(pa.array(keep))
        self.kinds = None if self.kinds is None else self.kinds[keep]

    def maps(self, *, coded: bool = True) -> pa.MapArray:
        """Returns a map per owner. Maps inside lists of structs must not be `coded` (dictionary-encoded)."""
        keys = pa.DictionaryArray.from_arrays(pa.array(self.codes), self._key_dictionary)
        return pa.MapArray.from_arrays(
            pa.array(self.offsets), keys if coded else keys.cast(pa.string()), self.text
        )

    def repeated_maps(self, owner: Codes) -> pa.MapArray:
        """Returns the map of `owner[i]` in row i. Copies only integers."""
        lengths = np.diff(self.offsets)[owner]
        self._check_repeated(owner, int(lengths.sum(dtype=np.int64)))
        offsets = np.zeros(len(owner) + 1, dtype=np.int32)
        np.cumsum(lengths, out=offsets[1:], dtype=np.int32)
        source = np.repeat(self.offsets[:-1][owner] - offsets[:-1], lengths) + np.arange(
            offsets[-1], dtype=np.int32
        )
        keys = pa.DictionaryArray.from_arrays(pa.array(self.codes[source]), self._key_dictionary)
        values = self.text.dictionary_encode()
        texts = pa.DictionaryArray.from_arrays(values.indices.take(pa.array(source)), values.dictionary)
        return pa.MapArray.from_arrays(pa.array(offsets), keys, texts)

    def _check_repeated(self, owner: Codes, entries: int) -> None:
        """Raises RequestTooLarge if small records would repeat a large resource too often."""
        sizes = np.zeros(len(self.text) + 1, dtype=np.int64)
        np.cumsum(np.asarray(pc.fill_null(pc.binary_length(self.text), 0)), out=sizes[1:])
        expanded = int(np.diff(sizes[self.offsets])[owner].sum())
        if entries > REPEATED_ENTRIES_MAX or expanded > _REPEATED_BYTES_MAX:
            raise RequestTooLarge(
                "too many records share too large a resource, scope or metric; send smaller batches",
                bytes_max=_REPEATED_BYTES_MAX,
            )

    def types(self) -> pa.StringArray:
        """Returns per owner a JSON object with the kinds of its non-string values by key; NULL if none."""
        if self.kinds is None:
            return pa.nulls(len(self), pa.string())
        typed = self.kinds != 0
        typed_before = np.concatenate(([0], np.cumsum(typed))).astype(np.int32)
        offsets = typed_before[self.offsets]
        pairs = self.codes[typed].astype(np.int64) * len(KINDS) + self.kinds[typed]
        fragments: list[str | None] = [None] * (len(self.key_names) * len(KINDS))
        used = np.zeros(len(fragments), dtype=np.bool_)
        used[pairs] = True
        for pair in np.flatnonzero(used).tolist():
            key, kind = self.key_names[pair // len(KINDS)], KINDS[pair % len(KINDS)]
            fragments[pair] = f'{encode_basestring(key)}:"{kind}"'
        lists = pa.ListArray.from_arrays(
            pa.array(offsets), pa.array(fragments, pa.string()).take(pa.array(pairs))
        )
        joined = pc.binary_join(lists, ",")
        objects = pc.binary_join_element_wise("{", joined, "}", "")
        none = np.diff(offsets) == 0
        return pc.if_else(pa.array(none), pa.scalar(None, pa.string()), objects) if none.any() else objects

    def promoted(self, column: Promoted) -> pa.Array:
        """Returns per owner the first of the column's attributes that has a value of the column's type; else
        NULL. At least one owner must have one of the attributes.
        """
        found = [self._positions(name, column) for name in column.attributes if name in self.key_names]
        if len(found[0]) == len(self):  # every list has the first attribute, and lists are in order
            return self.text.take(pa.array(found[0])).cast(column.arrow_type)
        source = np.zeros(len(self), dtype=np.int64)
        missing = np.ones(len(self), dtype=np.bool_)
        for positions in reversed(found):
            owners = np.searchsorted(self.offsets, positions, side="right") - 1
            source[owners], missing[owners] = positions, False
        return self.text.take(pa.array(source, mask=missing)).cast(column.arrow_type)

    def _positions(self, name: str, column: Promoted) -> npt.NDArray[np.int64]:
        """Returns the positions where the attribute has a value of the column's type."""
        positions = np.flatnonzero(self.codes == self.key_names.index(name))
        if column.type != "string":
            kinds = np.zeros(len(positions), np.uint8) if self.kinds is None else self.kinds[positions]
            positions = positions[np.isin(kinds, [KIND[name] for name in ACCEPTED_KINDS[column.type]])]
        if self.text.null_count:
            positions = positions[np.asarray(self.text.take(pa.array(positions)).is_valid())]
        return positions
