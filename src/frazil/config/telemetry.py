"""frazil's own traces and logs: whether, where to, and how many."""

from __future__ import annotations

import re
from collections.abc import Collection
from hashlib import sha256
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from frazil.config.section import Section
from frazil.config.values import Count, Rate, Seconds, bad_value

_URL = re.compile(r"https?://[^/\s]+(/[^\s]*)?\Z")
_HEADER = re.compile(r"[a-z0-9_.-]+\Z")


class TelemetryConfig(Section):
    enabled: bool = Field(
        False,
        description="Whether frazil's processes send their own traces and logs. Costs each about 10 MB and "
        "a thread.",
    )
    endpoint: str | None = Field(
        None,
        description="Where they are sent: the base URL of an OTLP receiver. Absent: this frazil's own "
        "receiver, as receive says.",
        examples=["https://otel.example.com:4318"],
    )
    protocol: Literal["http/protobuf", "grpc"] = Field("http/protobuf", description="How they are sent.")
    api_key: SecretStr | None = Field(
        None,
        description="An API key that may write, sent as a bearer token; the rows belong to its tenant. "
        "frazil's own receiver asks for one when auth.keys has any. Better given in the environment.",
    )
    headers: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="More headers (metadata, with gRPC) for whoever receives them. Never shown.",
        examples=[{"x-scope-orgid": "ops"}],
    )
    ca_file: Path | None = Field(
        None,
        description="The authority (PEM) of the receiver's certificate. Absent: the system's authorities.",
        examples=["/etc/frazil/ca.crt"],
    )
    service_namespace: str = Field(
        "frazil", description="service.namespace of all processes; service.name says which one it is."
    )
    resource: dict[str, str] = Field(
        default_factory=dict,
        description="More attributes of the resource.",
        examples=[{"deployment.environment.name": "production"}],
    )
    receive_ratio: Rate = Field(
        0.01,
        ge=0,
        le=1,
        description="The part of the received requests that is traced; 3 spans each. Landing and "
        "maintenance are rare and always traced.",
    )
    api_ratio: Rate = Field(
        1.0,
        ge=0,
        le=1,
        description="The part of the API's requests that is traced; about 5 spans a query. A request with "
        "a traceparent follows that.",
    )
    logs_level: Literal["debug", "info", "warning", "error", "none"] = Field(
        "warning", description="The least severe log record that is sent, of those that log.level lets pass."
    )
    sql_text: bool = Field(
        False,
        description="Whether the text of queries is sent too. What people write into SQL may be secret; the "
        "values of parameters are never sent.",
    )
    interval_seconds: Seconds = Field(
        5,
        ge=0.1,
        le=60,
        description="How often a process sends what it has. Less often is fewer and larger segments.",
    )
    queue_max: Count = Field(
        2048,
        ge=16,
        le=100_000,
        description="Spans, and log records, that wait to be sent. More are dropped and counted; about 2 KB "
        "each.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.endpoint is not None and not _URL.match(self.endpoint):
            raise bad_value(
                "must be a URL that begins with http:// or https://",
                "for example https://otel.example.com:4318, without /v1/traces",
                "endpoint",
            )
        if self.endpoint is not None and self.endpoint.rstrip("/").endswith(("/v1/traces", "/v1/logs")):
            raise bad_value("is the address of one signal", "leave /v1/traces and /v1/logs out", "endpoint")
        for name in self.headers:
            if not _HEADER.match(name):
                raise bad_value(
                    f"has a name that no header has in lower case: {name!r}",
                    "for example x-scope-orgid",
                    "headers",
                )
        return self


def check_into_itself(
    telemetry: TelemetryConfig, writers: Collection[str], *, with_grpc: bool, needs_key: bool
) -> None:
    """What goes into frazil itself passes the same door as everybody's. `writers`: hashes of keys."""
    if not telemetry.enabled or telemetry.endpoint is not None:
        return
    if telemetry.protocol == "grpc" and not with_grpc:
        raise bad_value(
            "is grpc, which receive.grpc.enabled switches off here",
            "http/protobuf, or name another receiver as telemetry.endpoint",
            "telemetry.protocol",
        )
    if not needs_key:
        return
    if telemetry.api_key is None:
        raise bad_value(
            "is not given, and this frazil's receiver takes nothing without an API key",
            "give a key of auth.keys that may write, or name another receiver as telemetry.endpoint",
            "telemetry.api_key",
        )
    if "sha256:" + sha256(telemetry.api_key.get_secret_value().encode()).hexdigest() not in writers:
        raise bad_value(
            "is none of auth.keys that may write",
            "`frazil keys new --tenant NAME --role write` makes one, and prints the lines for auth.keys",
            "telemetry.api_key",
        )
