"""The OpenTelemetry Collector, running with a test's configuration."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from .golang import collector
from .process import answers, serving


@contextlib.contextmanager
def running_collector(folder: Path, *, config: dict[str, Any]) -> Iterator[None]:
    """Runs the Collector with this configuration, to which a health check is added."""
    program = collector()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "collector.yaml"

    def command(port: int) -> list[str | Path]:
        file.write_text(yaml.safe_dump(_with_health_check(config, port)))
        return [program, "--config", file]

    with serving("collector", folder, command, ready=lambda port: answers(port, statuses=lambda s: s == 200)):
        yield


def _with_health_check(config: dict[str, Any], port: int) -> dict[str, Any]:
    service = config["service"]
    return {
        **config,
        "extensions": {**config.get("extensions", {}), "health_check": {"endpoint": f"127.0.0.1:{port}"}},
        "service": {
            # Without metrics of its own: they would bind port 8888, whoever else runs a Collector here.
            "telemetry": {"metrics": {"level": "none"}},
            **service,
            "extensions": [*service.get("extensions", []), "health_check"],
        },
    }
