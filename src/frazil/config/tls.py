"""TLS of a listener."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from frazil.config.section import Section
from frazil.config.values import Seconds


class TlsConfig(Section):
    cert_file: Path = Field(
        description="The server's certificate chain (PEM), leaf first.", examples=["/etc/frazil/tls.crt"]
    )
    key_file: Path = Field(
        description="The certificate's private key (PEM, without a password).",
        examples=["/etc/frazil/tls.key"],
    )
    client_ca_file: Path | None = Field(
        None,
        description="Authorities (PEM) of client certificates. Set: every client must present one (mTLS).",
        examples=["/etc/frazil/clients-ca.crt"],
    )
    reload_interval_seconds: Seconds = Field(
        30,
        gt=0,
        description="How often renewed files are looked for; new connections use them. Costs a stat each.",
    )
