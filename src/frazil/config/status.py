"""Knowing how the whole does: whom to ask, how often, and what is meant to hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from frazil.config.section import Section
from frazil.config.values import Seconds, bad_value


def _url(text: str) -> str:
    hint = "for example http://10.0.0.7:4318"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise bad_value("must be an address: scheme, host and port", hint) from None
    plain = not (parts.path.strip("/") or parts.query or parts.fragment) and parts.username is None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or not plain:
        raise bad_value("must be an address: scheme, host and port", hint)
    return text.rstrip("/")


Url = Annotated[str, AfterValidator(_url)]


class StatusConfig(Section):
    receivers: tuple[Url, ...] = Field(
        (),
        description="The receivers to ask for their status, each by its own address: behind a "
        "load balancer it is unknown which one answered. Empty: where this configuration's receiver listens.",
        examples=["http://10.0.0.7:4318"],
    )
    pipelines: tuple[Url, ...] = Field(
        (), description="The pipelines. Empty: where this configuration's pipeline listens."
    )
    apis: tuple[Url, ...] = Field((), description="The APIs. Empty: where this configuration's API listens.")
    dashboard: tuple[Url, ...] = Field(
        (), description="The dashboards. Empty: where this configuration's dashboard listens."
    )
    ca_file: Path | None = Field(
        None,
        description="The authority (PEM) of the certificates at the addresses above. Absent: the system's. "
        "This configuration's own roles are known by their certificate itself.",
        examples=["/etc/frazil/ca.crt"],
    )
    client_cert_file: Path | None = Field(
        None,
        description="The certificate (PEM) to show to roles that want one (tls.client_ca_file).",
        examples=["/etc/frazil/status.crt"],
    )
    client_key_file: Path | None = Field(
        None, description="Its private key (PEM, without a password).", examples=["/etc/frazil/status.key"]
    )
    sample_seconds: Seconds = Field(
        10,
        ge=1,
        le=600,
        description="How often the API looks at all roles. Each look costs some milliseconds of CPU in each.",
    )
    kept_seconds: Seconds = Field(
        3600,
        ge=60,
        le=86400,
        description="For how long what was seen is kept, in the API's memory: some 200 bytes a look.",
    )
    ack_seconds: Seconds = Field(
        0.4,
        gt=0,
        description="Objective: 99 of 100 requests are durable and answered within this time.",
    )
    freshness_seconds: Seconds | None = Field(
        None,
        gt=0,
        description="Objective: what was acked can be asked within this time. Absent: 0.7s with segments; "
        "with Kafka, which has no tail, the landing lag's.",
        examples=["700ms"],
    )
    landing_lag_seconds: Seconds | None = Field(
        None,
        gt=0,
        description="Objective: nothing waits longer than this to be landed. Absent: twice what "
        "land.age_max_seconds is.",
        examples=["2m"],
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.client_cert_file is None) != (self.client_key_file is None):
            raise bad_value(
                "and client_key_file belong together", "give both, or neither", "client_cert_file"
            )
        if self.kept_seconds < 2 * self.sample_seconds:
            raise bad_value(
                "is less than two looks take", "raise it, or lower sample_seconds", "kept_seconds"
            )
        return self
