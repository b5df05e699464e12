"""A disk that is full or fails under a receiver: it refuses, says why, and comes back by itself."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from frazil.ledger import balance
from frazil.storage.local import LocalStore
from tests.components.fullness import FaultControl, SmallFilesystem
from tests.components.process import dies_with_parent, end, free_port
from tests.support.fault.traffic import (
    Account,
    Client,
    Steady,
    burst,
    check_wal,
    found_logs,
    fresh_texts,
    until,
)
from tests.support.receiver import Receiver, running_receiver, write_config

pytestmark = pytest.mark.slow

ONE_WORKER = {"receive": {"workers": 1}}


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory, fault_shim: Path) -> Iterator[FaultControl]:
    folder = tmp_path_factory.mktemp("faults")
    with FaultControl(folder / "control", under=folder / "disk", shim=fault_shim) as control:
        yield control


@pytest.fixture(scope="module")
def account() -> Account:
    """Of all tests of the module: what one of them was promised, the next must not lose."""
    return Account()


@pytest.fixture(scope="module")
def receiver(faults: FaultControl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    folder = tmp_path_factory.mktemp("receiver")
    settings = ONE_WORKER | {"data_dir": faults.environment()["FAULT_SHIM_UNDER"]}
    with running_receiver(folder, settings, environment=faults.environment()) as running:
        yield running


@pytest.fixture(autouse=True)
def healthy(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "faults" in request.fixturenames:
        request.getfixturevalue("faults").clear()


def readiness(receiver: Receiver) -> tuple[int, str]:
    response = httpx.get(f"{receiver.http}/readyz", timeout=10)
    return response.status_code, response.text


def readiness_or_nothing(receiver: Receiver) -> str:
    try:
        return readiness(receiver)[1]
    except httpx.HTTPError:
        return ""


def check_refusals(receiver: Receiver, account: Account, reason: str) -> None:
    """Both transports say that it may pass, when to come again, and why; the receiver is not ready."""
    for transport, code in (("http", "503"), ("grpc", "UNAVAILABLE")):
        client = Client(receiver, transport)
        outcome = account.note(client.send(fresh_texts(1)))
        client.close()
        assert (outcome.answer, outcome.code) == ("refused", code)
        assert outcome.retry_after_seconds is not None
        assert outcome.retry_after_seconds >= 1
        assert reason in outcome.message
        assert outcome.seconds < 5
    status, text = readiness(receiver)
    assert status == 503
    assert reason in text
    assert httpx.get(f"{receiver.http}/livez").status_code == 200


@pytest.mark.parametrize(
    ("operation", "number"),
    [
        ("create", errno.ENOSPC),
        ("write", errno.ENOSPC),
        ("write", errno.EDQUOT),
        ("write", errno.EIO),
        ("fsync", errno.EIO),
        ("fsync", errno.ENOSPC),
        ("link", errno.ENOSPC),
        ("link", errno.EIO),
        ("mkdir", errno.ENOSPC),
        (("create", "write", "fsync", "link", "unlink", "mkdir", "rename"), errno.EROFS),
    ],
)
def test_while_the_disk_fails_requests_are_refused_and_then_all_is_well_again(
    operation: str | tuple[str, ...], number: int, receiver: Receiver, faults: FaultControl, account: Account
) -> None:
    until(receiver.is_ready, what="ready")
    burst(receiver, account, requests=2)
    faults.fail(operation, number)
    if operation == "mkdir":  # only a new stream makes a folder: one failing write makes the writer open one
        faults.fail_at("fsync", 1, errno.EIO)
    with Steady(receiver, account):
        until(lambda: readiness(receiver)[0] == 503, what="not ready")
        if operation == "mkdir":
            until(lambda: faults.failed("mkdir") > 0, what="a new stream was tried")
    if operation != "mkdir":
        check_refusals(receiver, account, os.strerror(number))
    faults.clear()
    until(receiver.is_ready, seconds_max=10, what="ready again by itself")
    acked = len(account.acked)
    burst(receiver, account, requests=2)
    assert len(account.acked) == acked + 4 * 2 * 3  # every one of them
    assert account.answers("refused")
    check_wal(receiver, account)
    incoming = receiver.config.wal_dir / ".incoming"
    assert len(list(incoming.iterdir())) <= 1  # the shim may have refused to remove one


def test_a_file_that_cannot_be_removed_is_no_reason_to_refuse(
    receiver: Receiver, faults: FaultControl, account: Account
) -> None:
    """The temporary name is left over: the segment is durable all the same."""
    faults.fail("unlink", errno.EIO)
    acked = len(account.acked)
    burst(receiver, account, requests=2)
    assert len(account.acked) == acked + 4 * 2 * 3
    assert readiness(receiver)[0] == 200
    check_wal(receiver, account)


@pytest.mark.parametrize("which", ["the file's", "the folder's"])
def test_a_sync_that_fails_once_refuses_its_requests_alone(
    which: str, receiver: Receiver, faults: FaultControl, account: Account
) -> None:
    until(receiver.is_ready, what="ready")
    client = Client(receiver, "http")
    assert account.note(client.send(fresh_texts(1))).answer == "ok"  # the stream's folder is there now
    synced = faults.seen("fsync")
    assert account.note(client.send(fresh_texts(1))).answer == "ok"
    assert faults.seen("fsync") == synced + 2  # the file and its folder: an ack without both would be a lie
    faults.fail_at("fsync", 1 if which == "the file's" else 2, errno.EIO)
    texts = fresh_texts(1)
    outcome = account.note(client.send(texts))
    assert faults.fired
    assert (outcome.answer, outcome.code) == ("refused", "503")
    until(receiver.is_ready, seconds_max=10, what="ready again by itself")
    assert account.note(client.send(texts)).answer == "ok"
    client.close()
    check_wal(receiver, account)
    assert found_logs(receiver.config)[texts[0]] == (1 if which == "the file's" else 2)


def test_no_answer_comes_before_the_last_sync(
    receiver: Receiver, faults: FaultControl, account: Account
) -> None:
    """The n-th sync fails, for every n of a new stream's first request: it is never acked."""
    client = Client(receiver, "http")
    fired = 0
    for n in range(1, 20):
        until(receiver.is_ready, what="ready")
        faults.fail_at("fsync", 1, errno.EIO)  # makes the writer open a new stream
        assert account.note(client.send(fresh_texts(1))).answer == "refused"
        until(receiver.is_ready, what="ready")
        faults.fail_at("fsync", n, errno.EIO)
        outcome = account.note(client.send(fresh_texts(1)))
        assert (outcome.answer == "refused") == faults.fired
        if not faults.fired:
            break
        fired += 1
    client.close()
    assert fired == 3  # the new folder's parent, the file, the folder
    check_wal(receiver, account)


