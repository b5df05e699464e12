"""The health of a role: one format for /livez, /readyz and /healthz of every role.

The response is JSON, or text for a client that accepts text and not JSON, as browsers do. It names no tenant
and needs no API key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from frazil import __version__

Role = Literal["receiver", "pipeline", "api", "dashboard"]
Problems = Mapping[str, str]
"""Reasons by the dependency, table or role that has the problem."""

PATHS = ("/livez", "/readyz", "/healthz")


class HealthReport(BaseModel):
    """The response body of /livez, /readyz and /healthz."""

    model_config = ConfigDict(frozen=True)

    ok: bool = Field(description="False if and only if the status is 503.")
    role: Role
    version: str
    problems: dict[str, str] = Field(
        description="Reasons by the dependency, table or role that has the problem. A problem that needs "
        "only an operator's decision is shown although `ok` is true."
    )

    def reasons(self) -> list[str]:
        return [why if part == self.role else f"{part}: {why}" for part, why in self.problems.items()]


@dataclass(frozen=True)
class HealthResponse:
    status: int
    body: bytes
    content_type: str


@dataclass(frozen=True)
class Health:
    role: Role
    failing: Problems = field(default_factory=dict)
    """The role cannot do its work: /readyz and /healthz return 503."""
    degraded: Problems = field(default_factory=dict)
    """The role works, but not as it should: only /healthz returns 503."""
    notices: Problems = field(default_factory=dict)
    """The role works, and an operator has to decide something: /readyz and /healthz return 200."""

    def report(self, path: str = "/healthz") -> HealthReport:
        """Return the report for `path`, one of PATHS. /livez is always ok."""
        if path == "/livez":
            return HealthReport(ok=True, role=self.role, version=__version__, problems={})
        bad = self.failing if path == "/readyz" else {**self.failing, **self.degraded}
        problems = {**self.failing, **self.degraded, **self.notices}
        return HealthReport(ok=not bad, role=self.role, version=__version__, problems=problems)

    def response(self, path: str, accept: str = "") -> HealthResponse:
        """Return the response to a request with this Accept header."""
        report = self.report(path)
        status = 200 if report.ok else 503
        if "text/" not in accept or "json" in accept:
            return HealthResponse(
                status, json.dumps(report.model_dump()).encode() + b"\n", "application/json"
            )
        verdict = "; ".join(report.reasons()) or "ok"
        text = f"frazil {report.version} {report.role}: {'' if report.ok else 'not ready: '}{verdict}\n"
        return HealthResponse(status, text.encode(), "text/plain; charset=utf-8")


def parse(body: bytes) -> HealthReport | None:
    """Parse a response body. Return None if it is not from a role of frazil."""
    try:
        return HealthReport.model_validate_json(body)
    except ValidationError:
        return None
