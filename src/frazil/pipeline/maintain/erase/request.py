"""The request for an erasure. Imports no Spark: commands send it to a running pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frazil.errors import Refused


@dataclass(frozen=True)
class EraseRequest:
    """An operator's request. No `tables` means all tables."""

    tenant: str
    where: str
    tables: Sequence[str] = ()
    drop_tags: bool = False
    drop_set_aside: bool = False
    delete_kafka_records: bool = False
    yes: bool = False
    """Allows an erasure that matches all rows of the tenant."""
    dry_run: bool = False


class EverythingMatches(Refused):
    """All rows of the tenant would be erased, which needs `yes`."""
