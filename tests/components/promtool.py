"""Prometheus' own checker of configurations and rules, from Debian's package, without installing it.

`python -m tests.components.promtool` fetches it, so that no test waits for it.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from .cache import ComponentMissingError, built_once, cache_folder, run

_FETCH_SECONDS_MAX = 300


def promtool() -> Path:
    """The one on the path, or else Debian's."""
    installed = shutil.which("promtool")
    return Path(installed) if installed is not None else built_once("promtool-debian", "promtool", _fetch)


def _fetch(into: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ComponentMissingError("promtool", "promtool (Debian: prometheus), or apt-get and dpkg-deb")
    print(f"fetching promtool (once; kept in {cache_folder()})", file=sys.stderr, flush=True)
    run("promtool", ["apt-get", "download", "prometheus"], seconds_max=_FETCH_SECONDS_MAX, folder=into)
    (package,) = into.glob("prometheus_*.deb")
    extract = ["dpkg-deb", "--extract", package.name, "package"]
    run("promtool", extract, seconds_max=_FETCH_SECONDS_MAX, folder=into)
    shutil.move(into / "package" / "usr" / "bin" / "promtool", into / "promtool")


if __name__ == "__main__":
    print(promtool())
