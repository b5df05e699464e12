"""SIGKILL and I/O errors at every file operation of clean-up and of closing, until there is none left."""

from __future__ import annotations

import errno
import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from frazil.position import StreamPosition, WalPosition
from frazil.storage.local import LocalStore
from frazil.wal import SegmentName
from frazil.wal.reader import WalReader
from frazil.wal.segment import read_facts
from tests.components.fullness import CHANGES, OPERATIONS, FaultControl
from tests.support.fault.upkeep_process import UpkeepProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CLOSED, LIVE, NEW = (f"20261115T08182312{number}-9f86d081884c7d65" for number in range(3))
POSITION = WalPosition({CLOSED: StreamPosition(5, closed=True), LIVE: StreamPosition(3)})

Arm = Callable[[FaultControl, int], None]
ARMS: dict[str, Arm] = {
    # Death after an operation is death before the next one.
    "killed": lambda faults, n: faults.kill_at(CHANGES, n, "before"),
    "killed halfway": lambda faults, n: faults.kill_at("write", n, "halfway"),
    "failing": lambda faults, n: faults.fail_at(OPERATIONS, n, errno.EIO),
}


@pytest.fixture
def upkeep(tmp_path: Path, faults: FaultControl) -> Iterator[UpkeepProcess]:
    with UpkeepProcess(tmp_path / "upkeep.log", environment=faults.environment()) as process:
        yield process


def name(stream: str, sequence: int) -> SegmentName:
    return SegmentName("logs", stream, sequence)


def filled(root: Path) -> LocalStore:
    """Five segments a stream; the last of the closed one is its tombstone."""
    store = LocalStore(root)
    for stream in (CLOSED, LIVE, NEW):
        for sequence in range(5):
            store.create(name(stream, sequence).path, b"%d" % sequence)
    return store


def there(store: LocalStore, stream: str) -> list[int]:
    return [segment.name.sequence for segment in WalReader(store).stream("logs", stream)]


@pytest.mark.parametrize("how", ["killed", "failing"])
def test_clean_up_that_ends_anywhere_took_nothing_above_the_position_and_can_be_done_again(
    how: str, disk: Path, faults: FaultControl, upkeep: UpkeepProcess
) -> None:
    for n in itertools.count(1):
        root = disk / str(n)
        store = filled(root)
        ARMS[how](faults, n)
        outcome = upkeep.clean_up(root, POSITION)
        fired = faults.fired
        faults.clear()
        assert there(store, NEW) == [0, 1, 2, 3, 4]
        assert there(store, LIVE)[-2:] == [3, 4]
        fence = there(store, CLOSED)
        assert fence == [] or fence[-1] == 4  # the tombstone goes last
        if not fired:
            break
        assert outcome.returncode == (1 if how == "failing" else -9)
        assert outcome.names == frozenset()
        again = upkeep.clean_up(root, POSITION)
        assert (again.returncode, again.names) == (0, {CLOSED})
        assert_clean(store)
        shutil.rmtree(root)
    assert outcome.names == {CLOSED}
    assert_clean(store)
    assert n > (8 if how == "killed" else 10)  # eight segments go


def assert_clean(store: LocalStore) -> None:
    assert list(store.children("logs/").folders) == [LIVE, NEW]
    assert there(store, LIVE) == [3, 4]
    assert there(store, NEW) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("how", ARMS)
def test_closing_that_ends_anywhere_leaves_whole_tombstones_or_none_and_can_be_done_again(
    how: str, disk: Path, faults: FaultControl, upkeep: UpkeepProcess
) -> None:
    cleaned_up = StreamPosition(7, durable_rows=70)  # its folder is gone
    position = WalPosition({CLOSED: StreamPosition(5), LIVE: StreamPosition(3), NEW: cleaned_up})
    ends = [name(CLOSED, 5), name(NEW, 7)]
    for n in itertools.count(1):
        root = disk / str(n)
        store = LocalStore(root)
        for stream, sequence in ((CLOSED, 4), (LIVE, 3)):  # the last one's writer was faster
            store.create(name(stream, sequence).path, b"%d" % sequence)
        ARMS[how](faults, n)
        outcome = upkeep.close_idle(root, position)
        fired = faults.fired
        faults.clear()
        for end in ends:
            assert whole_or_absent(store, end)
        if not fired:
            break
        # That a temporary file stays is no reason to fail.
        assert outcome.returncode in ((0, 1) if how == "failing" else (-9,))
        again = upkeep.close_idle(root, position)
        assert again.returncode == 0
        assert again.names <= {end.path for end in ends}
        assert all(read_facts(end, store.read(end.path)).tombstone for end in ends)
        assert store.read(name(LIVE, 3).path) == b"3"
        with pytest.raises(FileExistsError):  # what the writer would find
            store.create(ends[0].path, b"a segment")
        shutil.rmtree(root)
    assert outcome.names == {end.path for end in ends}
    assert n > {"killed": 6, "killed halfway": 2, "failing": 10}[how], n


def whole_or_absent(store: LocalStore, end: SegmentName) -> bool:
    try:
        return read_facts(end, store.read(end.path)).tombstone
    except FileNotFoundError:
        return True
