"""Promoted attributes: attributes with their own column.

A promoted column is a copy: the map that it comes from (`source`) stays complete. It is also filled from the
names that an attribute had in older semantic conventions.

The name of a data file contains a fingerprint of how its promoted columns were filled, and a table property
describes each fingerprint. Readers use the map for columns that were filled differently.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import pyarrow as pa

Source = Literal["resource", "record"]
ValueType = Literal["string", "int", "double", "bool"]

ARROW_TYPES: dict[ValueType, pa.DataType] = {
    "string": pa.string(),
    "int": pa.int64(),
    "double": pa.float64(),
    "bool": pa.bool_(),
}
ACCEPTED_KINDS = {"int": ("int",), "double": ("int", "double"), "bool": ("bool",)}
"""The kinds of attribute values that a column of each type accepts. A string column accepts all kinds."""


def column_name(attribute: str) -> str:
    """Converts `http.response.status_code` to `http_response_status_code`."""
    return re.sub(r"[^a-z0-9_]", "_", attribute.lower())


@dataclass(frozen=True)
class Promoted:
    attribute: str
    source: Source = "record"
    type: ValueType = "string"
    name: str = ""
    older: tuple[str, ...] = ()
    """Names of the attribute in older conventions. If `attribute` has no value, the first of these that has a
    value of the column's type is used.
    """
    bloom: bool = False
    """Whether data files have a Bloom filter of the column. Not part of how the column is filled."""

    @property
    def attributes(self) -> tuple[str, ...]:
        """All names, in the order in which they are tried."""
        return self.attribute, *self.older

    @property
    def column(self) -> str:
        return self.name or column_name(self.attribute)

    @property
    def arrow_type(self) -> pa.DataType:
        return ARROW_TYPES[self.type]


class Configuration(Protocol):
    """The part of the configuration that promotes attributes. This package does not depend on the rest."""

    @property
    def tables(self) -> Any: ...


def promoted(config: Configuration) -> tuple[Promoted, ...]:
    """Returns the columns that the configuration adds to every table."""
    return tuple(
        Promoted(first, item.source, item.type, item.name, tuple(older), item.bloom)
        for item in config.tables.promoted
        for first, *older in [item.attribute]
    )


DEFAULT_PROMOTED: tuple[Promoted, ...] = (
    Promoted("service.name", "resource"),
    Promoted("service.namespace", "resource"),
    Promoted("service.version", "resource"),
    Promoted("service.instance.id", "resource"),
    Promoted("deployment.environment.name", "resource", older=("deployment.environment",)),
    Promoted("host.name", "resource"),
    Promoted("k8s.cluster.name", "resource"),
    Promoted("k8s.namespace.name", "resource"),
    Promoted("k8s.pod.name", "resource"),
    Promoted("k8s.container.name", "resource"),
    Promoted("cloud.region", "resource"),
    Promoted("http.request.method", older=("http.method",)),
    Promoted("http.route"),
    Promoted("http.response.status_code", type="int", older=("http.status_code",)),
    Promoted("url.path"),
    Promoted("db.system.name", older=("db.system",)),
    Promoted("rpc.system.name", name="rpc_system", older=("rpc.system",)),
    Promoted("rpc.service"),
    Promoted("rpc.method"),
    Promoted("messaging.system"),
    Promoted("error.type"),
)
"""`older` lists the renames of OpenTelemetry's registry. `http.target` is not an older name of `url.path`: it
contains the path and the query string.
"""

SPANS_PROMOTED: tuple[Promoted, ...] = (
    Promoted("peer.service"),
    Promoted("server.address", older=("net.peer.name",)),
    Promoted("db.namespace", older=("db.name",)),
    Promoted("messaging.destination.name", older=("messaging.destination",)),
)
"""The columns that only spans have: `service_edges` names what a client called after them, so that no map is
read. `peer.address` is not an older name of `server.address`: it often contains a port.
"""


def promoted_of(signal: str, extra: Iterable[Promoted] = ()) -> tuple[Promoted, ...]:
    """Returns all promoted columns of a table. `extra` are those of the configuration. If one of them repeats
    a column that only spans have, from the same attribute, it decides whether the column has Bloom filters.
    """
    extra, own = tuple(extra), SPANS_PROMOTED if signal == "spans" else ()
    repeated = {(item.column, item.attribute, item.source, item.type): item for item in extra}
    found = [
        replace(item, bloom=repeated.pop(place).bloom) if place in repeated else item
        for item in own
        for place in [(item.column, item.attribute, item.source, item.type)]
    ]
    kept = [item for item in extra if (item.column, item.attribute, item.source, item.type) in repeated]
    return (*DEFAULT_PROMOTED, *found, *kept)


FILL_PROPERTY = "frazil.promoted."
"""Prefix of one table property per fingerprint, so that concurrent processes do not overwrite each other's.
"""
_FINGERPRINT = re.compile(r"\.p([0-9a-f]{12})\.parquet\Z")


def file_suffix(fingerprint: str) -> str:
    """Returns the end of a data file's name. An empty fingerprint means that the fill is unknown."""
    return f".p{fingerprint}.parquet" if fingerprint else ".parquet"


def fingerprint_of(path: str) -> str:
    """Returns the fingerprint in a data file's name; empty if there is none."""
    found = _FINGERPRINT.search(path)
    return "" if found is None else found[1]


@dataclass(frozen=True)
class Fill:
    """The rules by which promoted columns are filled now, and by which they were filled in existing files and
    segments.
    """

    promoted: Mapping[str, Promoted]
    """By column."""
    known: Mapping[str, Mapping[str, list[str]]] = field(default_factory=dict)
    """By fingerprint and column: source, type and attributes."""

    @classmethod
    def of(cls, promoted: Iterable[Promoted], properties: Mapping[str, str] | None = None) -> Fill:
        """Reads the known fingerprints from the table's properties."""
        known = {
            name.removeprefix(FILL_PROPERTY): columns
            for name, text in (properties or {}).items()
            if name.startswith(FILL_PROPERTY) and (columns := _read(text)) is not None
        }
        return cls({item.column: item for item in promoted}, known)

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(self._text.encode()).hexdigest()[:12]

    @property
    def properties(self) -> dict[str, str]:
        """The properties to set on a table before a file with the fingerprint is committed."""
        return {FILL_PROPERTY + self.fingerprint: self._text}

    def unfilled(self, fingerprint: str) -> frozenset[str]:
        """Returns the columns that a file or segment with this fingerprint filled differently. Without a
        fingerprint (an older version or another engine), these are the columns that have older names.
        """
        found = self._unfilled.get(fingerprint)
        if found is None:
            found = self._unfilled[fingerprint] = self._compare(fingerprint)
        return found

    def _compare(self, fingerprint: str) -> frozenset[str]:
        if fingerprint == self.fingerprint:
            return frozenset()
        if not fingerprint:
            return frozenset(name for name, item in self.promoted.items() if item.older)
        before = self.known.get(fingerprint, {})
        return frozenset(name for name in self.promoted if before.get(name) != self._columns[name])

    @cached_property
    def _unfilled(self) -> dict[str, frozenset[str]]:
        return {}

    @cached_property
    def _columns(self) -> dict[str, list[str]]:
        return {name: [item.source, item.type, *item.attributes] for name, item in self.promoted.items()}

    @cached_property
    def _text(self) -> str:
        return json.dumps(self._columns, sort_keys=True)


def _read(text: str) -> dict[str, list[str]] | None:
    """Returns None if the property is not a JSON object."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