class OnSmallDisk(Receiver):
    """A receiver that sees a small file system; others see it at `disk.path`."""

    disk: SmallFilesystem

    def start(self, *, ready: bool = True) -> None:
        command = [sys.executable, "-m", "frazil", "--config", str(self.config_path), "receive"]
        with (self.folder / "receiver.log").open("ab") as log:
            self.process = subprocess.Popen(
                dies_with_parent(self.disk.command(command)),
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=os.environ | dict(self.environment),
            )
        if ready:
            until(self.is_ready, seconds_max=60, what="ready")


@pytest.mark.parametrize(
    ("bytes_min", "reason"), [(0, "No space left on device"), (2 << 20, "free_bytes_min reserves 2 MiB")]
)
def test_a_disk_that_fills_up_is_refused_and_used_again_when_there_is_room(
    bytes_min: int, reason: str, tmp_path: Path, small_disk: Callable[[int], SmallFilesystem]
) -> None:
    disk = small_disk(6 << 20)
    folder = tmp_path / "receiver"
    folder.mkdir()
    http_port, grpc_port = free_port(), free_port()
    local = {"path": str(disk.folder / "wal"), "free_bytes_min": bytes_min}
    path = write_config(folder, http_port, grpc_port, ONE_WORKER | {"wal": {"local": local}})
    receiver = OnSmallDisk(folder, path, http_port, grpc_port)
    receiver.disk = disk
    seen_from_here = LocalStore(disk.path / "wal")
    account = Account()
    receiver.start()
    try:
        burst(receiver, account)
        if bytes_min:
            (disk.path / ".filler").write_bytes(bytes(4 << 20))  # full enough, and 1 MiB is left
        else:
            disk.fill()
        with Steady(receiver, account):
            until(lambda: readiness(receiver)[0] == 503, what="not ready")
        check_refusals(receiver, account, reason)
        if bytes_min:
            usage = os.statvfs(disk.path)
            assert usage.f_bavail * usage.f_frsize > 1 << 20
        account.check(found_logs(receiver.config, seen_from_here))
        if not bytes_min:
            receiver.kill()
            receiver.start(ready=False)  # on a full disk it lives, and says what is wrong
            until(lambda: reason in readiness_or_nothing(receiver), what="alive, and not ready")
        disk.free()
        until(receiver.is_ready, seconds_max=10, what="ready again by itself")
        acked = len(account.acked)
        burst(receiver, account)
        assert len(account.acked) == acked + 4 * 5 * 3
        account.check(found_logs(receiver.config, seen_from_here))
    finally:
        end(receiver.process)
    over_there = receiver.config.model_copy(
        update={
            "wal": receiver.config.wal.model_copy(update={"local": local_at(receiver, disk.path / "wal")})
        }
    )
    assert balance(over_there).problems == []


def local_at(receiver: Receiver, path: Path) -> object:
    return receiver.config.wal.local.model_copy(update={"path": path})
