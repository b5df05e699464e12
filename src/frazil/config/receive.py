"""Configuration of ingest: OTLP listeners, request limits, API keys and rate limits of tenants."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from frazil.config.connection import TlsConfig
from frazil.config.values import (
    KIB,
    MIB,
    Bytes,
    Count,
    KeyHash,
    Listen,
    Origin,
    Rate,
    Seconds,
    Section,
    TenantId,
    UrlPath,
    bad_value,
    local_url,
)

Role = Literal["read", "write", "admin"]


class HttpConfig(Section):
    listen: Listen = Field("127.0.0.1:4318", description="host:port for OTLP/HTTP. Port 0: any free port.")
    logs_path: UrlPath = Field("/v1/logs", description="URL path for logs.")
    traces_path: UrlPath = Field("/v1/traces", description="URL path for traces.")
    metrics_path: UrlPath = Field("/v1/metrics", description="URL path for metrics.")
    header_timeout_seconds: Seconds = Field(
        30,
        gt=0,
        description="Maximum wait for the headers of a request. A longer timeout lets slow clients hold "
        "connections.",
    )
    body_timeout_seconds: Seconds = Field(
        60,
        gt=0,
        description="Maximum wait for the next bytes of a request body. The whole body may take ten times as "
        "long. A longer timeout lets slow clients hold memory.",
    )
    header_bytes_max: Bytes = Field(
        64 * KIB,
        ge=4 * KIB,
        le=1 * MIB,
        description="Maximum size of the headers of a request. Held in memory for each open connection.",
    )
    cors_origins: tuple[Origin, ...] = Field(
        (),
        description="Origins of web pages that may send telemetry from a browser: exact origins, or only * "
        "for all. Empty: none.",
        examples=["https://app.example.com"],
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if "*" in self.cors_origins and len(self.cors_origins) > 1:
            raise bad_value(
                "contains * and other origins, but * already allows all", 'write only ["*"]', "cors_origins"
            )
        paths = (self.logs_path, self.traces_path, self.metrics_path)
        if len(set(paths)) < len(paths):
            raise bad_value(
                "uses one path for two signals", "use a different path for each signal", "logs_path"
            )
        for key, path in zip(("logs_path", "traces_path", "metrics_path"), paths, strict=True):
            if path in ("/healthz", "/readyz", "/livez", "/metrics", "/status"):
                raise bad_value(f"is {path}, which frazil reserves", f"for example /v1{path}", key)
        return self


class GrpcConfig(Section):
    enabled: bool = Field(True, description="Serve OTLP/gRPC. false saves one server in each worker.")
    listen: Listen = Field("127.0.0.1:4317", description="host:port for OTLP/gRPC. Port 0: any free port.")
    keepalive_min_interval_seconds: Seconds = Field(
        10,
        gt=0,
        description="Clients that send keepalive pings more often than this are disconnected. A lower value "
        "costs more wake-ups.",
    )


class LimitsConfig(Section):
    request_bytes_max: Bytes = Field(
        64 * MIB,
        ge=1 * KIB,
        le=1024 * MIB,
        description="Maximum size of a request after decompression. The request stays in memory until it is "
        "durable.",
    )
    json_request_bytes_max: Bytes = Field(
        16 * MIB,
        ge=1 * KIB,
        le=1024 * MIB,
        description="Maximum size of a JSON request after decompression. Parsing can use 17 times as much "
        "memory.",
    )
    in_flight_bytes_max: Bytes = Field(
        128 * MIB,
        ge=1 * KIB,
        description="Maximum bytes of requests that are received but not yet durable, per worker. Above it, "
        "clients get a retryable error. This limits memory.",
    )
    requests_in_flight_max: Count = Field(
        4096,
        ge=1,
        description="Maximum number of requests that are received but not yet durable, per worker. Above it, "
        "clients get a retryable error.",
    )
    records_per_request_max: Count = Field(
        1_000_000, ge=1, description="Maximum number of log records, spans or data points in one request."
    )
    resources_per_request_max: Count = Field(
        50_000,
        ge=1,
        description="Maximum number of resources and scopes, counted together, in one request. They are "
        "counted before decoding, so a request above the limit is rejected within a few milliseconds.",
    )
    json_objects_max: Count = Field(
        1_000_000,
        ge=1,
        description="Maximum number of objects and arrays in one JSON request. Braces and brackets are "
        "counted before parsing, including those inside strings. Each costs up to 250 bytes of memory and 2 "
        "microseconds.",
    )
    nesting_depth_max: Count = Field(
        32, ge=1, le=32, description="Maximum nesting depth of lists and maps in an attribute value."
    )
    admission_wait_seconds: Seconds = Field(
        5,
        ge=0,
        description="Maximum time that a request waits for in-flight capacity before it gets a retryable "
        "error. A longer wait smooths bursts but holds connections.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.in_flight_bytes_max < self.request_bytes_max:
            raise bad_value(
                "is less than request_bytes_max, so the largest allowed request could never be accepted",
                "raise in_flight_bytes_max or lower request_bytes_max",
                "in_flight_bytes_max",
            )
        return self


class ReceiveConfig(Section):
    workers: Count = Field(
        1,
        ge=1,
        le=64,
        description="Number of receiver processes. Each has its own WAL streams, can use one core, and uses "
        "memory up to the limits below.",
    )
    allow_anonymous: bool = Field(
        False,
        description="Accept data without an API key from other machines too. Anyone who can reach the port "
        "can then write.",
    )
    http: HttpConfig = Field(HttpConfig(), description="OTLP over HTTP.")
    grpc: GrpcConfig = Field(GrpcConfig(), description="OTLP over gRPC.")
    tls: TlsConfig | None = Field(
        None, description="TLS for both listeners. Absent: plain text. Costs CPU per byte and connection."
    )
    limits: LimitsConfig = Field(
        LimitsConfig(), description="Request limits. A request above a limit is rejected with a reason."
    )
    clock_skew_seconds_max: Seconds = Field(
        300,
        ge=10,
        description="Maximum difference between the clocks of the receiver and the WAL store. Above it, the "
        "receiver is not ready and rejects requests with 503. Not checked with Kafka.",
    )
    shutdown_grace_seconds: Seconds = Field(
        10,
        ge=0,
        description="Maximum time that a stopping receiver waits for in-flight requests to become durable.",
    )

    def url(self, protocol: Literal["http", "grpc"]) -> str:
        """Return the URL for clients on this machine."""
        listen = self.http.listen if protocol == "http" else self.grpc.listen
        return local_url(listen, tls=self.tls is not None)


class ApiKey(Section):
    name: str = Field(
        min_length=1, max_length=128, description="Name of the key, for people.", examples=["shop-collector"]
    )
    tenant: TenantId = Field(description="Tenant that the key reads and writes.", examples=["shop"])
    hash: KeyHash = Field(
        description="SHA-256 of the key, as printed by `frazil keys new`. The key itself is never stored.",
        examples=["sha256:" + "0" * 64],
    )
    roles: frozenset[Role] = Field(
        frozenset({"write", "read"}),
        min_length=1,
        description="write: send telemetry. read: query. admin: Iceberg REST catalog of all tenants, and the "
        "overall status.",
    )


class AuthConfig(Section):
    keys: tuple[ApiKey, ...] = Field(
        (),
        description="API keys (`frazil keys new`). Empty: no key is required, and all data belongs to "
        "tenants.default.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for field in ("name", "hash"):
            values = [getattr(key, field) for key in self.keys]
            if len(set(values)) < len(values):
                raise bad_value(f"has two keys with the same {field}", f"make each {field} unique", "keys")
        return self


class RateLimit(Section):
    bytes_per_second: Bytes = Field(
        ge=1, description="Decompressed request bytes per second, per worker.", examples=["10MiB"]
    )
    burst_bytes: Bytes | None = Field(
        None, ge=1, description="Maximum burst after a pause. Absent: one second of bytes_per_second."
    )
    requests_per_second: Rate | None = Field(
        None, gt=0, description="Requests per second, per worker. Absent: no limit."
    )

    @property
    def burst(self) -> int:
        """`burst_bytes`, or one second of `bytes_per_second`."""
        return self.bytes_per_second if self.burst_bytes is None else self.burst_bytes


class RateLimitsConfig(Section):
    default: RateLimit | None = Field(
        None, description="Limit for tenants that are not in by_tenant. Absent: no limit."
    )
    by_tenant: dict[TenantId, RateLimit] = Field(
        {}, description="Limits per tenant.", examples=[{"shop": {"bytes_per_second": "10MiB"}}]
    )

    def of(self, tenant: str) -> RateLimit | None:
        return self.by_tenant.get(tenant, self.default)


class TenantsConfig(Section):
    default: TenantId = Field("default", description="Tenant of all requests while auth.keys is empty.")
    rate_limits: RateLimitsConfig = Field(
        RateLimitsConfig(),
        description="Ingest rate limits per tenant. Above a limit, clients get a retryable error with the "
        "time to wait.",
    )
