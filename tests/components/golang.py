"""Go programs, built once and cached: telemetrygen, a Collector, versitygw.

`python -m tests.components.golang` builds all of them, so that no test waits for a compiler.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import yaml

from .cache import ComponentMissingError, built_once, cache_folder

TELEMETRYGEN = "github.com/open-telemetry/opentelemetry-collector-contrib/cmd/telemetrygen@v0.161.0"
COLLECTOR_BUILDER = "go.opentelemetry.io/collector/cmd/builder@v0.155.0"
COLLECTOR_MANIFEST = Path(__file__).with_name("collector.yaml")
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"

BUILD_SECONDS_MAX = 1800


def telemetrygen() -> Path:
    """The OpenTelemetry load generator."""
    return _installed(TELEMETRYGEN)


def versitygw() -> Path:
    """An S3 server over a folder."""
    return _installed(VERSITYGW)


def collector() -> Path:
    """The Collector described by collector.yaml; a changed manifest is a new build."""
    manifest = COLLECTOR_MANIFEST.read_text()
    described = yaml.safe_load(manifest)
    name = described["dist"]["name"]
    digest = hashlib.sha256(manifest.encode()).hexdigest()[:12]

    def build(into: Path) -> None:
        described["dist"]["output_path"] = str(into)
        resolved = into / "manifest.yaml"
        resolved.write_text(yaml.safe_dump(described))
        _run_build(name, [str(_installed(COLLECTOR_BUILDER)), "--config", str(resolved)], into)

    return built_once(f"{name}-{described['dist']['version']}-{digest}", name, build)


def _installed(module_at_version: str) -> Path:
    module, version = module_at_version.split("@")
    name = module.rsplit("/", 1)[1]

    def build(into: Path) -> None:
        _run_build(f"{name} {version}", ["go", "install", module_at_version], into)

    return built_once(f"{name}-{version}", name, build)


def _run_build(what: str, command: list[str], into: Path) -> None:
    if shutil.which("go") is None:
        raise ComponentMissingError(what, "the Go toolchain (`go` is not on PATH)")
    print(f"building {what} (once; kept in {cache_folder()})", file=sys.stderr, flush=True)
    began = time.monotonic()
    flags = f"{os.environ.get('GOFLAGS', '')} -trimpath -p=2".strip()
    ended = subprocess.run(
        ["nice", "-n", "10", *command],
        cwd=into,
        env=os.environ | {"GOBIN": str(into), "GOFLAGS": flags, "CGO_ENABLED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_SECONDS_MAX,
    )
    if ended.returncode != 0:
        raise ComponentMissingError(
            what, f"`{' '.join(command)}` ended with {ended.returncode}:\n{ended.stdout[-2000:]}"
        )
    print(f"built {what} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def main() -> int:
    """Builds all. Where that cannot be, CI fails; elsewhere the tests that need them will skip."""
    try:
        for program in (telemetrygen, versitygw, collector):
            print(program())
    except ComponentMissingError as error:
        print(error, file=sys.stderr)
        return 1 if os.environ.get("CI") else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
