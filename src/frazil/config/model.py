"""The root of the configuration, and its small sections."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from frazil.config.derive import DeriveConfig, ViewConfig, ViewName
from frazil.config.lake import LakeConfig, LandConfig, PipelineConfig, SparkConfig
from frazil.config.maintain import MaintainConfig
from frazil.config.receive import AuthConfig, ReceiveConfig, TenantsConfig
from frazil.config.serve import DashboardConfig, QueryConfig, ServeConfig
from frazil.config.status import StatusConfig
from frazil.config.telemetry import TelemetryConfig, check_own_receiver
from frazil.config.values import AttributeNames, ColumnName, Rate, Section, bad_value, column_for, is_loopback
from frazil.config.wal import WalConfig

_URL = r"^https?://[^\s/?#@]+(/[^\s?#]*)?$"


class LogConfig(Section):
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="Minimum severity.")
    format: Literal["auto", "console", "json"] = Field(
        "auto",
        description="console: for people. json: for machines. auto: console on a terminal, otherwise json.",
    )


class PromotedColumn(Section):
    attribute: AttributeNames = Field(
        description="Attribute that gets a column, or a list: the first one that a record has is used.",
        examples=["http.route"],
    )
    source: Literal["resource", "record"] = Field(
        "record", description="Take the value from the resource's attributes or from the record's."
    )
    type: Literal["string", "int", "double", "bool"] = Field(
        "string",
        description="Column type: string, int, double or bool. Values of other types are only in the map of "
        "attributes. The type cannot change once a table has the column.",
    )
    column: ColumnName | None = Field(
        None,
        description="Column name. Absent: the first attribute in lower case, with _ for other characters.",
    )
    bloom: bool = Field(
        False,
        description="Whether new data files have a Bloom filter of the column. Queries, `frazil erase` and "
        "retention rules with `column = 'x'` or `column IN (…)` then skip files without the value. For "
        "strings and ints with many distinct values, such as user ids. Costs 128 KiB per 100,000 distinct "
        "values in each row group.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.bloom and self.type in ("double", "bool"):
            raise bad_value(
                f"cannot have a Bloom filter: the column's type is {self.type}",
                "leave bloom out, or set type to string or int",
                "bloom",
            )
        return self

    @property
    def name(self) -> str:
        """`column`, or the name derived from the first attribute."""
        return column_for(self.attribute[0]) if self.column is None else self.column


class TablesConfig(Section):
    promoted: tuple[PromotedColumn, ...] = Field(
        (),
        description="Attributes that get their own columns, in addition to the built-in ones. They are fast "
        "to filter and cost a few bytes per row. If you remove an entry, queries no longer have its "
        "column. The column stays in the Iceberg tables, with NULL in new files; the attribute stays in the "
        "map.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [promoted.name for promoted in self.promoted]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            raise bad_value(
                f"defines column {duplicates[0]} twice", "set another `column` for one of them", "promoted"
            )
        return self


class DemoConfig(Section):
    enabled: bool = Field(False, description="Let `frazil up` send itself the telemetry of a simulated shop.")
    traces_per_second: Rate = Field(
        5, gt=0, le=10_000, description="Traces per second, each with logs and metrics. A trace is a few KB."
    )


class ClientConfig(Section):
    url: str | None = Field(
        None,
        pattern=_URL,
        description="URL of the API for `frazil query`, `frazil status` and `frazil.connect()`. Absent: the "
        "API at serve.listen.",
        examples=["https://frazil.example.com"],
    )
    endpoint: str | None = Field(
        None,
        pattern=_URL,
        description="URL of the receiver for `frazil demo`. Absent: the receiver at receive.grpc.listen or "
        "receive.http.listen.",
        examples=["https://frazil.example.com:4317"],
    )
    api_key: SecretStr | None = Field(
        None,
        description="API key; @FILE reads it from a file. The environment variable FRAZIL_API_KEY takes "
        "precedence.",
        examples=["@/etc/frazil/api-key"],
    )
    ca_file: Path | None = Field(
        None,
        description="CA certificates (PEM) for url and endpoint. Absent: the system's.",
        examples=["/etc/frazil/ca.crt"],
    )

    @property
    def api_key_file(self) -> Path | None:
        """The file that `api_key` names with @, if it does."""
        text = "" if self.api_key is None else self.api_key.get_secret_value()
        return Path(text[1:]) if text.startswith("@") else None


class Config(Section):
    """The complete configuration, as returned by `load_config`."""

    data_dir: Path = Field(
        Path("./frazil-data"), description="Directory for frazil's files, relative to the working directory."
    )
    log: LogConfig = Field(LogConfig(), description="frazil's own log, on standard error.")
    receive: ReceiveConfig = Field(ReceiveConfig(), description="OTLP receiver.")
    auth: AuthConfig = Field(AuthConfig(), description="API keys and their roles.")
    tenants: TenantsConfig = Field(TenantsConfig(), description="Tenants and their rate limits.")
    wal: WalConfig = Field(
        WalConfig(), description="Write-ahead log. Requests are acknowledged after they are durable in it."
    )
    tables: TablesConfig = Field(TablesConfig(), description="Columns of the tables.")
    lake: LakeConfig = Field(LakeConfig(), description="Location and catalog of the Iceberg tables.")
    land: LandConfig = Field(LandConfig(), description="Landing: moving data from the WAL into the tables.")
    spark: SparkConfig = Field(SparkConfig(), description="Spark, which runs landing and maintenance.")
    pipeline: PipelineConfig = Field(
        PipelineConfig(), description="The process that runs landing and maintenance."
    )
    derive: DeriveConfig = Field(
        DeriveConfig(), description="Derived tables: rollups and summaries of logs, spans and metrics."
    )
    views: dict[ViewName, ViewConfig] = Field(
        {},
        description="Views: derived tables that are declared in Spark SQL, by name (docs/views.md).",
        examples=[{"checkout_by_region": {"sql": "views/checkout_by_region.sql", "kept": "90d"}}],
    )
    maintain: MaintainConfig = Field(
        MaintainConfig(), description="Maintenance: compaction, snapshot expiry, retention, tiering."
    )
    serve: ServeConfig = Field(ServeConfig(), description="The query API.")
    query: QueryConfig = Field(QueryConfig(), description="Resources and limits of queries.")
    status: StatusConfig = Field(
        StatusConfig(), description="Overall status: addresses of all roles, and service level objectives."
    )
    telemetry: TelemetryConfig = Field(
        TelemetryConfig(), description="frazil's own traces and logs, sent over OTLP."
    )
    dashboard: DashboardConfig = Field(DashboardConfig(), description="The dashboard.")
    demo: DemoConfig = Field(DemoConfig(), description="Demo traffic.")
    client: ClientConfig = Field(
        ClientConfig(),
        description="What the client commands use if an option is not given. The roles do not use it.",
    )

    @property
    def wal_dir(self) -> Path:
        """`wal.local.path`, or `wal` below `data_dir`."""
        return self.data_dir / "wal" if self.wal.local.path is None else self.wal.local.path

    @property
    def warehouse(self) -> str:
        """`lake.warehouse`, or `warehouse` below `data_dir`, as an absolute path or an s3:// URL."""
        if self.lake.warehouse is None:
            return str((self.data_dir / "warehouse").absolute())
        if self.lake.warehouse.startswith("s3://"):
            return self.lake.warehouse.rstrip("/")
        return str(Path(self.lake.warehouse).absolute())

    @property
    def tier_location(self) -> str | None:
        """`maintain.tier.location` as an absolute path or an s3:// URL."""
        if self.maintain.tier is None:
            return None
        location = self.maintain.tier.location
        return location.rstrip("/") if location.startswith("s3://") else str(Path(location).absolute())

    @property
    def catalog_file(self) -> Path:
        """`lake.catalog.sqlite.path`, or `catalog.db` below `data_dir`."""
        path = self.lake.catalog.sqlite.path
        return (self.data_dir / "catalog.db" if path is None else path).absolute()

    @model_validator(mode="after")
    def _check_maintain(self) -> Self:
        """Check that nothing is deleted while a commit or a query may still need it."""
        orphans, expire = self.maintain.orphans.age_seconds, self.maintain.expire.kept_seconds
        if orphans < 2 * self.land.commit_deadline_seconds:
            raise bad_value(
                "is less than twice land.commit_deadline_seconds: uncommitted files could be deleted",
                f"set it to at least {2 * self.land.commit_deadline_seconds:g}s, or shorten the deadline",
                "maintain.orphans.age_seconds",
            )
        needed = max(self.land.wal_grace_seconds, 2 * self.query.seconds_max)
        if expire < needed:
            raise bad_value(
                "is too short: running queries (query.seconds_max) and the cleanup of the write-ahead log "
                "(land.wal_grace_seconds) need newer snapshots",
                f"set it to at least {needed:g}s",
                "maintain.expire.kept_seconds",
            )
        return self

    @model_validator(mode="after")
    def _check_tier(self) -> Self:
        """Check the location of the tier.

        If a REST catalog decides where tables are, the comparison with the warehouse happens at startup.
        """
        tier, location = self.maintain.tier, self.tier_location
        if tier is None or location is None:
            return self
        on_s3, key = location.startswith("s3://"), "maintain.tier.location"
        if not on_s3 and ("://" in tier.location or tier.location.startswith("file:")):
            raise bad_value("must be a directory or an s3:// URL", "for example s3://telemetry/colder", key)
        if on_s3 and not location.removeprefix("s3://").partition("/")[0]:
            raise bad_value("names no bucket", "for example s3://telemetry/colder", key)
        if tier.storage_class is not None and not on_s3:
            raise bad_value(
                "applies to S3 only, but maintain.tier.location is a directory",
                "remove it",
                "maintain.tier.storage_class",
            )
        if self.lake.catalog.type == "rest" and self.lake.warehouse is None:
            return self
        if on_s3 != self.warehouse.startswith("s3://"):
            raise bad_value(
                f"must be of the same kind as the warehouse ({self.warehouse})",
                "use a directory if the warehouse is a directory, s3://BUCKET/PREFIX if it is on S3",
                key,
            )
        others = [self.warehouse] if on_s3 else [self.warehouse, str(self.wal_dir.absolute())]
        for other in others:
            if f"{location}/".startswith(f"{other}/") or f"{other}/".startswith(f"{location}/"):
                raise bad_value(f"overlaps with {other}", "use a location outside of it", key)
        return self

    @model_validator(mode="after")
    def _check_telemetry(self) -> Self:
        writers = {key.hash for key in self.auth.keys if "write" in key.roles}
        check_own_receiver(
            self.telemetry, writers, grpc_enabled=self.receive.grpc.enabled, key_required=bool(self.auth.keys)
        )
        return self

    @model_validator(mode="after")
    def _check_spark(self) -> Self:
        if self.spark.is_local:
            return self
        if self.wal.type == "local":
            raise bad_value(
                "is a cluster, but its workers may not be able to read this machine's WAL directory",
                "use wal.type s3 or kafka, or spark.master local[*]",
                "spark.master",
            )
        elsewhere = self.lake.catalog.type == "rest" and self.lake.warehouse is None
        if not (elsewhere or self.warehouse.startswith("s3://") or self.lake.shared_warehouse):
            raise bad_value(
                "is a cluster, but its workers may not be able to read this machine's warehouse directory",
                "use lake.warehouse s3://BUCKET/PREFIX; if all machines mount the directory, set "
                "lake.shared_warehouse: true",
                "spark.master",
            )
        return self

    @model_validator(mode="after")
    def _check_public_listeners(self) -> Self:
        if self.auth.keys:
            return self
        for key, listen in (("serve.listen", self.serve.listen), ("dashboard.listen", self.dashboard.listen)):
            if not is_loopback(listen):
                raise bad_value(
                    "is reachable from other machines, but no API key is configured",
                    "add a key (`frazil keys new --tenant NAME`), or listen on 127.0.0.1",
                    key,
                )
        if self.receive.allow_anonymous:
            return self
        listeners = {"receive.http.listen": self.receive.http.listen}
        if self.receive.grpc.enabled:
            listeners["receive.grpc.listen"] = self.receive.grpc.listen
        public = [key for key, listen in listeners.items() if not is_loopback(listen)]
        if public:
            others = "".join(f" (and {key})" for key in public[1:])
            raise bad_value(
                f"is reachable from other machines{others}, but no API key is configured",
                "add a key (`frazil keys new --tenant NAME`), listen on 127.0.0.1, "
                "or set receive.allow_anonymous: true",
                public[0],
            )
        return self
