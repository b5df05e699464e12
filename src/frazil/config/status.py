"""Configuration of the overall status: role addresses, polling, and service level objectives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from frazil.config.values import Seconds, Section, bad_value


def _url(text: str) -> str:
    hint = "for example http://10.0.0.7:4318"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise bad_value("must be a URL with scheme, host and port only", hint) from None
    plain = not (parts.path.strip("/") or parts.query or parts.fragment) and parts.username is None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or not plain:
        raise bad_value("must be a URL with scheme, host and port only", hint)
    return text.rstrip("/")


Url = Annotated[str, AfterValidator(_url)]


class StatusConfig(Section):
    receivers: tuple[Url, ...] = Field(
        (),
        description="URLs of all receivers. Give the address of each one, not of a load balancer. Empty: the "
        "receiver of this configuration.",
        examples=["http://10.0.0.7:4318"],
    )
    pipelines: tuple[Url, ...] = Field(
        (), description="URLs of all pipelines. Empty: the pipeline of this configuration."
    )
    apis: tuple[Url, ...] = Field((), description="URLs of all APIs. Empty: the API of this configuration.")
    dashboard: tuple[Url, ...] = Field(
        (), description="URLs of all dashboards. Empty: the dashboard of this configuration."
    )
    ca_file: Path | None = Field(
        None,
        description="CA certificate (PEM) for the URLs above. Absent: the system's. For roles of this "
        "configuration, their own certificate is trusted.",
        examples=["/etc/frazil/ca.crt"],
    )
    client_cert_file: Path | None = Field(
        None,
        description="Client certificate (PEM) for roles that require one (tls.client_ca_file).",
        examples=["/etc/frazil/status.crt"],
    )
    client_key_file: Path | None = Field(
        None,
        description="Private key of client_cert_file (PEM, without a password).",
        examples=["/etc/frazil/status.key"],
    )
    sample_seconds: Seconds = Field(
        10,
        ge=1,
        le=600,
        description="Interval at which the API polls all roles. Each poll costs a few milliseconds of CPU "
        "per role.",
    )
    kept_seconds: Seconds = Field(
        3600,
        ge=60,
        le=86400,
        description="How long the API keeps poll results in memory: about 200 bytes per poll.",
    )
    ack_seconds: Seconds = Field(
        0.4, gt=0, description="Objective: 99% of requests are durable and acknowledged within this time."
    )
    freshness_seconds: Seconds | None = Field(
        None,
        gt=0,
        description="Objective: acknowledged data can be queried within this time. Absent: 0.7s; with Kafka, "
        "which has no tail, the same as landing_lag_seconds.",
        examples=["700ms"],
    )
    landing_lag_seconds: Seconds | None = Field(
        None,
        gt=0,
        description="Objective: data lands within this time. Absent: twice land.age_max_seconds.",
        examples=["2m"],
    )
    derive_lag_seconds: Seconds | None = Field(
        None,
        gt=0,
        description="Objective: landed data is in the derived tables within this time after it landed. "
        "Absent: derive.interval_seconds plus 15s.",
        examples=["75s"],
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.client_cert_file is None) != (self.client_key_file is None):
            raise bad_value(
                "and client_key_file must be set together", "set both, or neither", "client_cert_file"
            )
        if self.kept_seconds < 2 * self.sample_seconds:
            raise bad_value(
                "is less than twice sample_seconds", "raise it, or lower sample_seconds", "kept_seconds"
            )
        return self
