"""What docs/backup.md says, done: a backup while everything runs, the machine lost, and every row counted.

Everything is the real thing but Spark: the functions that its tasks run are called here, in a thread that
lands and cleans up without a pause.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pyiceberg.exceptions import NoSuchTableError

from frazil.lake.commits.commit import read_checkpoint
from frazil.position import landing_position
from tests.components.process import dies_with_parent, end, wait_until
from tests.support.integration.messages import logs
from tests.support.integration.moving_lake import Landing
from tests.support.receiver import Receiver, running_receiver
from tests.support.spark.land_process import landed_bodies, verified

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "backup.md"
LAND = {"wal_grace_seconds": 1}
"""Segments go a second after they have landed: the copy is made while files vanish."""


def commands(heading: str) -> str:
    """The shell commands below a heading of the page, with this environment's Python."""
    part = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```$", part, flags=re.MULTILINE | re.DOTALL)
    assert blocks, heading
    return "".join(blocks).replace(".venv/bin/", f"{Path(sys.executable).parent}/")


def sh(script: str, folder: Path) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"


class Numbered(threading.Thread):
    """Sends log after log, each with a number; `acked` are those that the receiver said OK to."""

    def __init__(self, receiver: Receiver, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix
        self._url = f"{receiver.http}/v1/logs"
        self._ended = threading.Event()
        self.acked: list[str] = []

    def run(self) -> None:
        with httpx.Client(timeout=60) as client:
            for number in itertools.count():
                if self._ended.is_set():
                    return
                request = logs("numbered", 5)
                bodies = [f"{self._prefix}-{number}-{place}" for place in range(5)]
                for record, body in zip(
                    request.resource_logs[0].scope_logs[0].log_records, bodies, strict=True
                ):
                    record.body.string_value, record.time_unix_nano = body, time.time_ns()
                headers = {"content-type": "application/x-protobuf"}
                answer = client.post(self._url, content=request.SerializeToString(), headers=headers)
                if answer.is_success:
                    self.acked += bodies

    def __enter__(self) -> Numbered:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join(90)


@contextlib.contextmanager
def demo(receiver: Receiver) -> Iterator[None]:
    """The shop's traffic beside it."""
    command = [sys.executable, "-m", "frazil", "demo", "--protocol", "http", "--rate", "3"]
    command += ["--endpoint", receiver.http]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(dies_with_parent(command), stdout=quiet, stderr=quiet)
    try:
        yield
    finally:
        end(process)


@contextlib.contextmanager
def landing(receiver: Receiver) -> Iterator[Landing]:
    with contextlib.closing(Landing(receiver.config)) as made, made.going_on(0.2):
        yield made


def landed(made: Landing) -> int:
    """Rows of logs that have ever landed."""
    try:
        return landing_position(read_checkpoint(made.catalog, ("otel", "logs")).position).rows
    except NoSuchTableError:
        return 0


def until_landed(made: Landing, more: int) -> None:
    begin = landed(made)
    assert wait_until(
        lambda: landed(made) >= begin + more, seconds_max=120, give_up=lambda: made.error is not None
    )


def counted(folder: Path, receiver: Receiver) -> Counter[str]:
    """How often each of the numbered logs is answered, from tables and log together."""
    query = [
        sys.executable,
        "-m",
        "frazil",
        "--config",
        str(receiver.config_path),
        "query",
        "--format",
        "csv",
    ]
    asked = "SELECT body FROM logs WHERE service_name = 'numbered'"
    done = subprocess.run(
        [*query, asked], cwd=folder, capture_output=True, text=True, timeout=120, check=True
    )
    return Counter(line.strip('"') for line in done.stdout.splitlines()[1:])


def test_what_was_acked_before_the_backup_is_in_the_restored_lake_exactly_once(tmp_path: Path) -> None:
    settings = {"data_dir": str(tmp_path / "frazil-data"), "land": LAND}
    with running_receiver(tmp_path, settings) as receiver:
        with demo(receiver), Numbered(receiver, "first") as sender, landing(receiver) as made:
            until_landed(made, 200)
            before = list(sender.acked)
            sh(commands("Any file system, while everything runs"), tmp_path)
            until_landed(made, 100)  # what came after the backup has landed too, and is lost
        receiver.kill()
        after = sender.acked
        assert 0 < len(before) < len(after)
        (tmp_path / "frazil-data").rename(tmp_path / "burnt")

        sh(commands("Restore"), tmp_path)  # the last command of it is `frazil verify`
        restored = counted(tmp_path, receiver)
        assert [body for body in before if restored[body] != 1] == []
        assert set(restored.values()) == {1}
        assert set(restored) < set(after)

        receiver.start()
        with Numbered(receiver, "second") as sender, landing(receiver) as made:
            until_landed(made, 100)
        with contextlib.closing(Landing(receiver.config)) as last:
            last.land()
        found = landed_bodies(receiver.config_path)
        numbered = {body: n for body, n in found.items() if body and body.startswith(("first-", "second-"))}
        assert numbered == restored + Counter(sender.acked)
        code, ledger = verified(receiver.config_path)
        assert (code, ledger["problems"]) == (0, [])
