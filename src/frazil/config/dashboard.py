"""Looking: the dashboard."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from frazil.config.section import Section
from frazil.config.tls import TlsConfig
from frazil.config.values import Count, Listen, Seconds, local_url


class DashboardConfig(Section):
    enabled: bool = Field(True, description="Whether `frazil up` starts the dashboard: about 200 MB.")
    listen: Listen = Field(
        "127.0.0.1:8501", description="host:port of the dashboard. Port 0 takes any free port."
    )
    tls: TlsConfig | None = Field(None, description="TLS on the dashboard. Absent: plain text.")
    api_url: str | None = Field(
        None,
        description="The API that it asks. Absent: the one of serve.listen.",
        examples=["https://frazil.example.com"],
    )
    api_ca_file: Path | None = Field(
        None,
        description="Who signed the certificate of `api_url`. Absent: those that the system trusts. "
        "The API of this configuration is known by its own certificate.",
    )
    session_seconds: Seconds = Field(
        12 * 3600,
        gt=0,
        description="How long a login lasts without use: a page that is opened, or something that is chosen "
        "on it. A page that refreshes by itself is no use. Logins are in memory alone: a restart ends them.",
    )

    sockets_max: Count = Field(
        200,
        ge=1,
        description="The most pages that may be open at once. Each has a websocket and a session in memory.",
    )
    sockets_per_address_max: Count = Field(
        50,
        ge=1,
        description="The most open pages of one client address. Behind a proxy that does not send "
        "X-Forwarded-For from this machine, all clients have the proxy's address.",
    )

    @property
    def url(self) -> str:
        """Where a browser on this machine finds it."""
        return local_url(self.listen, tls=self.tls is not None)
