"""Settings shared by several sections: TLS of a listener, access to an S3 object store."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator

from frazil.config.values import Seconds, Section, bad_value


class TlsConfig(Section):
    cert_file: Path = Field(
        description="Server certificate chain (PEM), leaf first.", examples=["/etc/frazil/tls.crt"]
    )
    key_file: Path = Field(
        description="Private key of the certificate (PEM, without a password).",
        examples=["/etc/frazil/tls.key"],
    )
    client_ca_file: Path | None = Field(
        None,
        description="CA certificates (PEM) for client certificates. If set, every client must present a "
        "certificate (mTLS).",
        examples=["/etc/frazil/clients-ca.crt"],
    )
    reload_interval_seconds: Seconds = Field(
        30,
        gt=0,
        description="Interval between checks for renewed files. New connections use the renewed files. Each "
        "check costs one stat call per file.",
    )


class S3Connection(Section):
    endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^/\s]+/?$",
        description="URL of the object store. Absent: AWS S3.",
        examples=["https://s3.example.com"],
    )
    region: str = Field("us-east-1", min_length=1, description="Region of the bucket.")
    path_style: bool | None = Field(
        None,
        description="Put the bucket name in the URL path instead of the host name. Absent: true if endpoint "
        "is set.",
    )
    access_key_id: str | None = Field(
        None, description="Access key ID. Absent: use the credentials of the AWS environment."
    )
    secret_access_key: SecretStr | None = Field(
        None, description="Secret for access_key_id. Prefer an environment variable."
    )
    allow_http: bool = Field(False, description="Allow an endpoint without TLS.")
    sse_kms_key_id: str | None = Field(
        None, description="Encrypt objects with this KMS key. Each object costs KMS calls."
    )

    @property
    def uses_path_style(self) -> bool:
        """`path_style`, or true if `endpoint` is set."""
        return self.endpoint is not None if self.path_style is None else self.path_style

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            given = "access_key_id" if self.access_key_id is not None else "secret_access_key"
            other = "secret_access_key" if self.access_key_id is not None else "access_key_id"
            raise bad_value(
                f"is set without {other}",
                f"set {other} too, or remove both to use the credentials of the AWS environment",
                given,
            )
        if self.endpoint is not None and self.endpoint.startswith("http:") and not self.allow_http:
            raise bad_value("has no TLS", "use https, or set allow_http: true", "endpoint")
        return self
