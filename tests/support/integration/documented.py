"""The code blocks of the documentation, and a running stack to run them on.

The stack's tables were landed in several commits and then compacted, so the files that compaction replaced
still lie in the warehouse: a recipe that reads files and not the table counts their rows twice.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from frazil.config import Config
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.pipeline.land.lander import Lander
from frazil.pipeline.land.segments import SegmentSource
from frazil.pipeline.maintain.maintainer import Maintainer
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.metrics import Metrics
from frazil.tables import Signal
from frazil.wal.reader import WalReader
from frazil.wal.store import open_store
from tests.support.integration.api import Api
from tests.support.integration.clients import SIGNALS
from tests.support.local_runner import LocalRunner
from tests.support.receiver import Receiver

ROOT = Path(__file__).parents[3]
COMPACTS_EARLY = {"maintain": {"compact": {"fan_in": 2}}}
"""Settings of a stack that `compact` is called on: two files are enough to be merged."""
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Block:
    page: str
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text.partition(chr(10))[0][:70]}"

    @property
    def commands(self) -> list[str]:
        """Lines of shell, each whole."""
        return self.text.replace("\\\n", " ").splitlines()


def documented_blocks() -> list[Block]:
    """Every fenced block of README.md, docs/ and deploy/, in order. The changelog is history."""
    pages = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("deploy/**/*.md"))]
    return [
        Block(str(page.relative_to(ROOT)), language, text)
        for page in pages
        for language, text in _FENCE.findall(page.read_text())
    ]


def block(page: str, begins: str) -> Block:
    """The one block of a page that begins so."""
    found = [each for each in documented_blocks() if each.page == page and each.text.startswith(begins)]
    assert len(found) == 1, f"{len(found)} blocks of {page} begin with {begins!r}"
    return found[0]


RUN: set[tuple[str, str]] = set()
"""Page and beginning of the blocks that tests marked with `runs` run."""


def runs(page: str, *beginnings: str) -> Callable[[F], F]:
    """Marks a test or a fixture that runs these blocks."""

    def mark(function: F) -> F:
        RUN.update((page, begins) for begins in beginnings)
        return function

    return mark


def land_all(config: Config) -> None:
    """Lands all that waits in the log, with tasks that run here."""
    with contextlib.closing(open_catalog(config)) as catalog:
        ensure_namespace(catalog, config.lake.namespace)
        reader = WalReader(open_store(config))
        for signal in SIGNALS:
            source = SegmentSource(config, signal, reader)
            lander = Lander(config, signal, catalog, source, LocalRunner(), Metrics(), reader=reader)
            while lander.step(now_due=True) != "idle":
                pass


@dataclass
class Stack:
    api: Api
    receiver: Receiver

    def sh(self, command: str, replaced: Mapping[str, str] | None = None) -> str:
        """Runs a command as typed, with the programs of this environment and the addresses of this stack."""
        bin = Path(sys.executable).parent
        places = {
            "http://127.0.0.1:4318": self.receiver.http,
            "http://127.0.0.1:4380": self.api.url,
            "localhost:4380": self.api.url,
            ".venv/bin/": f"{bin}/",
            **(replaced or {}),
        }
        for written, here in places.items():
            command = command.replace(written, here)
        done = subprocess.run(
            ["bash", "-euc", command],
            cwd=self.receiver.folder,
            env={**os.environ, "PATH": f"{bin}{os.pathsep}{os.environ['PATH']}", "NO_PROXY": "127.0.0.1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def land(self) -> None:
        land_all(self.receiver.config)

    def compact(self) -> None:
        """Merges the files of each table, and checks that those it replaced are still in the warehouse."""
        config = self.receiver.config
        with contextlib.closing(open_catalog(config)) as catalog:
            maintainer = Maintainer(config, catalog, LocalRunner(), MaintainMetrics(Metrics().registry))
            for signal in SIGNALS:
                report = maintainer.run("compact", signal)
                assert report.files_out < report.files_in, signal
                live = sum(1 for _ in catalog.load_table(("otel", signal)).scan().plan_files())
                assert len(list(self.data_files(signal))) > live, "nothing to count twice"

    def data_files(self, signal: Signal) -> Iterator[Path]:
        """Those of every snapshot."""
        return (Path(self.receiver.config.warehouse) / "otel" / signal / "data").rglob("*.parquet")
