"""Clean-up and closing in processes that can be killed; `UpkeepProcess` controls them.

As journal_process.py: run as a program it imports everything once and then forks a child for each command.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frazil.wal.cleanup import clean_up
from frazil.wal.closing import Closer
from frazil.wal.local import LocalStore
from frazil.wal.position import Position
from tests.components.process import dies_with_parent, end
from tests.wal_stores import HandClock


@dataclass(frozen=True)
class Outcome:
    """`returncode` is the child's: -9 after SIGKILL. `names`: gone streams, or paths of tombstones."""

    returncode: int
    names: frozenset[str] = frozenset()


class UpkeepProcess:
    def __init__(self, log: Path, *, environment: Mapping[str, str]) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                dies_with_parent([sys.executable, "-m", "tests.fault.upkeep_process"]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=Path(__file__).parents[2],
                env=os.environ | dict(environment),
                text=True,
            )
        assert self._hear() == "ready"

    def __enter__(self) -> UpkeepProcess:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        end(self._process)
        self._process.stdout.close()

    def clean_up(self, root: Path, position: Position) -> Outcome:
        return self._run("clean up", root, position)

    def close_idle(self, root: Path, position: Position) -> Outcome:
        """Two looks, with the idle time between them."""
        return self._run("close", root, position)

    def _run(self, what: str, root: Path, position: Position) -> Outcome:
        assert self._process.stdin is not None
        command = {"what": what, "root": str(root), "position": position.to_text()}
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        said: dict[str, Any] = {}
        while "returncode" not in said:
            said |= json.loads(self._hear())
        return Outcome(said["returncode"], frozenset(said.get("names", ())))

    def _hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the parent ended with {self._process.wait(10)}"
        return line.strip()


def _say(**facts: Any) -> None:
    os.write(1, json.dumps(facts).encode() + b"\n")


def _work(what: str, root: str, position: str) -> None:
    store, at = LocalStore(Path(root)), Position.from_text(position)
    if what == "clean up":
        _say(names=sorted(clean_up(store, "logs", at).gone_streams))
        return
    clock = HandClock()
    closer = Closer(store, clock, 10)
    assert closer.close_idle("logs", at) == []
    clock.seconds += 10
    _say(names=[name.path for name in closer.close_idle("logs", at)])


def main() -> None:
    os.write(1, b"ready\n")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                _work(**json.loads(line))
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        _say(returncode=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
