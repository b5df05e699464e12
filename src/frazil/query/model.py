"""What goes in and out of the query service, and between its parts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from frazil.lake.state.health import TableHealth

Format = Literal["json", "csv", "arrow", "parquet"]
CONTENT_TYPES: Mapping[Format, str] = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "arrow": "application/vnd.apache.arrow.stream",
    "parquet": "application/vnd.apache.parquet",
}


@dataclass(frozen=True)
class AsOf:
    """What the tables held then: at a time (microseconds since 1970), in a snapshot, or under a tag."""

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
    """Less than the configured limit."""
    rows_max: int | None = None
    """Less than the configured limit. More rows are cut off, not refused."""
    partial: bool = False
    """Answer without files that cannot be read now, and say how many."""
    unowned: bool = False
    """Read also the rows of tables that have no tenant: only for admins, and without API keys."""
    who: str = ""
    """The API key's name, for the audit."""
    id: str = ""
    """Chosen by who asks, to watch or cancel it by; else made here."""


@dataclass(frozen=True)
class Stats:
    """What an answer was made of. `rows` and `seconds` are known when it is complete."""

    id: str = ""
    rows: int | None = None
    seconds: float | None = None
    queued_seconds: float = 0.0
    files: int = 0
    """Data files that were read, of `files_total` that the tables (of the tenant) have."""
    files_total: int = 0
    bytes: int = 0
    """Their size; DuckDB reads only the columns and row groups that it needs."""
    tail_rows: int = 0
    """Rows that had not landed yet."""
    cached: bool = False
    stale: str | None = None
    """Why the answer may be behind: the catalog does not answer, since when."""
    missing: Sequence[str] = ()
    """What is not in the answer though it was asked for."""
    cut: bool = False
    """There are more rows; the question wanted no more than these."""
    snapshots: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class ResultColumn:
    name: str
    type: str
    """As DuckDB calls it."""


@dataclass(frozen=True)
class QueryResult:
    """`content` is the whole body in the format asked for. It can be iterated once, and must be exhausted or
    closed: a worker waits for it.
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
    """As SQL people write it."""
    doc: str
    source: str


@dataclass(frozen=True)
class TableInfo:
    """A table as one tenant sees it."""

    name: str
    doc: str
    columns: Sequence[ColumnInfo]
    rows: int | None
    """Landed rows of the tenant; None for a view, which would have to be counted."""
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
    """Microseconds since 1970, of the tenant's newest row, landed or not: what a query sees."""
    is_view: bool = False
    health: TableHealth | None = None
    """Of the tenant's files. None for a view, and before anything has landed."""
    whole: TableHealth | None = None
    """Of all tenants' files, for those who may know."""
