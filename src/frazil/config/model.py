"""Everything that can be configured. Frozen; each field says what it does and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from frazil.config.dashboard import DashboardConfig
from frazil.config.lake import LakeConfig, LandConfig, PipelineConfig, SparkConfig
from frazil.config.maintain import MaintainConfig
from frazil.config.section import Section
from frazil.config.serve import QueryConfig, ServeConfig
from frazil.config.status import StatusConfig
from frazil.config.telemetry import TelemetryConfig, check_into_itself
from frazil.config.tls import TlsConfig
from frazil.config.values import (
    KIB,
    MIB,
    AttributeNames,
    Bytes,
    ColumnName,
    Count,
    KeyHash,
    Listen,
    Origin,
    Rate,
    Seconds,
    TenantId,
    UrlPath,
    bad_value,
    column_for,
    is_loopback,
    local_url,
)
from frazil.config.wal import WalConfig

Role = Literal["read", "write", "admin"]


class LogConfig(Section):
    level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The least severe message that is printed."
    )
    format: Literal["auto", "console", "json"] = Field(
        "auto",
        description="console is for people, json for machines; auto is console on a terminal, else json.",
    )


class HttpConfig(Section):
    listen: Listen = Field(
        "127.0.0.1:4318", description="host:port for OTLP/HTTP. Port 0 takes any free port."
    )
    logs_path: UrlPath = Field("/v1/logs", description="The path that logs are posted to.")
    traces_path: UrlPath = Field("/v1/traces", description="The path that traces are posted to.")
    metrics_path: UrlPath = Field("/v1/metrics", description="The path that metrics are posted to.")
    header_timeout_seconds: Seconds = Field(
        30,
        gt=0,
        description="The longest wait for a request's headers. Longer lets slow clients hold connections.",
    )
    body_timeout_seconds: Seconds = Field(
        60,
        gt=0,
        description="The longest wait for a body's next bytes; the whole body may take ten times as long. "
        "Longer lets slow clients hold memory.",
    )
    header_bytes_max: Bytes = Field(
        64 * KIB,
        ge=4 * KIB,
        le=1 * MIB,
        description="The most bytes of headers a request may have. Held in memory for each open connection.",
    )
    cors_origins: tuple[Origin, ...] = Field(
        (),
        description="Web pages that may send from a browser: exact origins, or * alone for all. Empty: none.",
        examples=["https://app.example.com"],
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if "*" in self.cors_origins and len(self.cors_origins) > 1:
            raise bad_value(
                "has * beside other origins, which * already covers", 'write ["*"] alone', "cors_origins"
            )
        paths = (self.logs_path, self.traces_path, self.metrics_path)
        if len(set(paths)) < len(paths):
            raise bad_value(
                "uses one path for two signals", "give logs, traces and metrics a path each", "logs_path"
            )
        for key, path in zip(("logs_path", "traces_path", "metrics_path"), paths, strict=True):
            if path in ("/healthz", "/readyz", "/livez", "/metrics", "/status"):
                raise bad_value(f"is {path}, which frazil itself answers", f"for example /v1{path}", key)
        return self


class GrpcConfig(Section):
    enabled: bool = Field(True, description="Whether OTLP/gRPC is served. Off saves a server in each worker.")
    listen: Listen = Field(
        "127.0.0.1:4317", description="host:port for OTLP/gRPC. Port 0 takes any free port."
    )
    keepalive_min_interval_seconds: Seconds = Field(
        10,
        gt=0,
        description="Clients that ping more often than this are disconnected. Lower costs wake-ups.",
    )


class LimitsConfig(Section):
    request_bytes_max: Bytes = Field(
        64 * MIB,
        ge=1 * KIB,
        le=1024 * MIB,
        description="The largest request, after decompression. It is held in memory until it is durable.",
    )
    json_request_bytes_max: Bytes = Field(
        16 * MIB,
        ge=1 * KIB,
        le=1024 * MIB,
        description="The largest request in JSON, after decompression. Parsing can hold 17 times that.",
    )
    in_flight_bytes_max: Bytes = Field(
        128 * MIB,
        ge=1 * KIB,
        description="Bytes of requests received and not yet durable, in each worker. Over it, clients are "
        "told to retry. This bounds memory.",
    )
    requests_in_flight_max: Count = Field(
        4096,
        ge=1,
        description="Requests received and not yet durable, in each worker. Over it, clients must retry.",
    )
    records_per_request_max: Count = Field(
        1_000_000, ge=1, description="The most log records, spans or data points in one request."
    )
    resources_per_request_max: Count = Field(
        50_000,
        ge=1,
        description="The most resources and scopes, counted together, in one request. They are counted "
        "before anything is decoded, so that a request with more is refused in a few milliseconds.",
    )
    json_objects_max: Count = Field(
        1_000_000,
        ge=1,
        description="The most objects and arrays in one JSON request: braces and brackets are counted before "
        "it is parsed, also inside strings. Each costs up to 250 bytes of memory and 2 microseconds.",
    )
    nesting_depth_max: Count = Field(
        32, ge=1, le=32, description="How deep lists and maps may be nested in an attribute's value."
    )
    admission_wait_seconds: Seconds = Field(
        5,
        ge=0,
        description="How long a request may wait for room before it is told to retry. Longer smooths bursts, "
        "and holds connections.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.in_flight_bytes_max < self.request_bytes_max:
            raise bad_value(
                "is less than request_bytes_max, so the largest allowed request could never get in",
                "raise in_flight_bytes_max or lower request_bytes_max",
                "in_flight_bytes_max",
            )
        return self


class ReceiveConfig(Section):
    workers: Count = Field(
        1,
        ge=1,
        le=64,
        description="Receiver processes. Each has WAL streams of its own and can fill a core; each "
        "holds memory up to what limits allow.",
    )
    allow_anonymous: bool = Field(
        False,
        description="Accept data without an API key from other machines too. Whoever can reach the port can "
        "then write.",
    )
    http: HttpConfig = Field(default_factory=HttpConfig, description="OTLP over HTTP.")
    grpc: GrpcConfig = Field(default_factory=GrpcConfig, description="OTLP over gRPC.")
    tls: TlsConfig | None = Field(
        None, description="TLS on both listeners. Absent: plain text. Costs CPU for each byte and connection."
    )
    limits: LimitsConfig = Field(
        default_factory=LimitsConfig, description="Bounds; what is over them is refused with a reason."
    )
    clock_skew_seconds_max: Seconds = Field(
        300,
        ge=10,
        description="A receiver whose clock is further than this from the clock of the WAL's store is not "
        "ready and refuses requests with 503 until the clock is right. Not checked with Kafka.",
    )
    shutdown_grace_seconds: Seconds = Field(
        10, ge=0, description="How long a stopping receiver waits for requests in flight to become durable."
    )

    def url(self, protocol: Literal["http", "grpc"]) -> str:
        """Where a client on this machine sends to."""
        listen = self.http.listen if protocol == "http" else self.grpc.listen
        return local_url(listen, tls=self.tls is not None)


class ApiKey(Section):
    name: str = Field(
        min_length=1,
        max_length=128,
        description="What people call the key.",
        examples=["shop-collector"],
    )
    tenant: TenantId = Field(description="The tenant that the key reads and writes.", examples=["shop"])
    hash: KeyHash = Field(
        description="sha256 of the key, as `frazil keys new` prints it. The key itself is stored nowhere.",
        examples=["sha256:" + "0" * 64],
    )
    roles: frozenset[Role] = Field(
        frozenset({"write", "read"}),
        min_length=1,
        description="write sends telemetry, read queries it, admin changes things.",
    )


class AuthConfig(Section):
    keys: tuple[ApiKey, ...] = Field(
        (),
        description="API keys (`frazil keys new`). Empty: none is asked for, and all data belongs to "
        "tenants.default.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for what in ("name", "hash"):
            values = [getattr(key, what) for key in self.keys]
            if len(set(values)) < len(values):
                raise bad_value(
                    f"has two keys with one {what}", f"each key needs a {what} of its own", "keys"
                )
        return self


class RateLimit(Section):
    bytes_per_second: Bytes = Field(
        ge=1, description="Bytes of requests (decompressed) a second, in each worker.", examples=["10MiB"]
    )
    burst_bytes: Bytes | None = Field(
        None, ge=1, description="How much may come at once after a pause. Absent: one second's worth."
    )
    requests_per_second: Rate | None = Field(
        None, gt=0, description="Requests a second, in each worker. Absent: any number."
    )

    @property
    def burst(self) -> int:
        """`burst_bytes`, or one second's worth."""
        return self.bytes_per_second if self.burst_bytes is None else self.burst_bytes


