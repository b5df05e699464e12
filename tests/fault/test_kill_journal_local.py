"""SIGKILL at every change of a file by a journal on a local disk, until there is none left."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from frazil.config import Config, load_config
from tests.components.fullness import CHANGES, FaultControl, When
from tests.support.fault.journal_process import JournalProcess, Run, check, streams
from tests.support.receiver import write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def journals(tmp_path: Path, faults: FaultControl) -> Iterator[JournalProcess]:
    with JournalProcess(tmp_path / "journals.log", environment=faults.environment()) as process:
        yield process


def config_in(folder: Path) -> tuple[Path, Config]:
    folder.mkdir()
    path = write_config(folder, 1, 2, {"wal": {"group_wait_seconds": 0.002}})
    return path, load_config(path, environ={})


@pytest.mark.parametrize(("operations", "when"), [(CHANGES, "before"), (("write",), "halfway")])
def test_a_journal_killed_at_any_operation_of_a_request_loses_nothing_it_acked(
    operations: tuple[str, ...], when: When, disk: Path, faults: FaultControl, journals: JournalProcess
) -> None:
    acked = 0
    for n in itertools.count(1):
        folder = disk / str(n)
        config_path, config = config_in(folder)
        killed = journals.run(
            config_path, "killed", when_started=lambda run, n=n: faults.kill_at(operations, n, when)
        )
        faults.clear()
        check(config, killed)
        if not faults.fired:
            break
        assert killed.returncode == -9
        assert not killed.done
        acked += len(killed.acked)
        before = streams(config)
        again = journals.run(config_path, "again")
        assert again.acked == again.attempted
        check(config, killed, again)
        assert len(streams(config) - before) == 2  # logs and spans: streams of their own
        shutil.rmtree(folder)
    assert killed.acked == killed.attempted
    assert acked > 0  # some deaths came between the acks, not all before the first
    assert n > 20 if when != "halfway" else n > 3


def test_a_journal_killed_at_any_operation_of_its_start_leaves_what_was_there(
    disk: Path, faults: FaultControl, journals: JournalProcess
) -> None:
    """The same folder all the time: every start finds what dozens of killed ones left behind."""
    config_path, config = config_in(disk / "kept")
    runs: list[Run] = []
    for n in itertools.count(1):
        killed = journals.run(
            config_path, f"start{n}", requests=1, when_born=lambda run, n=n: faults.kill_at(CHANGES, n)
        )
        fired = faults.fired
        faults.clear()
        runs.append(killed)
        if not fired:
            break
        assert killed.returncode == -9
    check(config, *runs)
    assert n > 100  # three rounds of eight writers, and the requests after them
    assert killed.acked == killed.attempted
