"""Small vectorised steps that logs, spans and metrics share: lists to owners, defaults to NULL, rejected
rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from frazil.otlp.ids import Mask, hex_ids
from frazil.otlp.values import Attributes, Codes
from frazil.tables.columns import TIMESTAMP
from frazil.tables.encoding import CODED

INT64_MAX = np.uint64(2**63 - 1)
Nanos = npt.NDArray[np.uint64]


def owners(lists: pa.ListArray) -> Codes:
    """For each element of the flattened lists, the index of the list that it is in."""
    return np.repeat(np.arange(len(lists), dtype=np.int32), np.diff(np.asarray(lists.offsets)))


def repeated(column: pa.Array, owner: Codes) -> pa.Array:
    """`column[owner]`; text becomes CODED, so that only integers move."""
    if not pa.types.is_string(column.type):
        return column.take(pa.array(owner))
    if column.null_count == len(column):
        return pa.nulls(len(owner), CODED)
    if len(column) == 1:
        return pa.DictionaryArray.from_arrays(pa.array(owner), column)
    encoded = column.dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices.take(pa.array(owner)), encoded.dictionary)


def text_or_null(column: pa.StringArray) -> pa.StringArray:
    """An unset string is empty on the wire and NULL in tables."""
    offsets = column.buffers()[1]
    if len(column) == 0 or offsets is None or column.offset:
        return pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
    lengths = np.diff(np.frombuffer(offsets, dtype=np.int32, count=len(column) + 1))
    if lengths.all():
        return column
    if not lengths.any():
        return pa.nulls(len(column), pa.string())
    return pc.if_else(pa.array(lengths == 0), pa.scalar(None, pa.string()), column)


def long(column: pa.Array) -> pa.Int64Array:
    """Unsigned 32-bit counters and flags; unsigned 64-bit ones that were checked."""
    return column.cast(pa.int64(), safe=False)


def nanos_or_null(nanos: Nanos) -> pa.Int64Array:
    """An unset time is 0 on the wire and NULL in tables."""
    signed = nanos.view(np.int64)
    unset = nanos == 0
    return pa.array(signed, mask=unset) if unset.any() else pa.array(signed)


def timestamps(nanos: Nanos) -> pa.TimestampArray:
    return pa.array((nanos // np.uint64(1000)).view(np.int64)).view(TIMESTAMP)


@dataclass
class Rejects:
    """Rows that are invalid on their own, by reason. They are left out and counted; the rest is kept."""

    rows: int
    by_reason: dict[str, Mask] = field(default_factory=dict)

    def add(self, reason: str, mask: Mask | None) -> None:
        if mask is not None and mask.any():
            self.by_reason[reason] = self.by_reason[reason] | mask if reason in self.by_reason else mask

    def add_elements(self, elements: Rejects, lists: pa.ListArray) -> None:
        """`elements` are rejects of the lists' elements (events, links, exemplars): rejects their rows."""
        for reason, mask in elements.by_reason.items():
            rows = np.zeros(self.rows, dtype=np.bool_)
            rows[owners(lists)[mask]] = True
            self.add(reason, rows)

    def add_range(self, rejects: Rejects, first: int) -> None:
        """`rejects` are of the rows from `first` on."""
        for reason, mask in rejects.by_reason.items():
            rows = np.zeros(self.rows, dtype=np.bool_)
            rows[first : first + rejects.rows] = mask
            self.add(reason, rows)

    def unsigned(self, name: str, column: pa.Array) -> Nanos:
        """A time or counter column, with those beyond signed 64 bits rejected."""
        values: Nanos = np.asarray(column)
        self.add(f"{name} is beyond signed 64 bits", values > INT64_MAX)
        return values

    def ids(self, name: str, column: pa.BinaryArray, width: int, *, required: bool = False) -> pa.StringArray:
        ids = hex_ids(column, width)
        self.add(f"{name} is not {width} bytes long", ids.wrong_length)
        if required:
            self.add(f"{name} is missing", ids.absent)
            self.add(f"{name} is all zeros", ids.zero)
        return ids.text

    @property
    def any(self) -> Mask | None:
        if not self.by_reason:
            return None
        found: Mask = np.logical_or.reduce(list(self.by_reason.values()))
        return found


@dataclass(frozen=True)
class Envelope:
    """The resource and scope of every record, and which request it came in."""

    resources: pa.StructArray
    scopes: pa.StructArray
    resource_attributes: Attributes
    scope_attributes: Attributes
    request_of_resource: Codes
    resource_of_scope: Codes

    @classmethod
    def of(cls, batch: pa.RecordBatch, scope_field: str, depth_max: int) -> Envelope:
        lists = batch.column(0)
        resources = lists.values
        scope_lists = resources.field(scope_field)
        scopes = scope_lists.values
        return cls(
            resources,
            scopes,
            Attributes(resources.field("resource").field("attributes"), depth_max),
            Attributes(scopes.field("scope").field("attributes"), depth_max),
            owners(lists),
            owners(scope_lists),
        )

    def columns(self, scope_of_row: Codes) -> dict[str, Any]:
        resource_of_row = self.resource_of_scope[scope_of_row]
        resource, scope = self.resources.field("resource"), self.scopes.field("scope")
        return {
            "resource_attributes": self.resource_attributes.repeated_maps(resource_of_row),
            "resource_attribute_types": repeated(self.resource_attributes.types(), resource_of_row),
            "resource_dropped_attributes_count": repeated(
                long(resource.field("dropped_attributes_count")), resource_of_row
            ),
            "resource_schema_url": repeated(
                text_or_null(self.resources.field("schema_url")), resource_of_row
            ),
            "resource_entity_refs": repeated(_entity_refs(resource.field("entity_refs")), resource_of_row),
            "scope_name": repeated(text_or_null(scope.field("name")), scope_of_row),
            "scope_version": repeated(text_or_null(scope.field("version")), scope_of_row),
            "scope_attributes": self.scope_attributes.repeated_maps(scope_of_row),
            "scope_attribute_types": repeated(self.scope_attributes.types(), scope_of_row),
            "scope_dropped_attributes_count": repeated(
                long(scope.field("dropped_attributes_count")), scope_of_row
            ),
            "scope_schema_url": repeated(text_or_null(self.scopes.field("schema_url")), scope_of_row),
        }

    def request_of_row(self, scope_of_row: Codes) -> Codes:
        return self.request_of_resource[self.resource_of_scope[scope_of_row]]


def _entity_refs(lists: pa.ListArray) -> pa.StringArray:
    """As the OTLP/JSON list; rare and a few a resource, so they go through Python."""
    if len(lists.values) == 0:
        return pa.nulls(len(lists), pa.string())
    names = {
        "schema_url": "schemaUrl",
        "type": "type",
        "id_keys": "idKeys",
        "description_keys": "descriptionKeys",
    }
    return pa.array(
        [
            orjson.dumps(
                [{names[key]: value for key, value in ref.items() if value} for ref in refs]
            ).decode()
            if refs
            else None
            for refs in lists.to_pylist()
        ],
        pa.string(),
    )
