"""The requests and results of the query service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from frazil.lake.state.health import TableHealth
    from frazil.query.derived import DerivedInfo

Format = Literal["json", "csv", "arrow", "parquet"]
CONTENT_TYPES: Mapping[Format, str] = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "arrow": "application/vnd.apache.arrow.stream",
    "parquet": "application/vnd.apache.parquet",
}


@dataclass(frozen=True)
class AsOf:
    """A version of the tables: at a time (microseconds since 1970), in a snapshot, or under a tag."""

    time: int | None = None
    snapshot_id: int | None = None
    tag: str | None = None


@dataclass(frozen=True)
class Query:
    sql: str
    tenant: str
    params: Sequence[Any] = ()
    format: Format = "json"
    as_of: AsOf | None = None
    seconds_max: float | None = None
    """A time limit below the configured one."""
    rows_max: int | None = None
    """A row limit below the configured one. Further rows are dropped, and the query does not fail."""
    partial: bool = False
    """Skip data files that cannot be read now; `Stats.missing` tells how many."""
    unowned: bool = False
    """Also read rows without a tenant. Only for admins, or where no API keys are configured."""
    who: str = ""
    """The API key's name, for the audit log."""
    id: str = ""
    """Chosen by the client to watch or cancel the query; generated if empty."""


@dataclass(frozen=True)
class Stats:
    """Statistics of one query. `rows` and `seconds` are known when the result is complete."""

    id: str = ""
    rows: int | None = None
    seconds: float | None = None
    queued_seconds: float = 0.0
    files: int = 0
    """Data files chosen, out of the `files_total` data files that the tenant has in the tables."""
    files_total: int = 0
    bytes: int = 0
    """Bytes of the chosen data files; DuckDB reads only the columns and row groups that it needs."""
    tail_rows: int = 0
    """Rows that had not landed yet. Of a derived table, rows of its source that it did not have yet."""
    cached: bool = False
    stale: str | None = None
    """Why the result may be out of date: since when the catalog does not respond."""
    missing: Sequence[str] = ()
    """Descriptions of rows that the result should have and does not."""
    cut: bool = False
    """Rows beyond `rows_max` of the request were dropped."""
    snapshots: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class ResultColumn:
    name: str
    type: str
    """DuckDB's name of the type."""


@dataclass(frozen=True)
class QueryResult:
    """A result as the bytes of the requested format. `content` can be iterated once, and must be exhausted or
    closed: until then the query holds resources.
    """

    columns: Sequence[ResultColumn]
    stats: Stats
    content: AsyncIterator[bytes]
    format: Format


@dataclass(frozen=True)
class Progress:
    id: str
    tenant: str
    state: Literal["waiting", "planning", "running"]
    percent: float | None
    seconds: float


@dataclass(frozen=True)
class ColumnInfo:
    name: str
    type: str
    """The SQL name of the type."""
    doc: str
    source: str


@dataclass(frozen=True)
class TableInfo:
    """A table as one tenant sees it."""

    name: str
    doc: str
    columns: Sequence[ColumnInfo]
    rows: int | None
    """Landed rows of the tenant; None for a view, because counting would take a query."""
    tail_rows: int | None
    """Rows of the tenant that have not landed yet."""
    files: int
    bytes: int
    first_time: int | None
    last_time: int | None
    """Microseconds since 1970, of landed rows."""
    snapshot_id: int | None
    landed_at: int | None
    """When the last snapshot was committed, microseconds since 1970."""
    newest_time: int | None = None
    """Time of the tenant's newest row, landed or not, in microseconds since 1970."""
    is_view: bool = False
    derived: DerivedInfo | None = None
    """How far the table is derived. None for a table that is not derived."""
    health: TableHealth | None = None
    """Health of the tenant's files. None for a view, and before anything has landed."""
    whole: TableHealth | None = None
    """Health of all tenants' files; only for admins."""
