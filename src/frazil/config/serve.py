"""Asking: the SQL API, and what a question may cost."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from frazil.config.section import Section
from frazil.config.tls import TlsConfig
from frazil.config.values import GIB, KIB, MIB, Bytes, Count, Listen, Origin, Seconds, local_url


class ServeConfig(Section):
    listen: Listen = Field("127.0.0.1:4380", description="host:port of the API. Port 0 takes any free port.")
    tls: TlsConfig | None = Field(None, description="TLS on the API. Absent: plain text.")
    cors_origins: tuple[Origin, ...] = Field(
        (),
        description="Web pages that may ask from a browser: exact origins, or * alone for all. Empty: none.",
        examples=["https://app.example.com"],
    )

    @property
    def url(self) -> str:
        """Where a client on this machine asks."""
        return local_url(self.listen, tls=self.tls is not None)


class QueryConfig(Section):
    workers: Count = Field(
        2,
        ge=1,
        le=64,
        description="Queries that run at the same time, each in a process of its own (about 120 MB idle). "
        "If several tenants have keys, one more idle process is kept.",
    )
    threads: Count = Field(
        0,
        ge=0,
        description="Threads of each query. 0: as many as there are cores; more only get in the way.",
    )
    memory_bytes_max: Bytes = Field(
        1 * GIB,
        ge=64 * MIB,
        description="Memory of one query. What needs more goes to temporary files, then fails.",
    )
    temp_bytes_max: Bytes = Field(
        4 * GIB, ge=0, description="Temporary files of one query. What needs more fails."
    )
    temp_dir: Path | None = Field(
        None, description="Where temporary files go. Absent: the system's folder for them."
    )
    seconds_max: Seconds = Field(
        30, gt=0, description="How long a query may run. A request can ask for less, not for more."
    )
    rows_max: Count = Field(
        1_000_000, ge=1, description="Rows of one result. What has more is refused: aggregate, or LIMIT."
    )
    result_bytes_max: Bytes = Field(256 * MIB, ge=1 * MIB, description="Bytes of one result, as sent.")
    sql_bytes_max: Bytes = Field(
        64 * KIB, ge=1 * KIB, le=1 * MIB, description="The longest SQL that is looked at."
    )
    queue_max: Count = Field(
        64,
        ge=0,
        description="Queries of one tenant that may wait for a worker. Tenants take turns, whoever waits.",
    )
    queue_seconds_max: Seconds = Field(
        30, ge=0, description="How long a query may wait for a worker before it is told to come again."
    )
    tail_bytes_max: Bytes = Field(
        1 * GIB,
        ge=16 * MIB,
        description="Decoded rows that have not landed yet, kept for 60 s after the last query that used "
        "them. Tenants have equal shares. When landing stands still and more waits, queries see the newest "
        "rows of each table, and results say so.",
    )
    metadata_age_max_seconds: Seconds = Field(
        1,
        ge=0,
        description="How old the knowledge of what has landed may be. Answers are as fresh either way; with "
        "Kafka there is no tail, and they are not.",
    )
    result_cache_bytes_max: Bytes = Field(
        64 * MIB, ge=0, description="Answers kept for who asks the same of unchanged tables. 0: none."
    )
    audit_file: Path | None = Field(
        None, description="Where each query is noted, without its data. Absent: in frazil's own log."
    )
