"""How a table says that rows were erased from it, to whoever has kept something of it."""

from __future__ import annotations

from pyiceberg.table.metadata import TableMetadata

ERASED = "frazil.erased"
"""In the summary of a snapshot that erases, and in the table's properties when all is done: the id of the
erasure. What was erased it does not say.
"""
ERASED_TENANT = "frazil.erased-tenant"
"""Beside it: whose rows they were."""


def erasures(metadata: TableMetadata) -> frozenset[str]:
    """The ids of all that the metadata still tells of."""
    summaries = [snapshot.summary for snapshot in metadata.snapshots if snapshot.summary is not None]
    found = {summary.additional_properties.get(ERASED) for summary in summaries}
    found.add(metadata.properties.get(ERASED))
    return frozenset(each for each in found if each)


def erased_tenants(metadata: TableMetadata) -> frozenset[str]:
    summaries = [snapshot.summary for snapshot in metadata.snapshots if snapshot.summary is not None]
    found = {summary.additional_properties.get(ERASED_TENANT) for summary in summaries}
    return frozenset(each for each in found if each)
