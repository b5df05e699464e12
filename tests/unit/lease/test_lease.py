"""Leases: one holds it, its death or silence frees it, and who slept learns that it has lost."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.config import Config
from frazil.errors import StoreUnavailable
from frazil.lease import LeaseRenewer, open_lease
from frazil.lease.epochs import EpochLease, StoreEpochs
from frazil.lease.local import LocalLease
from frazil.storage import Store
from frazil.storage.s3 import S3Store
from tests.components.process import dies_with_parent, end
from tests.components.s3 import S3Server
from tests.support.wal_stores import HandClock, MemoryStore, s3_store

HOLDER = """
import os, sys
from pathlib import Path
from frazil.lease.local import LocalLease
lease = LocalLease(Path(sys.argv[1]), "pipeline")
assert lease.acquire()
if os.fork() == 0:
    print("held", flush=True)  # by the child, which has let go of the lease by now
sys.stdin.read()  # the child outlives the holder
"""


@contextmanager
def other_process(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Holds the lease, and has a forked child."""
    process = subprocess.Popen(
        dies_with_parent([sys.executable, "-c", HOLDER, str(folder)]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"held\n"
        yield process
    finally:
        process.stdin.close()
        end(process)
        process.stdout.close()


def test_a_local_lease_has_one_holder_and_is_free_when_released(tmp_path: Path) -> None:
    first, second = (LocalLease(tmp_path / "lease", "pipeline") for _ in range(2))
    assert not first.renew()
    assert first.acquire()
    assert first.acquire()
    assert first.renew()
    assert not second.acquire()
    assert not second.renew()
    assert LocalLease(tmp_path / "lease", "another").acquire()
    first.release()
    first.release()
    assert not first.renew()
    assert second.acquire()


def test_a_local_lease_says_who_holds_it(tmp_path: Path) -> None:
    lease = LocalLease(tmp_path, "pipeline")
    assert lease.acquire()
    assert (tmp_path / "pipeline.lock").read_text().strip() == f"{os.uname().nodename}:{os.getpid()}"


def test_a_local_lease_is_free_the_moment_its_holder_is_killed_though_its_child_lives(tmp_path: Path) -> None:
    lease = LocalLease(tmp_path, "pipeline")
    with other_process(tmp_path) as holder:
        assert not lease.acquire()
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        assert lease.acquire()
        assert lease.renew()


def test_a_local_lease_whose_file_was_removed_is_lost(tmp_path: Path) -> None:
    first, second = (LocalLease(tmp_path, "pipeline") for _ in range(2))
    assert first.acquire()
    (tmp_path / "pipeline.lock").unlink()
    assert second.acquire()
    assert not first.renew()
    assert not first.acquire()


def test_a_folder_that_cannot_hold_a_lease_is_told(tmp_path: Path) -> None:
    (tmp_path / "lease").write_bytes(b"")
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        LocalLease(tmp_path / "lease", "pipeline").acquire()


def test_with_a_local_log_or_one_on_s3_the_lease_is_where_older_releases_had_it(tmp_path: Path) -> None:
    local = open_lease(Config(data_dir=tmp_path))
    assert isinstance(local, LocalLease)
    assert local.acquire()
    assert (tmp_path / "lease" / "pipeline.lock").exists()
    s3 = {"bucket": "wal", "access_key_id": "a", "secret_access_key": "b"}
    assert isinstance(open_lease(Config.model_validate({"wal": {"type": "s3", "s3": s3}})), EpochLease)


class Pipelines:
    """Several that want the same lease of 12 seconds, with clocks that began at different moments."""

    def __init__(self, count: int, store: Store | None = None) -> None:
        self.store = store or MemoryStore()
        self.clocks = [HandClock(1000.0 * number) for number in range(count)]
        self.leases = [
            EpochLease(StoreEpochs(self.store, "pipeline"), 12, clock, f"host:{number}")
            for number, clock in enumerate(self.clocks)
        ]

    def pass_seconds(self, seconds: float) -> None:
        for clock in self.clocks:
            clock.seconds += seconds

    def epochs(self) -> list[int]:
        return [int(Path(entry.path).stem) for entry in self.store.list("lease/pipeline/")]


def test_one_holds_the_lease_while_it_gives_signs_of_life() -> None:
    at = Pipelines(2)
    first, second = at.leases
    assert first.acquire()
    for _ in range(30):
        at.pass_seconds(3.9)
        assert first.renew()
        assert first.acquire()
        assert not second.acquire()
    assert len(at.epochs()) == 1  # the holder deletes old ones
    assert 14 <= at.epochs()[0] <= 30


def test_signs_of_life_are_written_every_third_of_the_lease_and_not_more_often() -> None:
    at = Pipelines(1)
    assert at.leases[0].acquire()
    for _ in range(400):
        at.pass_seconds(0.1)
        assert at.leases[0].renew()
    assert at.epochs() in ([9], [10])


def test_a_silent_holder_is_followed_after_the_lease_and_not_before() -> None:
    at = Pipelines(2)
    first, second = at.leases
    assert first.acquire()
    at.pass_seconds(100)
    assert not second.acquire()  # it has only just seen the newest heartbeat
    at.pass_seconds(11.9)
    assert not second.acquire()
    at.pass_seconds(0.2)
    assert second.acquire()
    assert not first.renew()
    assert not first.acquire()
    assert second.renew()


def test_a_released_lease_is_taken_at_once() -> None:
    at = Pipelines(2)
    first, second = at.leases
    assert first.acquire()
    assert not second.acquire()
    first.release()
    first.release()
    assert not first.renew()
    assert second.acquire()
    second.release()
    assert first.acquire()


def test_a_holder_that_slept_while_others_came_far_knows_that_it_has_lost() -> None:
    at = Pipelines(2)
    first, second = at.leases
    assert first.acquire()
    assert not second.acquire()
    at.pass_seconds(13)
    assert second.acquire()
    for _ in range(5):
        at.pass_seconds(5)
        assert second.renew()
    assert at.epochs() == [6]  # 1, which the sleeper would create next, is free again
    assert not first.renew()
    assert at.epochs() == [6]
    assert second.renew()


def test_a_contender_that_slept_between_its_look_and_its_create_does_not_win() -> None:
    at = Pipelines(2)
    first, sleeper = at.leases
    assert isinstance(at.store, MemoryStore)

    def sleep(path: str, data: bytes) -> None:
        at.store.before_create = lambda path, data: None  # type: ignore[attr-defined]
        assert first.acquire()
        for _ in range(3):
            at.pass_seconds(5)
            assert first.renew()

    at.store.before_create = sleep
    assert not sleeper.acquire()
    assert at.epochs() == [3]
    assert first.renew()


def test_while_the_store_does_not_answer_a_lease_is_kept_until_another_may_have_taken_it() -> None:
    at = Pipelines(1)
    (lease,) = at.leases
    assert isinstance(at.store, MemoryStore)
    assert lease.acquire()
    at.store.before_create = unavailable
    at.pass_seconds(11)
    assert lease.renew()
    at.pass_seconds(2)
    assert not lease.renew()
    assert lease.lost == "no answer"
    assert not lease.acquire()
    at.pass_seconds(13)
    with pytest.raises(StoreUnavailable, match="no answer"):
        lease.acquire()
    at.store.before_create = lambda path, data: None
    assert lease.acquire()
    assert lease.lost == ""


def test_the_next_holder_learns_of_the_applications_of_all_that_were_not_removed() -> None:
    at = Pipelines(3)
    first, second, third = at.leases
    assert first.acquire()
    assert first.applications == ()
    first.applications = ("app-1",)
    at.pass_seconds(5)
    assert first.renew()
    assert not second.acquire()
    at.pass_seconds(13)
    assert second.acquire()
    assert second.applications == ("app-1",)
    assert not third.acquire()
    at.pass_seconds(13)
    assert third.acquire(), "the second ended before it removed anything"
    assert third.applications == ("app-1",)
    assert not first.renew()
    assert first.lost == "another process has taken it"


def test_a_renewer_says_once_that_the_lease_is_lost(tmp_path: Path) -> None:
    lease, lost = LocalLease(tmp_path, "pipeline"), threading.Event()
    assert lease.acquire()
    renewer = LeaseRenewer(lease, 0.01, lost.set)
    renewer.start()
    (tmp_path / "pipeline.lock").unlink()
    assert lost.wait(30)
    assert not renewer.held
    assert "removed or replaced" in lease.lost
    renewer.stop()


def unavailable(path: str, data: bytes = b"") -> None:
    raise StoreUnavailable("no answer")


def test_a_sign_of_life_whose_answer_was_lost_is_recognised_as_ones_own() -> None:
    at = Pipelines(1)
    (lease,) = at.leases
    assert isinstance(at.store, MemoryStore)
    assert lease.acquire()

    def lost(path: str, data: bytes) -> None:
        at.store.objects[path] = data  # type: ignore[attr-defined]
        raise StoreUnavailable("the answer was lost")

    at.store.before_create = lost
    at.pass_seconds(5)
    assert lease.renew()
    at.store.before_create = lambda path, data: None
    at.pass_seconds(5)
    assert lease.renew()
    assert at.epochs() == [1]


def test_old_epochs_that_could_not_be_deleted_are_deleted_later() -> None:
    at = Pipelines(1)
    (lease,) = at.leases
    assert isinstance(at.store, MemoryStore)
    assert lease.acquire()
    at.store.before_delete = unavailable
    for _ in range(3):
        at.pass_seconds(5)
        assert lease.renew()
    assert at.epochs() == [0, 1, 2, 3]
    at.store.before_delete = lambda path: None
    at.pass_seconds(5)
    assert lease.renew()
    assert at.epochs() == [4]


steps = st.lists(
    st.tuples(
        st.sampled_from(["acquire", "renew", "release", "fail", "mend"]),
        st.integers(0, 2),
        st.floats(0, 15),
    ),
    max_size=60,
)


@given(steps)
def test_however_they_take_turns_no_two_renew_at_the_same_moment(
    taken: list[tuple[str, int, float]],
) -> None:
    at = Pipelines(3)
    assert isinstance(at.store, MemoryStore)
    for what, who, seconds in taken:
        at.pass_seconds(seconds)
        match what:
            case "fail":
                at.store.before_create = unavailable
            case "mend":
                at.store.before_create = lambda path, data: None
            case _:
                with contextlib.suppress(StoreUnavailable):
                    getattr(at.leases[who], what)()
        assert sum(lease.renew() for lease in at.leases) <= 1


@pytest.fixture
def bucket(moto_s3: S3Server) -> S3Store:
    return s3_store(moto_s3, moto_s3.make_bucket(f"lease-{secrets.token_hex(6)}"))


def test_of_many_contenders_on_s3_exactly_one_wins_each_time_and_the_one_before_has_lost(
    bucket: S3Store,
) -> None:
    at = Pipelines(8, bucket)
    together = threading.Barrier(8)

    def contend(lease: EpochLease) -> bool:
        together.wait()
        return lease.acquire()

    holders: list[EpochLease] = []
    with ThreadPoolExecutor(8) as pool:
        for turn in range(4):
            contenders = [lease for lease in at.leases if lease not in holders[-1:]]
            if holders:
                at.pass_seconds(0.1)
                assert not any(lease.acquire() for lease in contenders)
                if turn % 2:
                    holders[-1].release()
                at.pass_seconds(13)
            together = threading.Barrier(len(contenders))
            won = list(pool.map(contend, contenders))
            assert won.count(True) == 1
            holders.append(contenders[won.index(True)])
            assert [lease for lease in at.leases if lease.renew()] == holders[-1:]
    assert len(at.epochs()) <= 2


def test_a_missing_bucket_is_called_a_missing_bucket_and_the_same_failure_reads_the_same(
    moto_s3: S3Server,
) -> None:
    store = s3_store(moto_s3, f"missing-{secrets.token_hex(6)}")
    lease = EpochLease(StoreEpochs(store, "pipeline"), 12, HandClock(), "host:1")
    said: set[str] = set()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="the bucket does not exist; create it") as raised:
            lease.acquire()
        said.add(str(raised.value))
    for call in (lambda: store.read("a"), lambda: store.create("a", b""), store.check_reachable):
        with pytest.raises(StoreUnavailable, match="the bucket does not exist") as raised:
            call()
        said.add(str(raised.value))
    assert len(said) == 1


def test_a_store_that_is_away_gives_the_same_reason_each_time(moto_s3: S3Server) -> None:
    store = s3_store(dataclasses.replace(moto_s3, endpoint="http://127.0.0.1:1"), "any")
    said: set[str] = set()
    for _ in range(3):
        with pytest.raises(StoreUnavailable) as raised:
            store.check_reachable()
        said.add(str(raised.value))
    assert len(said) == 1, "a log that names each new reason would repeat it each second"
    assert "error sending request" in said.pop()


def test_a_bucket_that_answers_is_reachable(bucket: S3Store) -> None:
    bucket.check_reachable()
