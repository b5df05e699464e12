"""Configuration of frazil's own traces and logs."""

from __future__ import annotations

import re
from collections.abc import Collection
from hashlib import sha256
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from frazil.config.values import Count, Rate, Seconds, Section, bad_value

_URL = re.compile(r"https?://[^/\s]+(/[^\s]*)?\Z")
_HEADER = re.compile(r"[a-z0-9_.-]+\Z")


class TelemetryConfig(Section):
    enabled: bool = Field(
        False,
        description="Send the traces and logs of frazil's own processes. Costs about 10 MB and one thread "
        "per process.",
    )
    endpoint: str | None = Field(
        None,
        description="Base URL of the OTLP receiver. Absent: the receiver of this configuration.",
        examples=["https://otel.example.com:4318"],
    )
    protocol: Literal["http/protobuf", "grpc"] = Field("http/protobuf", description="OTLP protocol.")
    api_key: SecretStr | None = Field(
        None,
        description="API key with role write, sent as a bearer token. The rows belong to its tenant. "
        "Required for frazil's own receiver if auth.keys is not empty. Prefer an environment variable.",
    )
    headers: dict[str, SecretStr] = Field(
        {},
        description="Additional request headers (gRPC: metadata). Their values are never shown.",
        examples=[{"x-scope-orgid": "ops"}],
    )
    ca_file: Path | None = Field(
        None,
        description="CA certificate (PEM) for the endpoint. Absent: the system's.",
        examples=["/etc/frazil/ca.crt"],
    )
    service_namespace: str = Field(
        "frazil", description="service.namespace of all processes. service.name identifies the role."
    )
    resource: dict[str, str] = Field(
        {},
        description="Additional resource attributes.",
        examples=[{"deployment.environment.name": "production"}],
    )
    receive_ratio: Rate = Field(
        0.01,
        ge=0,
        le=1,
        description="Share of received requests that are traced, with 3 spans each. Landing and maintenance "
        "are rare and always traced.",
    )
    api_ratio: Rate = Field(
        1.0,
        ge=0,
        le=1,
        description="Share of API requests that are traced, with about 5 spans per query. If a request has a "
        "traceparent header, its sampling decision is used.",
    )
    logs_level: Literal["debug", "info", "warning", "error", "none"] = Field(
        "warning", description="Minimum severity of log records that are sent. log.level applies first."
    )
    sql_text: bool = Field(
        False,
        description="Include the SQL text of queries, which may contain secrets. Parameter values are never "
        "sent.",
    )
    interval_seconds: Seconds = Field(
        5,
        ge=0.1,
        le=60,
        description="Interval between exports. A longer interval makes fewer and larger segments.",
    )
    queue_max: Count = Field(
        2048,
        ge=16,
        le=100_000,
        description="Maximum number of spans, and of log records, that wait to be exported, at about 2 KB "
        "each. More are dropped and counted.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.endpoint is not None and not _URL.match(self.endpoint):
            raise bad_value(
                "must be a URL that starts with http:// or https://",
                "for example https://otel.example.com:4318, without /v1/traces",
                "endpoint",
            )
        if self.endpoint is not None and self.endpoint.rstrip("/").endswith(("/v1/traces", "/v1/logs")):
            raise bad_value("is the URL of one signal", "remove /v1/traces or /v1/logs", "endpoint")
        for name in self.headers:
            if not _HEADER.match(name):
                raise bad_value(
                    f"contains {name!r}, which is not a lower-case header name",
                    "for example x-scope-orgid",
                    "headers",
                )
        return self


def check_own_receiver(
    telemetry: TelemetryConfig, writer_hashes: Collection[str], *, grpc_enabled: bool, key_required: bool
) -> None:
    """Check that frazil's own receiver will accept the telemetry, if it is the endpoint."""
    if not telemetry.enabled or telemetry.endpoint is not None:
        return
    if telemetry.protocol == "grpc" and not grpc_enabled:
        raise bad_value(
            "is grpc, but receive.grpc.enabled is false",
            "use http/protobuf, or set telemetry.endpoint to another receiver",
            "telemetry.protocol",
        )
    if not key_required:
        return
    if telemetry.api_key is None:
        raise bad_value(
            "is not set, but the receiver of this configuration requires an API key",
            "set it to a key in auth.keys with role write, or set telemetry.endpoint to another receiver",
            "telemetry.api_key",
        )
    if "sha256:" + sha256(telemetry.api_key.get_secret_value().encode()).hexdigest() not in writer_hashes:
        raise bad_value(
            "is not a key in auth.keys with role write",
            "create one with `frazil keys new --tenant NAME --role write` and add it to auth.keys",
            "telemetry.api_key",
        )
