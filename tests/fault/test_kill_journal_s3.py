"""SIGKILL around every PUT of a journal on S3, one after the other, until there is none left."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from frazil.config import Config, load_config
from tests.components.fixtures import FaultyProxyFactory
from tests.components.proxy import FaultyProxy
from tests.components.s3 import S3Server
from tests.support.fault.buckets import new_bucket, s3_settings
from tests.support.fault.journal_process import JournalProcess, Run, check, streams
from tests.support.receiver import write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HELD_SECONDS = 0.15
"""How long the proxy holds each request: long enough to act while one is on its way."""


@pytest.fixture
def journals(tmp_path: Path) -> Iterator[JournalProcess]:
    with JournalProcess(tmp_path / "journals.log") as process:
        yield process


class Sweep:
    """A journal behind a proxy; `killed(n, how)` is one life that ends at its n-th PUT, if there is one."""

    def __init__(self, folder: Path, server: S3Server, proxy: FaultyProxy, journals: JournalProcess) -> None:
        self._server, self._folder, self._proxy, self._journals = server, folder, proxy, journals

    def bucket(self, n: int) -> tuple[Path, Config]:
        """A configuration that goes through the proxy, and one for the reader that does not."""
        bucket = new_bucket(self._server)
        paths = []
        for name, server in (("writer", self._server.through(self._proxy)), ("reader", self._server)):
            folder = self._folder / f"{name}-{n}"
            folder.mkdir()
            settings = s3_settings(server, bucket, group_wait_seconds=0.002)
            paths.append(write_config(folder, 1, 2, settings))
        return paths[0], load_config(paths[1], environ={})

    def killed(self, path: Path, n: int, how: Callable[[FaultyProxy, int], None], *, at_start: bool) -> Run:
        def watch(run: Run) -> None:
            wanted = self._proxy.count("PUT") + n
            if before_it_ends(run.pid, lambda: self._proxy.count("PUT") >= wanted):
                how(self._proxy, run.pid)

        self._proxy.latency_seconds = HELD_SECONDS
        try:
            if at_start:
                return self._journals.run(path, "killed", requests=1, when_born=watch)
            return self._journals.run(path, "killed", when_sending=watch)
        finally:
            self._proxy.latency_seconds = 0


def before_it_ends(pid: int, condition: Callable[[], bool]) -> bool:
    """Whether the condition came true while the process lived. Asks often: no PUT is held for long."""
    while Path(f"/proc/{pid}").exists():
        if condition():
            return True
        time.sleep(0.004)
    return False


def lost_on_the_way(proxy: FaultyProxy, pid: int) -> None:
    """The PUT is held by the proxy and never reaches the store."""
    proxy.refuse()
    os.kill(pid, signal.SIGKILL)
    proxy.resume()


def outliving_its_writer(proxy: FaultyProxy, pid: int) -> None:
    """The PUT reaches the store when its writer is dead."""
    os.kill(pid, signal.SIGKILL)


def without_an_answer(proxy: FaultyProxy, pid: int) -> None:
    """The PUT took effect, and the writer died before it could hear of it."""
    dropped = proxy.dropped("PUT")
    proxy.drop_response_once("PUT", how="hang")
    assert before_it_ends(pid, lambda: proxy.dropped("PUT") > dropped)
    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def sweep(
    tmp_path: Path, moto_s3: S3Server, faulty_proxy: FaultyProxyFactory, journals: JournalProcess
) -> Sweep:
    return Sweep(tmp_path, moto_s3, faulty_proxy(moto_s3.host, moto_s3.port), journals)


@pytest.mark.parametrize("how", [lost_on_the_way, outliving_its_writer, without_an_answer])
def test_a_journal_killed_around_any_put_of_a_request_loses_nothing_it_acked(
    how: Callable[[FaultyProxy, int], None], sweep: Sweep, journals: JournalProcess
) -> None:
    acked = 0
    for n in itertools.count(1):
        path, config = sweep.bucket(n)
        killed = sweep.killed(path, n, how, at_start=False)
        check(config, killed)
        if killed.done:
            break
        assert killed.returncode == -9
        acked += len(killed.acked)
        before = streams(config)
        again = journals.run(path, "again")
        assert again.acked == again.attempted
        check(config, killed, again)
        assert len(streams(config) - before) >= 2  # its own two, and perhaps the dead one's late segment
    assert killed.acked == killed.attempted
    assert n > 4
    assert acked > 0


@pytest.mark.parametrize("how", [lost_on_the_way, without_an_answer])
def test_a_journal_killed_around_a_put_of_its_start_can_start_again(
    how: Callable[[FaultyProxy, int], None], sweep: Sweep, journals: JournalProcess
) -> None:
    path, config = sweep.bucket(0)
    runs = []
    for n in (1, 5, 9, 17, 24):  # probes: three rounds of eight writers
        killed = sweep.killed(path, n, how, at_start=True)
        assert killed.returncode == -9
        assert not killed.started
        runs.append(killed)
    again = journals.run(path, "again")
    assert again.acked == again.attempted
    check(config, *runs, again)
