"""A process that imports everything once and then forks a child for each command: a sweep over hundreds of
deaths takes no longer than what the children do. Commands and answers are lines on its stdin and stdout.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from tests.components.process import dies_with_parent, end


class Forks:
    """The parent of those children, seen from the test. `module` is what it runs."""

    module: str

    def __init__(self, log: Path, *, environment: Mapping[str, str] | None = None) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                dies_with_parent([sys.executable, "-m", self.module]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=Path(__file__).parents[3],
                env=os.environ | dict(environment or {}),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        end(self._process)
        self._process.stdout.close()

    def say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode() + b"\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode()
        assert line, f"{self.module} ended with {self._process.wait(10)}"
        return line.strip()

    def facts(self) -> dict[str, Any]:
        """What the child said with `say_facts`, and its `returncode`: -9 after SIGKILL, 1 after an error."""
        said: dict[str, Any] = {}
        while "returncode" not in said:
            said |= json.loads(self.hear())
        return said


def say_facts(**facts: Any) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")


def forked(work: Callable[[], None]) -> int:
    """The exit code of a child that does this."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def serve(work: Callable[..., None]) -> None:
    """Each line on stdin is a JSON object: the arguments of `work` in a child of its own."""
    for line in sys.stdin:
        say_facts(returncode=forked(lambda line=line: work(**json.loads(line))))