class RateLimitsConfig(Section):
    default: RateLimit | None = Field(
        None, description="For tenants that by_tenant does not name. Absent: no limit."
    )
    by_tenant: dict[TenantId, RateLimit] = Field(
        default_factory=dict,
        description="Limits of single tenants.",
        examples=[{"shop": {"bytes_per_second": "10MiB"}}],
    )

    def of(self, tenant: str) -> RateLimit | None:
        """The limit of `tenant`, if it has one."""
        return self.by_tenant.get(tenant, self.default)


class TenantsConfig(Section):
    default: TenantId = Field("default", description="The tenant of every request while auth.keys is empty.")
    rate_limits: RateLimitsConfig = Field(
        default_factory=RateLimitsConfig,
        description="How fast each tenant may send. Over it, clients are told when to retry.",
    )


class PromotedColumn(Section):
    attribute: AttributeNames = Field(
        description="The attribute that gets a column, or a list: the first one that a record has is used.",
        examples=["http.route"],
    )
    source: Literal["resource", "record"] = Field("record", description="Whose attributes it is among.")
    type: Literal["string", "int", "double", "bool"] = Field(
        "string",
        description="The column's type: string, int, double or bool. Values of other types stay in the map "
        "alone. Once a table has the column, its type cannot change.",
    )
    column: ColumnName | None = Field(
        None,
        description="The column's name. Absent: the first attribute in lower case with _ for . and the like.",
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
        """`column`, or the name made from the first attribute."""
        return column_for(self.attribute[0]) if self.column is None else self.column


class TablesConfig(Section):
    promoted: tuple[PromotedColumn, ...] = Field(
        (),
        description="Attributes that get columns besides those built in: fast to filter, some bytes a row.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [promoted.name for promoted in self.promoted]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise bad_value(f"names column {twice[0]} twice", "give one of them another `column`", "promoted")
        return self


class DemoConfig(Section):
    enabled: bool = Field(
        False, description="Whether `frazil up` sends itself the telemetry of a simulated shop."
    )
    traces_per_second: Rate = Field(
        5, gt=0, le=10_000, description="How many traces, with their logs and metrics. Some KB each."
    )


class Config(Section):
    """The whole configuration, as `load_config` returns it."""

    data_dir: Path = Field(
        Path("./frazil-data"),
        description="Where frazil keeps its files. Relative to the folder that frazil is started in.",
    )
    log: LogConfig = Field(default_factory=LogConfig, description="frazil's own log, on standard error.")
    receive: ReceiveConfig = Field(default_factory=ReceiveConfig, description="How OTLP comes in.")
    auth: AuthConfig = Field(default_factory=AuthConfig, description="Who may do what.")
    tenants: TenantsConfig = Field(default_factory=TenantsConfig, description="Whose data it is.")
    wal: WalConfig = Field(
        default_factory=WalConfig,
        description="The write-ahead log: what is in it is durable, and only then acked.",
    )
    tables: TablesConfig = Field(default_factory=TablesConfig, description="What the tables look like.")
    lake: LakeConfig = Field(
        default_factory=LakeConfig,
        description="Where the Iceberg tables are, and the catalog that knows them.",
    )
    land: LandConfig = Field(
        default_factory=LandConfig, description="How what was received gets into the tables."
    )
    spark: SparkConfig = Field(default_factory=SparkConfig, description="What the pipeline runs on.")
    pipeline: PipelineConfig = Field(
        default_factory=PipelineConfig, description="The process that lands and keeps the tables."
    )
    maintain: MaintainConfig = Field(
        default_factory=MaintainConfig, description="How the tables stay small, sorted and lawful."
    )
    serve: ServeConfig = Field(default_factory=ServeConfig, description="The API that answers questions.")
    query: QueryConfig = Field(default_factory=QueryConfig, description="What a question may cost.")
    status: StatusConfig = Field(
        default_factory=StatusConfig,
        description="Knowing how the whole does: whom to ask, how often, and what is meant to hold.",
    )
    telemetry: TelemetryConfig = Field(
        default_factory=TelemetryConfig,
        description="frazil's own traces and logs over OTLP, into itself or elsewhere.",
    )
    dashboard: DashboardConfig = Field(default_factory=DashboardConfig, description="The pages to look at.")
    demo: DemoConfig = Field(
        default_factory=DemoConfig, description="Traffic to look at when there is none yet."
    )

    @property
    def wal_dir(self) -> Path:
        """`wal.local.path`, or `wal` below `data_dir`."""
        return self.data_dir / "wal" if self.wal.local.path is None else self.wal.local.path

    @property
    def warehouse(self) -> str:
        """`lake.warehouse`, or `warehouse` below `data_dir`; an absolute path or an s3:// address."""
        if self.lake.warehouse is None:
            return str((self.data_dir / "warehouse").absolute())
        if self.lake.warehouse.startswith("s3://"):
            return self.lake.warehouse.rstrip("/")
        return str(Path(self.lake.warehouse).absolute())

    @property
    def tier_location(self) -> str | None:
        """`maintain.tier.location`, as `warehouse` is."""
        if self.maintain.tier is None:
            return None
        location = self.maintain.tier.location
        return location.rstrip("/") if location.startswith("s3://") else str(Path(location).absolute())

    @property
    def catalog_file(self) -> Path:
        """The SQLite catalog: `lake.catalog.sqlite.path`, or `catalog.db` below `data_dir`."""
        path = self.lake.catalog.sqlite.path
        return (self.data_dir / "catalog.db" if path is None else path).absolute()

    @model_validator(mode="after")
    def _check_maintain(self) -> Self:
        """What is deleted must be older than whatever may still need it."""
        orphans, expire = self.maintain.orphans.age_seconds, self.maintain.expire.kept_seconds
        if orphans < 2 * self.land.commit_deadline_seconds:
            raise bad_value(
                "is less than twice land.commit_deadline_seconds: what is still to be committed could go",
                f"at least {2 * self.land.commit_deadline_seconds:g}s, or a shorter deadline",
                "maintain.orphans.age_seconds",
            )
        needed = max(self.land.wal_grace_seconds, 2 * self.query.seconds_max)
        if expire < needed:
            raise bad_value(
                "is too short: running queries (query.seconds_max) and the clean-up of the write-ahead log "
                "(land.wal_grace_seconds) still need younger snapshots",
                f"at least {needed:g}s",
                "maintain.expire.kept_seconds",
            )
        return self

    @model_validator(mode="after")
    def _check_tier(self) -> Self:
        """With a REST catalog that says itself where tables are, the rest is checked where they are known."""
        tier, location = self.maintain.tier, self.tier_location
        if tier is None or location is None:
            return self
        on_s3, key = location.startswith("s3://"), "maintain.tier.location"
        if not on_s3 and ("://" in tier.location or tier.location.startswith("file:")):
            raise bad_value("must be a folder or begin with s3://", "for example s3://telemetry/colder", key)
        if on_s3 and not location.removeprefix("s3://").partition("/")[0]:
            raise bad_value("names no bucket", "for example s3://telemetry/colder", key)
        if tier.storage_class is not None and not on_s3:
            raise bad_value(
                "is of S3, and maintain.tier.location is a folder",
                "leave it out",
                "maintain.tier.storage_class",
            )
        if self.lake.catalog.type == "rest" and self.lake.warehouse is None:
            return self
        if on_s3 != self.warehouse.startswith("s3://"):
            raise bad_value(
                f"must be of the same kind as the warehouse, {self.warehouse}",
                "a folder for a folder, s3://BUCKET/PREFIX for a warehouse on S3",
                key,
            )
        others = [self.warehouse] if on_s3 else [self.warehouse, str(self.wal_dir.absolute())]
        for other in others:
            if f"{location}/".startswith(f"{other}/") or f"{other}/".startswith(f"{location}/"):
                raise bad_value(f"and {other} are one within the other", "name a place beside it", key)
        return self

    @model_validator(mode="after")
    def _check_telemetry(self) -> Self:
        writers = {key.hash for key in self.auth.keys if "write" in key.roles}
        check_into_itself(
            self.telemetry, writers, with_grpc=self.receive.grpc.enabled, needs_key=bool(self.auth.keys)
        )
        return self

    @model_validator(mode="after")
    def _check_spark(self) -> Self:
        if self.spark.is_local:
            return self
        if self.wal.type == "local":
            raise bad_value(
                "is a cluster, whose workers cannot be relied on to see this machine's wal folder",
                "use wal.type s3 or kafka, or spark.master local[*]",
                "spark.master",
            )
        elsewhere = self.lake.catalog.type == "rest" and self.lake.warehouse is None
        if not (elsewhere or self.warehouse.startswith("s3://") or self.lake.shared_warehouse):
            raise bad_value(
                "is a cluster, whose workers cannot be relied on to see this machine's warehouse folder",
                "use lake.warehouse s3://BUCKET/PREFIX; if all machines mount the folder, say "
                "lake.shared_warehouse: true",
                "spark.master",
            )
        return self

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.auth.keys:
            return self
        for key, listen in (("serve.listen", self.serve.listen), ("dashboard.listen", self.dashboard.listen)):
            if not is_loopback(listen):
                raise bad_value(
                    "can be reached from other machines, but no API key is configured",
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
                f"can be reached from other machines{others}, but no API key is configured",
                "add a key (`frazil keys new --tenant NAME`), listen on 127.0.0.1, "
                "or set receive.allow_anonymous: true",
                public[0],
            )
        return self
