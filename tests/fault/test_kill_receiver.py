"""SIGKILL of a whole receiver, or of its worker alone, while clients send over HTTP and gRPC."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.components.fixtures import FaultyProxyFactory
from tests.components.fullness import FaultControl, When
from tests.components.s3 import S3Server
from tests.support.fault.buckets import new_bucket, s3_settings
from tests.support.fault.traffic import Account, Steady, burst, check_wal, streams, until
from tests.support.receiver import Receiver, running_receiver

pytestmark = pytest.mark.slow

RESPAWN_SECONDS = 6.5
"""granian ends the whole receiver when a worker dies within 5.5 s of its birth."""
ONE_WORKER = {"receive": {"workers": 1}}
# The journal's own sweep goes through all of them; this one asks whether the receiver around it matters.
KILLS: list[tuple[str, int, When]] = [
    kill
    for operation in ("create", "write", "fsync", "link", "unlink")
    for kill in ((operation, 1, "before"), (operation, 2, "after"))
]
KILLS += [("mkdir", 1, "before"), ("mkdir", 1, "after"), ("write", 1, "halfway")]


def killed_entirely(receiver: Receiver) -> None:
    """Of the tree there is nothing left, whatever part of it was dead before."""
    children = receiver.worker_pids()
    for pid in (receiver.process.pid, *children):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    receiver.process.wait(10)
    until(lambda: not any(is_alive(pid) for pid in children), what="the workers are gone")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.timeout(600)
def test_a_receiver_killed_at_every_kind_of_operation_loses_nothing_it_acked(
    tmp_path: Path, disk: Path, faults: FaultControl
) -> None:
    account = Account()
    settings = ONE_WORKER | {"data_dir": str(disk)}
    with running_receiver(tmp_path / "receiver", settings, environment=faults.environment()) as receiver:
        for operation, n, when in KILLS:
            known = segment_files(receiver)
            faults.kill_at(operation, n, when)
            burst(receiver, account)
            assert faults.fired
            faults.clear()
            killed_entirely(receiver)
            check_wal(receiver, account)
            receiver.start()
            new = segment_files(receiver) - known
            assert not {path.split("/")[0] for path in new} & {path.split("/")[0] for path in known}
        burst(receiver, account, requests=1)
        check_wal(receiver, account)
    assert account.answers("nothing")
    assert account.acked


def age_seconds(receiver: Receiver) -> float:
    return time.time() - max(psutil.Process(pid).create_time() for pid in receiver.worker_pids())


def kill_worker(receiver: Receiver) -> None:
    (pid,) = receiver.worker_pids()
    os.kill(pid, signal.SIGKILL)


def kill_tree(receiver: Receiver) -> None:
    killed_entirely(receiver)
    receiver.start()


@pytest.mark.parametrize("kill", [kill_worker, kill_tree])
def test_killed_while_requests_come_and_go_it_comes_back_and_has_lost_nothing(
    kill: Callable[[Receiver], None], tmp_path: Path
) -> None:
    """At moments that nobody chose, too: clients go on sending, and try again what was not acked."""
    account = Account()
    with running_receiver(tmp_path, ONE_WORKER) as receiver:
        with Steady(receiver, account, retries=True, timeout_seconds=20, pause_seconds=0):
            for _ in range(2 if kill is kill_worker else 1):
                acked = len(account.acked)
                until(lambda acked=acked: len(account.acked) > acked + 30, what="acks")
                if kill is kill_worker:
                    until(lambda: age_seconds(receiver) > RESPAWN_SECONDS, what="granian trusts the worker")
                before = set(receiver.worker_pids())
                kill(receiver)
                until(
                    lambda before=before: set(receiver.worker_pids()) - before != set(), what="a new worker"
                )
                until(receiver.is_ready, what="ready")
        check_wal(receiver, account)
        assert account.answers("nothing")
        assert len(streams(receiver.config)) >= 2


def test_killed_between_durable_and_ack_the_records_are_there_though_nobody_was_told(tmp_path: Path) -> None:
    """The segment's file appears before the answer: whoever kills at its sight kills in between, at times."""
    account = Account()
    unacked_but_there = 0
    with running_receiver(tmp_path, ONE_WORKER) as receiver:
        for _ in range(2):
            known = segment_files(receiver)
            sending = threading.Thread(target=burst, args=(receiver, account), kwargs={"requests": 1})
            sending.start()
            while segment_files(receiver) == known:
                pass  # as soon as it is there: milliseconds count
            killed_entirely(receiver)
            sending.join()
            check_wal(receiver, account)
            unacked_but_there += len(segment_files(receiver) - known)
            receiver.start()
        check_wal(receiver, account)
    assert unacked_but_there > 0


def segment_files(receiver: Receiver) -> set[str]:
    found = set()
    for stream in os.scandir(folder) if (folder := receiver.config.wal_dir / "logs").exists() else ():
        found |= {f"{stream.name}/{name}" for name in os.listdir(stream.path)}
    return found


@pytest.mark.parametrize(
    ("fate", "n"), [("lost on the way", 2), ("outliving its writer", 2), ("without an answer", 1)]
)
def test_a_receiver_on_s3_killed_around_a_put_loses_nothing_it_acked(
    fate: str, n: int, tmp_path: Path, moto_s3: S3Server, faulty_proxy: FaultyProxyFactory
) -> None:
    """The journal's own sweep goes through every PUT."""
    proxy = faulty_proxy(moto_s3.host, moto_s3.port)
    settings = ONE_WORKER | s3_settings(moto_s3.through(proxy), new_bucket(moto_s3))
    account = Account()
    with running_receiver(tmp_path / "receiver", settings) as receiver:
        proxy.latency_seconds = 0.3
        wanted = proxy.count("PUT") + n
        sending = threading.Thread(target=burst, args=(receiver, account))
        sending.start()
        proxy.wait_for_count("PUT", wanted)
        if fate == "lost on the way":
            proxy.refuse()
        elif fate == "without an answer":
            proxy.drop_response_once("PUT", how="hang")
            until(lambda: proxy.dropped("PUT") == 1, what="a lost answer")
        killed_entirely(receiver)
        sending.join()
        proxy.resume()
        proxy.latency_seconds = 0
        check_wal(receiver, account)
        assert account.answers("nothing")
        receiver.start()
        before = streams(receiver.config)
        burst(receiver, account, requests=1)
        check_wal(receiver, account)
        assert streams(receiver.config) - before
