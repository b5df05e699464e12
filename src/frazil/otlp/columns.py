"""Vectorised steps that logs, spans and metrics share: NULLs, rejected rows, resources and scopes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from opentelemetry.proto.common.v1.common_pb2 import EntityRef

from frazil.otlp.ids import Mask, hex_ids
from frazil.otlp.values import Attributes, Codes
from frazil.tables import Promoted, Signal
from frazil.tables.columns import TIMESTAMP
from frazil.tables.encoding import CODED

LISTS: dict[Signal, tuple[str, str]] = {
    "logs": ("scope_logs", "log_records"),
    "spans": ("scope_spans", "spans"),
    "metrics": ("scope_metrics", "metrics"),
}
"""The list of scopes in a resource, and the list of records in a scope."""
INT64_MAX = np.uint64(2**63 - 1)
Nanos = npt.NDArray[np.uint64]


def owners(lists: pa.ListArray) -> Codes:
    """Returns for each element of the flattened lists the index of its list."""
    return np.repeat(np.arange(len(lists), dtype=np.int32), np.diff(np.asarray(lists.offsets)))


def repeated(column: pa.Array, owner: Codes) -> pa.Array:
    """Returns `column[owner]`. Text is dictionary-encoded, so that only integers are copied."""
    if not pa.types.is_string(column.type):
        return column.take(pa.array(owner))
    if column.null_count == len(column):
        return pa.nulls(len(owner), CODED)
    if len(column) == 1:
        return pa.DictionaryArray.from_arrays(pa.array(owner), column)
    encoded = column.dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices.take(pa.array(owner)), encoded.dictionary)


def text_or_null(column: pa.StringArray) -> pa.StringArray:
    """Replaces empty strings by NULL: OTLP does not distinguish empty and unset strings."""
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
    """Casts unsigned numbers that fit into a signed 64-bit integer."""
    return column.cast(pa.int64(), safe=False)


def nanos_or_null(nanos: Nanos) -> pa.Int64Array:
    """Replaces 0 by NULL: OTLP writes an unset time as 0."""
    signed = nanos.view(np.int64)
    unset = nanos == 0
    return pa.array(signed, mask=unset) if unset.any() else pa.array(signed)


def timestamps(nanos: Nanos) -> pa.TimestampArray:
    return pa.array((nanos // np.uint64(1000)).view(np.int64)).view(TIMESTAMP)


@dataclass
class Rejects:
    """Invalid rows by reason. They are dropped and counted; the request's other rows are kept."""

    rows: int
    by_reason: dict[str, Mask] = field(default_factory=dict)

    def add(self, reason: str, mask: Mask | None) -> None:
        if mask is not None and mask.any():
            self.by_reason[reason] = self.by_reason[reason] | mask if reason in self.by_reason else mask

    def add_elements(self, elements: Rejects, lists: pa.ListArray) -> None:
        """Rejects the rows whose lists contain rejected `elements` (events, links, exemplars)."""
        for reason, mask in elements.by_reason.items():
            rows = np.zeros(self.rows, dtype=np.bool_)
            rows[owners(lists)[mask]] = True
            self.add(reason, rows)

    def add_range(self, rejects: Rejects, first: int) -> None:
        """Adds the rejects of the rows from `first`."""
        for reason, mask in rejects.by_reason.items():
            rows = np.zeros(self.rows, dtype=np.bool_)
            rows[first : first + rejects.rows] = mask
            self.add(reason, rows)

    def unsigned(self, name: str, column: pa.Array) -> Nanos:
        """Returns a column of times or counters, and rejects values beyond signed 64 bits."""
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
    """The records of a batch (log records, spans or metrics), with their scopes, resources and requests."""

    resources: pa.StructArray
    scopes: pa.StructArray
    records: pa.StructArray
    resource_attributes: Attributes
    scope_attributes: Attributes
    request_of_resource: Codes
    resource_of_scope: Codes
    scope_of_record: Codes
    depth_max: int

    @classmethod
    def of(cls, signal: Signal, batch: pa.RecordBatch, depth_max: int) -> Envelope:
        scope_field, record_field = LISTS[signal]
        lists = batch.column(0)
        resources = lists.values
        scope_lists = resources.field(scope_field)
        scopes = scope_lists.values
        record_lists = scopes.field(record_field)
        return cls(
            resources,
            scopes,
            record_lists.values,
            Attributes(resources.field("resource").field("attributes"), depth_max),
            Attributes(scopes.field("scope").field("attributes"), depth_max),
            owners(lists),
            owners(scope_lists),
            owners(record_lists),
            depth_max,
        )

    def columns(
        self, scope_of_row: Codes, attributes: Attributes, promoted: Sequence[Promoted]
    ) -> dict[str, Any]:
        """Returns the columns of resources and scopes, and the promoted columns."""
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
            **{column.column: self._promoted(column, attributes, resource_of_row) for column in promoted},
        }

    def request_of_row(self, scope_of_row: Codes) -> Codes:
        return self.request_of_resource[self.resource_of_scope[scope_of_row]]

    def _promoted(self, column: Promoted, attributes: Attributes, resource_of_row: Codes) -> pa.Array:
        of_resource = column.source == "resource"
        source = self.resource_attributes if of_resource else attributes
        if not any(name in source.key_names for name in column.attributes):
            coded = of_resource and column.type == "string"
            return pa.nulls(len(resource_of_row), CODED if coded else column.arrow_type)
        values = source.promoted(column)
        return repeated(values, resource_of_row) if of_resource else values


@dataclass(frozen=True)
class Rows:
    """The decoded records of a batch: columns, attributes and rejects, and the scope of each row."""

    columns: dict[str, Any]
    attributes: Attributes
    rejects: Rejects
    scope_of_row: Codes


def _entity_refs(lists: pa.ListArray) -> pa.StringArray:
    """Returns the OTLP/JSON lists. Goes through Python, because entity references are rare."""
    if len(lists.values) == 0:
        return pa.nulls(len(lists), pa.string())
    names = {field.name: field.json_name for field in EntityRef.DESCRIPTOR.fields}
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
