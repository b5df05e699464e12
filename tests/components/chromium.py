"""Debian's Chromium, without a window, driven by Playwright, which need not fetch a browser of its own.

`python -m tests.components.chromium` installs it where it is missing, so that no test waits for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .cache import ComponentMissingError, cache_folder, run

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_PROGRAM = Path("/usr/bin/chromium")
_INSTALL_SECONDS_MAX = 600
_FLAGS = (
    "--no-sandbox",  # as root there is none; all that it visits is ours
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # nobody else is ever asked
)


def chromium() -> Path:
    """The one that is installed, else Debian's package, which only root can install."""
    if not _PROGRAM.exists():
        cache_folder().mkdir(parents=True, exist_ok=True)
        with open(cache_folder() / "chromium.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _PROGRAM.exists():
                _install()
    return _PROGRAM


@contextlib.contextmanager
def running_chromium(program: Path) -> Iterator[Browser]:
    """A browser with a new profile. Playwright holds an event loop in this thread until the block ends:
    nothing else in the thread can run one meanwhile.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, headless=True, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def _install() -> None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ComponentMissingError("Chromium", "/usr/bin/chromium (Debian: chromium)")
    print("installing chromium (once)", file=sys.stderr, flush=True)
    for command in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
        run("Chromium", ["apt-get", *command], seconds_max=_INSTALL_SECONDS_MAX)
    if not _PROGRAM.exists():
        raise ComponentMissingError("Chromium", f"a package that installs {_PROGRAM}")


if __name__ == "__main__":
    print(chromium())
