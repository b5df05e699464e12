"""How to reach an object store that speaks S3."""

from __future__ import annotations

from typing import Self

from pydantic import Field, SecretStr, model_validator

from frazil.config.section import Section
from frazil.config.values import bad_value


class S3Connection(Section):
    endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^/\s]+/?$",
        description="The address of a store other than AWS.",
        examples=["https://s3.example.com"],
    )
    region: str = Field("us-east-1", min_length=1, description="The bucket's region.")
    path_style: bool | None = Field(
        None,
        description="Whether the bucket goes into the path, not the host. Absent: yes if endpoint is set.",
    )
    access_key_id: str | None = Field(None, description="Absent: the credentials of the AWS environment.")
    secret_access_key: SecretStr | None = Field(
        None, description="Goes with access_key_id. Better given in the environment."
    )
    allow_http: bool = Field(False, description="Allow an endpoint without TLS.")
    sse_kms_key_id: str | None = Field(
        None, description="Encrypt objects with this KMS key. Costs KMS calls."
    )

    @property
    def uses_path_style(self) -> bool:
        """`path_style`, or whether an endpoint is set."""
        return self.endpoint is not None if self.path_style is None else self.path_style

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            given = "access_key_id" if self.access_key_id is not None else "secret_access_key"
            other = "secret_access_key" if self.access_key_id is not None else "access_key_id"
            raise bad_value(
                f"is given without {other}",
                f"give both, or neither to use the AWS environment's; {other} is missing",
                given,
            )
        if self.endpoint is not None and self.endpoint.startswith("http:") and not self.allow_http:
            raise bad_value("has no TLS", "use https, or set allow_http: true", "endpoint")
        return self
