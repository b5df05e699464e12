"""A driver of Spark in a process and a process group of its own, to be interrupted and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from tests.components.process import wait_until

PROGRAM = Path(__file__).with_name("driver_process.py")


class Driver:
    """Answers with facts: when it has started, and to each word that `ask` sends."""

    def __init__(self, config: dict[str, object], folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.log = folder.with_suffix(".log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, PROGRAM, json.dumps(config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    def ask(self, word: str) -> dict[str, Any]:
        """A word of `driver_process`: `job`, `fail`, `iceberg`, `java`, `restart` or `stop`."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n".encode())
        self.process.stdin.flush()
        return self._answer()

    def interrupt(self) -> None:
        """Ctrl-C in a terminal: the signal goes to every process of the group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def jvm_ended(self, seconds_max: float = 30.0) -> bool:
        return wait_until(lambda: not _lives(self.jvm), seconds_max=seconds_max)

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the driver ended: {self.log.read_text()[-4000:]}"
        facts: dict[str, Any] = json.loads(line)
        return facts

    def __enter__(self) -> Self:
        try:
            self.jvm = psutil.Process(int(self._answer()["jvm"]))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self.process.kill()
        self.process.communicate()


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
