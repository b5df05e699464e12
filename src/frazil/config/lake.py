"""Configuration of the Iceberg tables, of landing, and of Spark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from frazil.config.connection import S3Connection
from frazil.config.values import GIB, MIB, Bytes, Count, Listen, Seconds, Section, bad_value, require_section

DAY_SECONDS = 86_400


class SqliteCatalog(Section):
    path: Path | None = Field(None, description="Database file. Absent: catalog.db below data_dir.")


class PostgresCatalog(Section):
    uri: SecretStr = Field(
        description="Database URI. If it contains a password, prefer the variable "
        "FRAZIL_LAKE__CATALOG__POSTGRES__URI.",
        examples=["postgresql://frazil:secret@db.example.com/frazil"],
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not re.match(r"postgres(ql)?://", self.uri.get_secret_value()):
            raise bad_value(
                "is not a PostgreSQL URI", "for example postgresql://USER:PASSWORD@HOST/DATABASE", "uri"
            )
        return self


class SigV4(Section):
    region: str = Field("us-east-1", min_length=1, description="Region to sign requests for.")
    service: str = Field(
        "execute-api", min_length=1, description="Service to sign requests for, such as glue or s3tables."
    )


class RestCatalog(Section):
    uri: str = Field(
        pattern=r"^https?://\S+$",
        description="URI from the catalog's documentation (Lakekeeper, Polaris, Nessie, Unity, Glue, S3 "
        "Tables).",
        examples=["https://catalog.example.com/iceberg"],
    )
    warehouse: str | None = Field(
        None, description="Warehouse name (Polaris: the catalog name; Glue: the account ID)."
    )
    token: SecretStr | None = Field(None, description="Bearer token. Excludes credential.")
    credential: SecretStr | None = Field(
        None, description="CLIENT_ID:CLIENT_SECRET for OAuth2. Excludes token."
    )
    oauth2_server_uri: str | None = Field(None, description="OAuth2 server. Absent: the catalog itself.")
    scope: str | None = Field(None, description="OAuth2 scope. For Polaris: PRINCIPAL_ROLE:ALL.")
    sigv4: SigV4 | None = Field(None, description="Sign requests with AWS SigV4. Absent: not signed.")
    headers: dict[str, str] = Field(
        {}, description="Additional headers of each request.", examples=[{"X-Team": "platform"}]
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.token is not None and self.credential is not None:
            raise bad_value("and credential are both set", "set only one of them", "token")
        return self


class CatalogConfig(Section):
    type: Literal["sqlite", "postgres", "rest"] = Field(
        "sqlite", description="Iceberg catalog: a SQLite file, a PostgreSQL database, or a REST catalog."
    )
    name: str = Field(
        "frazil", pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$", description="Catalog name in query engines."
    )
    sqlite: SqliteCatalog = Field(SqliteCatalog(), description="For type sqlite.")
    postgres: PostgresCatalog | None = Field(None, description="For type postgres.")
    rest: RestCatalog | None = Field(None, description="For type rest.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        hints = {
            "postgres": "add `postgres: {uri: postgresql://…}` below catalog",
            "rest": "add `rest: {uri: https://…}` below catalog",
        }
        require_section(self, self.type, "lake.catalog", hints)
        return self


class LakeConfig(Section):
    catalog: CatalogConfig = Field(
        CatalogConfig(), description="Iceberg catalog. Any engine finds the tables through it."
    )
    namespace: str = Field(
        "otel",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$",
        description="Namespace of the tables.",
    )
    warehouse: str | None = Field(
        None,
        description="Location of the data files: a directory, or s3://BUCKET/PREFIX. Absent: warehouse below "
        "data_dir; with a REST catalog, the catalog decides.",
        examples=["s3://telemetry/lake"],
    )
    s3: S3Connection = Field(S3Connection(), description="Object store, for a warehouse on S3.")
    shared_warehouse: bool = Field(
        False, description="The warehouse directory is mounted on every machine of the Spark cluster."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.warehouse is not None and "://" in self.warehouse and not self.warehouse.startswith("s3://"):
            raise bad_value(
                "must be a directory or an s3:// URL", "for example s3://telemetry/lake", "warehouse"
            )
        return self


class LandConfig(Section):
    bytes_min: Bytes = Field(
        64 * MIB,
        ge=1,
        description="A table lands when this many bytes wait. More makes larger files and fewer commits.",
    )
    age_max_seconds: Seconds | None = Field(
        None,
        ge=0,
        description="A table also lands when data has waited this long. Absent: 60s for local and s3, where "
        "data can be queried before it lands; 5s for Kafka, where it cannot.",
    )
    poll_interval_seconds: Seconds | None = Field(
        None,
        gt=0,
        description="Interval between checks for new data. On S3 each check costs one LIST per live stream. "
        "Absent: 1s for local and kafka, 5s for s3.",
    )
    batch_bytes_max: Bytes = Field(
        512 * MIB, ge=1 * MIB, description="Maximum bytes per commit. A backlog takes several commits."
    )
    task_bytes_max: Bytes = Field(
        16 * MIB,
        ge=64 * 1024,
        description="Maximum bytes that one Spark task reads (except for a single larger segment). More "
        "makes larger files and uses more memory in each Python worker.",
    )
    horizon_past_seconds: Seconds = Field(
        30 * DAY_SECONDS,
        gt=0,
        description="If a record's time is older than this, its `time` is set to the time of receipt (the "
        "original nanoseconds are kept). A client with a wrong clock could otherwise create a partition for "
        "each day since 1970.",
    )
    horizon_ahead_seconds: Seconds = Field(
        DAY_SECONDS, gt=0, description="The same for times further in the future than this."
    )
    files_per_commit_max: Count = Field(
        5000,
        ge=1,
        description="Maximum data files per commit. Each task writes one file per tenant and day. If there "
        "are too many, commits contain fewer tasks, but at least one.",
    )
    compression_level: Count = Field(
        2, ge=1, le=19, description="zstd level of data files. A higher level saves bytes and costs CPU."
    )
    wal_grace_seconds: Seconds = Field(
        600, ge=0, description="How long segments are kept after landing, for queries that still read them."
    )
    stream_idle_seconds: Seconds = Field(
        3600,
        ge=1,
        description="A stream without new segments for this long is closed, to keep the recorded positions "
        "small. A receiver starts a new stream after half of this time without requests.",
    )
    commit_deadline_seconds: Seconds = Field(
        1800,
        gt=0,
        description="A batch that could not be committed within this time is discarded and landed again. "
        "Must be at most half of maintain.orphans.age_seconds.",
    )

    def age_max(self, wal_type: str) -> float:
        """Return `age_max_seconds`, or the default for the WAL type."""
        if self.age_max_seconds is not None:
            return self.age_max_seconds
        return 5.0 if wal_type == "kafka" else 60.0

    def poll_interval(self, wal_type: str) -> float:
        """Return `poll_interval_seconds`, or the default for the WAL type."""
        if self.poll_interval_seconds is not None:
            return self.poll_interval_seconds
        return 5.0 if wal_type == "s3" else 1.0


class SparkConfig(Section):
    master: str = Field(
        "local[*]",
        pattern=r"^(local(\[[^\]]+\])?|spark://\S+|yarn|k8s://\S+)$",
        description="Spark master: this machine (local[*]: all cores) or a cluster. On a cluster, each "
        "worker's Python needs the same release of frazil.",
        examples=["spark://master.example.com:7077"],
    )
    driver_memory_bytes: Bytes = Field(
        1 * GIB, ge=512 * MIB, description="JVM heap of the driver (with local: of all of Spark)."
    )
    executor_memory_bytes: Bytes = Field(
        1 * GIB, ge=512 * MIB, description="JVM heap of each executor, on a cluster."
    )
    settings: dict[str, str] = Field(
        {},
        description="Additional Spark settings. On a standalone cluster (spark://), spark.cores.max defaults "
        "to half of the cluster's cores for a pipeline and a quarter for a command.",
        examples=[{"spark.executor.instances": "2"}],
    )

    @property
    def is_local(self) -> bool:
        return self.master.startswith("local")


class PipelineConfig(Section):
    listen: Listen = Field(
        "127.0.0.1:4381",
        description="host:port of the pipeline's health and metrics endpoints. Port 0: any free port.",
    )
    lease_seconds: Seconds = Field(
        12,
        ge=1,
        le=60,
        description="One of several pipelines is active. If it does not renew its lease for this long, "
        "another takes over. The lease is renewed every third of this time, which costs a PUT and a LIST on "
        "S3, or a commit with Kafka and a shared catalog.",
    )
