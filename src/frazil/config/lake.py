"""The tables: where they are, how data gets into them, and what that runs on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from frazil.config.s3 import S3Connection
from frazil.config.section import Section
from frazil.config.values import GIB, MIB, Bytes, Count, Listen, Seconds, bad_value

DAY_SECONDS = 86_400


class SqliteCatalog(Section):
    path: Path | None = Field(None, description="The database file. Absent: catalog.db below data_dir.")


class PostgresCatalog(Section):
    uri: SecretStr = Field(
        description="The database. It holds a password: better given as FRAZIL_LAKE__CATALOG__POSTGRES__URI.",
        examples=["postgresql://frazil:secret@db.example.com/frazil"],
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not re.match(r"postgres(ql)?://", self.uri.get_secret_value()):
            raise bad_value(
                "is not an address of PostgreSQL",
                "for example postgresql://USER:PASSWORD@HOST/DATABASE",
                "uri",
            )
        return self


class SigV4(Section):
    region: str = Field("us-east-1", min_length=1, description="The region that requests are signed for.")
    service: str = Field(
        "execute-api", min_length=1, description="The service that they are signed for: glue, s3tables, …"
    )


class RestCatalog(Section):
    uri: str = Field(
        pattern=r"^https?://\S+$",
        description="The address, as the catalog's documentation gives it (Lakekeeper, Polaris, Nessie, "
        "Unity, Glue, S3 Tables).",
        examples=["https://catalog.example.com/iceberg"],
    )
    warehouse: str | None = Field(
        None, description="The warehouse (Polaris: the catalog; Glue: the account id) to use there."
    )
    token: SecretStr | None = Field(None, description="A bearer token, for catalogs that take one.")
    credential: SecretStr | None = Field(
        None, description="CLIENT_ID:CLIENT_SECRET, which OAuth2 exchanges for tokens; not beside token."
    )
    oauth2_server_uri: str | None = Field(
        None, description="Where they are exchanged. Absent: the catalog itself."
    )
    scope: str | None = Field(None, description="The OAuth2 scope to ask for. Polaris: PRINCIPAL_ROLE:ALL.")
    sigv4: SigV4 | None = Field(
        None, description="{region, service}: sign requests as AWS wants it. Absent: they are not."
    )
    headers: dict[str, str] = Field(
        default_factory=dict,
        description="Headers to send with each request.",
        examples=[{"X-Team": "platform"}],
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.token is not None and self.credential is not None:
            raise bad_value("is given beside credential", "give one of the two", "token")
        return self


class CatalogConfig(Section):
    type: Literal["sqlite", "postgres", "rest"] = Field(
        "sqlite",
        description="Who knows the tables: a file on this machine, a PostgreSQL database, or an Iceberg REST "
        "catalog.",
    )
    name: str = Field(
        "frazil", pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$", description="What engines call the catalog."
    )
    sqlite: SqliteCatalog = Field(default_factory=SqliteCatalog, description="For type sqlite.")
    postgres: PostgresCatalog | None = Field(None, description="For type postgres.")
    rest: RestCatalog | None = Field(None, description="For type rest.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.type == "postgres" and self.postgres is None:
            raise bad_value(
                "is postgres, but there is no section lake.catalog.postgres",
                "add `postgres: {uri: postgresql://…}` below catalog",
                "type",
            )
        if self.type == "rest" and self.rest is None:
            raise bad_value(
                "is rest, but there is no section lake.catalog.rest",
                "add `rest: {uri: https://…}` below catalog",
                "type",
            )
        return self


class LakeConfig(Section):
    catalog: CatalogConfig = Field(
        default_factory=CatalogConfig, description="Any engine finds the tables through it."
    )
    namespace: str = Field(
        "otel",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$",
        description="The namespace of the tables.",
    )
    warehouse: str | None = Field(
        None,
        description="Where data files are: a folder, or s3://BUCKET/PREFIX. Absent: warehouse below "
        "data_dir; with a REST catalog, where that one says.",
        examples=["s3://telemetry/lake"],
    )
    s3: S3Connection = Field(default_factory=S3Connection, description="For a warehouse on S3.")
    shared_warehouse: bool = Field(
        False, description="Say that a warehouse folder is mounted on every machine of the Spark cluster."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.warehouse is not None and "://" in self.warehouse and not self.warehouse.startswith("s3://"):
            raise bad_value(
                "must be a folder or begin with s3://", "for example s3://telemetry/lake", "warehouse"
            )
        return self


class LandConfig(Section):
    bytes_min: Bytes = Field(
        64 * MIB,
        ge=1,
        description="A table lands when this much waits. More means larger files and fewer commits.",
    )
    age_max_seconds: Seconds | None = Field(
        None,
        ge=0,
        description="And when something has waited this long. Absent: 60s with segments, whose tail can be "
        "queried before, and 5s with Kafka, which has no tail.",
    )
    poll_interval_seconds: Seconds | None = Field(
        None,
        gt=0,
        description="How often to look for what waits. On S3 each look costs a LIST for each live stream. "
        "Absent: 1s on local disk and with Kafka, 5s on S3.",
    )
    batch_bytes_max: Bytes = Field(
        512 * MIB, ge=1 * MIB, description="The most that one commit lands. A backlog takes several commits."
    )
    task_bytes_max: Bytes = Field(
        16 * MIB,
        ge=64 * 1024,
        description="What one Spark task reads at most (a single larger segment aside). More means larger "
        "files, and more memory in each Python worker.",
    )
    horizon_past_seconds: Seconds = Field(
        30 * DAY_SECONDS,
        gt=0,
        description="`time` further back than this is set to the received time (the exact nanoseconds stay), "
        "so that a broken clock cannot make a partition for each day since 1970.",
    )
    horizon_ahead_seconds: Seconds = Field(
        DAY_SECONDS, gt=0, description="The same for `time` further ahead than this."
    )
    files_per_commit_max: Count = Field(
        5000,
        ge=1,
        description="The most data files that one commit adds. Each task writes a file for each tenant and "
        "day that it holds; when there are too many, commits take fewer tasks, down to one.",
    )
    compression_level: Count = Field(
        2, ge=1, le=19, description="zstd level of data files. Higher means fewer bytes and more CPU."
    )
    wal_grace_seconds: Seconds = Field(
        600,
        ge=0,
        description="How long segments are kept after they have landed, for queries that still read them.",
    )
    stream_idle_seconds: Seconds = Field(
        3600,
        ge=1,
        description="A stream silent for this long is closed, so that positions stay small. Receivers use "
        "none for longer than half of it.",
    )
    commit_deadline_seconds: Seconds = Field(
        1800,
        gt=0,
        description="A batch that could not be committed for this long is dropped and landed anew. Shorter "
        "than the age at which unknown files are removed.",
    )

    def age_max(self, wal_type: str) -> float:
        """`age_max_seconds`, or what suits the WAL."""
        if self.age_max_seconds is not None:
            return self.age_max_seconds
        return 5.0 if wal_type == "kafka" else 60.0

    def poll_interval(self, wal_type: str) -> float:
        """`poll_interval_seconds`, or what suits the WAL."""
        if self.poll_interval_seconds is not None:
            return self.poll_interval_seconds
        return 5.0 if wal_type == "s3" else 1.0


class SparkConfig(Section):
    master: str = Field(
        "local[*]",
        pattern=r"^(local(\[[^\]]+\])?|spark://\S+|yarn|k8s://\S+)$",
        description="Where Spark runs: on this machine (local[*]: all cores), or a cluster's master. A "
        "cluster needs this release of frazil in each worker's Python.",
        examples=["spark://master.example.com:7077"],
    )
    driver_memory_bytes: Bytes = Field(
        1 * GIB, ge=512 * MIB, description="The heap of the driver's JVM; with local, of all of Spark."
    )
    executor_memory_bytes: Bytes = Field(
        1 * GIB, ge=512 * MIB, description="The heap of each executor's JVM, on a cluster."
    )
    settings: dict[str, str] = Field(
        default_factory=dict,
        description="Settings of Spark, handed over as they are. On a standalone cluster (spark://), "
        "spark.cores.max is half of the cluster's cores for a pipeline and a quarter for a command, unless "
        "it is set here.",
        examples=[{"spark.executor.instances": "2"}],
    )

    @property
    def is_local(self) -> bool:
        return self.master.startswith("local")


class PipelineConfig(Section):
    listen: Listen = Field(
        "127.0.0.1:4381", description="host:port for the pipeline's health and metrics. Port 0: any free one."
    )
    lease_seconds: Seconds = Field(
        12,
        ge=1,
        le=60,
        description="Of several pipelines one works. When it has not been heard of for this long, another "
        "takes over. A sign of life is written every third of it: on S3 a PUT and a LIST; with Kafka and a "
        "shared catalog a commit.",
    )
