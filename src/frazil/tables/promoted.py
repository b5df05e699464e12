"""Attributes that get a column of their own.

A promoted column is a copy: the map it comes from stays complete. `source` says which map.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

Source = Literal["resource", "record"]
ValueType = Literal["string", "int", "double", "bool"]

ARROW_TYPES: dict[ValueType, pa.DataType] = {
    "string": pa.string(),
    "int": pa.int64(),
    "double": pa.float64(),
    "bool": pa.bool_(),
}


def column_name(attribute: str) -> str:
    """`http.response.status_code` is `http_response_status_code`."""
    return re.sub(r"[^a-z0-9_]", "_", attribute.lower())


@dataclass(frozen=True)
class Promoted:
    attribute: str
    source: Source = "record"
    type: ValueType = "string"
    name: str = ""

    @property
    def column(self) -> str:
        return self.name or column_name(self.attribute)

    @property
    def arrow_type(self) -> pa.DataType:
        return ARROW_TYPES[self.type]


DEFAULT_PROMOTED: tuple[Promoted, ...] = (
    Promoted("service.name", "resource"),
    Promoted("service.namespace", "resource"),
    Promoted("service.version", "resource"),
    Promoted("service.instance.id", "resource"),
    Promoted("deployment.environment.name", "resource"),
    Promoted("host.name", "resource"),
    Promoted("k8s.cluster.name", "resource"),
    Promoted("k8s.namespace.name", "resource"),
    Promoted("k8s.pod.name", "resource"),
    Promoted("k8s.container.name", "resource"),
    Promoted("cloud.region", "resource"),
    Promoted("http.request.method"),
    Promoted("http.route"),
    Promoted("http.response.status_code", type="int"),
    Promoted("url.path"),
    Promoted("db.system.name"),
    Promoted("rpc.system"),
    Promoted("rpc.service"),
    Promoted("rpc.method"),
    Promoted("messaging.system"),
    Promoted("error.type"),
)
