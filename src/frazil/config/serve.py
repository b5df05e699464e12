"""Configuration of the API, its queries, and the dashboard."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from frazil.config.connection import TlsConfig
from frazil.config.values import GIB, KIB, MIB, Bytes, Count, Listen, Origin, Seconds, Section, local_url


class ServeConfig(Section):
    listen: Listen = Field("127.0.0.1:4380", description="host:port of the API. Port 0: any free port.")
    tls: TlsConfig | None = Field(None, description="TLS for the API. Absent: plain text.")
    cors_origins: tuple[Origin, ...] = Field(
        (),
        description="Origins of web pages that may query from a browser: exact origins, or only * for all. "
        "Empty: none.",
        examples=["https://app.example.com"],
    )

    @property
    def url(self) -> str:
        """The URL for clients on this machine."""
        return local_url(self.listen, tls=self.tls is not None)


class QueryConfig(Section):
    workers: Count = Field(
        2,
        ge=1,
        le=64,
        description="Number of queries that run at the same time, each in its own process (about 120 MB when "
        "idle). If several tenants have keys, one more idle process is kept.",
    )
    threads: Count = Field(
        0, ge=0, description="Threads per query. 0: one per core. More threads than cores do not help."
    )
    memory_bytes_max: Bytes = Field(
        1 * GIB,
        ge=64 * MIB,
        description="Memory limit per query. Above it, a query uses temporary files if it can, or fails.",
    )
    temp_bytes_max: Bytes = Field(
        4 * GIB, ge=0, description="Maximum size of the temporary files of one query. Above it, it fails."
    )
    temp_dir: Path | None = Field(
        None, description="Directory for temporary files. Absent: the system's temporary directory."
    )
    seconds_max: Seconds = Field(
        30, gt=0, description="Query timeout. A request can set a shorter timeout, not a longer one."
    )
    rows_max: Count = Field(
        1_000_000,
        ge=1,
        description="Maximum rows of a result. A query with more rows fails: aggregate, or add LIMIT.",
    )
    result_bytes_max: Bytes = Field(256 * MIB, ge=1 * MIB, description="Maximum bytes of a result, as sent.")
    sql_bytes_max: Bytes = Field(
        64 * KIB, ge=1 * KIB, le=1 * MIB, description="Maximum length of a SQL statement."
    )
    queue_max: Count = Field(
        64,
        ge=0,
        description="Maximum number of queries per tenant that wait for a worker. Tenants are served in "
        "turn.",
    )
    queue_seconds_max: Seconds = Field(
        30,
        ge=0,
        description="Maximum time that a query waits for a worker before it fails with a retryable error.",
    )
    tail_bytes_max: Bytes = Field(
        1 * GIB,
        ge=16 * MIB,
        description="Memory for decoded rows that have not landed yet. Rows are kept for 60 s after the last "
        "query that used them. Tenants have equal shares. If landing stops and more rows wait than fit, "
        "queries see the newest rows of each table, and results say so.",
    )
    metadata_age_max_seconds: Seconds = Field(
        1,
        ge=0,
        description="Maximum age of cached table metadata. It does not delay fresh rows, which come from the "
        "tail; with Kafka, which has no tail, it does.",
    )
    result_cache_bytes_max: Bytes = Field(
        64 * MIB,
        ge=0,
        description="Memory for cached results. A result is reused for the same query while its tables are "
        "unchanged. 0: no cache.",
    )
    audit_file: Path | None = Field(
        None, description="File that records each query, without its data. Absent: frazil's own log."
    )


class DashboardConfig(Section):
    enabled: bool = Field(True, description="Start the dashboard with `frazil up`. Uses about 200 MB.")
    listen: Listen = Field("127.0.0.1:8501", description="host:port of the dashboard. Port 0: any free port.")
    tls: TlsConfig | None = Field(None, description="TLS for the dashboard. Absent: plain text.")
    api_url: str | None = Field(
        None,
        description="URL of the API that the dashboard queries. Absent: the API at serve.listen.",
        examples=["https://frazil.example.com"],
    )
    api_ca_file: Path | None = Field(
        None,
        description="CA certificates (PEM) for api_url. Absent: the system's. For the API at serve.listen, "
        "its own certificate is trusted.",
    )
    session_seconds: Seconds = Field(
        12 * 3600,
        gt=0,
        description="A login expires after this time without activity (opening a page, or changing something "
        "on it; auto-refresh does not count). Logins are kept in memory: a restart ends them.",
    )
    sockets_max: Count = Field(
        200, ge=1, description="Maximum number of open pages. Each has a websocket and a session in memory."
    )
    sockets_per_address_max: Count = Field(
        50,
        ge=1,
        description="Maximum number of open pages per client address. All clients behind a proxy share its "
        "address, unless the proxy runs on this machine and sends X-Forwarded-For.",
    )

    @property
    def url(self) -> str:
        """The URL for browsers on this machine."""
        return local_url(self.listen, tls=self.tls is not None)
