"""What every page is given."""

from __future__ import annotations

from dataclasses import dataclass

from frazil.dashboard.api_client import Api
from frazil.dashboard.time_range import TimeRange


@dataclass(frozen=True)
class View:
    api: Api
    span: TimeRange
    refresh_seconds: float | None
    """How often a page that shows the present asks again; None where it does not."""
    otlp_http: str
    otlp_grpc: str
    """Where this frazil receives, for snippets to copy."""
