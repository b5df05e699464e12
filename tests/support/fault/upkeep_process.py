"""Clean-up and closing in processes that can be killed; `UpkeepProcess` controls them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from frazil.position import LandingPosition, WalPosition, landing_position
from frazil.storage.local import LocalStore
from frazil.wal import cleanup
from frazil.wal.idle_streams import IdleStreamCloser
from tests.support.fault.forks import Forks, say_facts, serve
from tests.support.wal_stores import HandClock, clean_up


@dataclass(frozen=True)
class Outcome:
    """`returncode` is the child's: -9 after SIGKILL. `names`: gone streams, or paths of tombstones."""

    returncode: int
    names: frozenset[str] = frozenset()


class UpkeepProcess(Forks):
    module = "tests.support.fault.upkeep_process"

    def clean_up(self, root: Path, position: WalPosition) -> Outcome:
        return self._run("clean up", root, position)

    def close_idle(self, root: Path, position: WalPosition) -> Outcome:
        """Two looks, with the idle time between them."""
        return self._run("close", root, position)

    def _run(self, what: str, root: Path, position: WalPosition) -> Outcome:
        self.say(
            json.dumps({"what": what, "root": str(root), "position": LandingPosition(position).to_text()})
        )
        said = self.facts()
        return Outcome(said["returncode"], frozenset(said.get("names", ())))


def _work(what: str, root: str, position: str) -> None:
    store, at = LocalStore(Path(root)), landing_position(position).wal
    if what == "clean up":
        cleanup.SEGMENTS_AT_ONCE_MAX = 2  # so that it also ends between two batches
        say_facts(names=sorted(clean_up(store, "logs", at).empty_streams))
        return
    clock = HandClock()
    closer = IdleStreamCloser(store, clock, 10)
    assert closer.close_idle("logs", at) == []
    clock.seconds += 10
    say_facts(names=[name.path for name in closer.close_idle("logs", at)])


if __name__ == "__main__":
    serve(_work)
