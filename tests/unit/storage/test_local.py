"""The local store: durable before it returns, created only if absent, clear about what fails."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frazil.errors import StoreUnavailable
from frazil.storage.local import LocalStore
from frazil.wal.store import probe_store

PATH = "logs/stream/00000000000000000000.parquet"


def test_what_was_created_is_read_listed_and_deleted(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "deep" / "wal")
    store.create(PATH, b"data")
    store.create("logs/stream/1", b"")
    assert store.read(PATH) == b"data"
    assert [(entry.path, entry.size) for entry in store.list("logs/")] == [(PATH, 4), ("logs/stream/1", 0)]
    assert list(store.list("spans/")) == []
    store.delete(PATH)
    store.delete(PATH)
    with pytest.raises(FileNotFoundError):
        store.read(PATH)


def test_a_name_is_created_once_and_the_same_bytes_count_as_the_first(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create(PATH, b"data")
    store.create(PATH, b"data")
    with pytest.raises(FileExistsError):
        store.create(PATH, b"other")
    assert store.read(PATH) == b"data"
    assert list((tmp_path / ".incoming").iterdir()) == []


def test_of_many_writers_of_one_name_exactly_one_wins(tmp_path: Path) -> None:
    result = probe_store(LocalStore(tmp_path), writers=16, rounds=4)
    assert (result.writers, result.rounds) == (16, 4)
    assert list(LocalStore(tmp_path).list("probe/")) == []


class Calls:
    """Every system call that makes data durable, in order, with the n-th of them failing if so wanted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fail_at: int | None = None) -> None:
        self.made: list[tuple[str, str]] = []
        self._fail_at = fail_at
        for name in ("open", "write", "fsync", "link", "mkdir"):
            monkeypatch.setattr(os, name, self._watched(name, getattr(os, name)))

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *rest: Any, **named: Any) -> Any:
            where = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else str(first)
            self.made.append((name, str(rest[0]) if name == "link" else where))
            if len(self.made) == self._fail_at:
                raise OSError(errno.EIO, "Input/output error")
            return real(first, *rest, **named)

        return call


def test_the_file_then_its_name_then_every_new_folder_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "a" / "b"
    store = LocalStore(root)
    calls = Calls(monkeypatch)
    store.create(PATH, b"data")
    monkeypatch.undo()
    made = calls.made
    link = made.index(("link", str(root / PATH)))
    synced_before = [where for name, where in made[:link] if name == "fsync"]
    assert any(where.endswith(".tmp") for where in synced_before)
    for folder in (tmp_path, tmp_path / "a", root, root / "logs"):
        assert str(folder) in synced_before
    assert ("fsync", str((root / PATH).parent)) in made[link:]


def test_whichever_step_fails_nothing_is_claimed_and_trying_again_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = 0
    while True:
        step += 1
        store = LocalStore(tmp_path / str(step) / "wal")
        calls = Calls(monkeypatch, fail_at=step)
        try:
            store.create(PATH, b"data")
        except StoreUnavailable:
            failed = True
        else:
            failed = False
        monkeypatch.undo()
        if len(calls.made) < step:
            break
        assert failed, calls.made[-1]
        store.create(PATH, b"data")
        assert store.read(PATH) == b"data"
        assert list((store.root / ".incoming").iterdir()) == []
    assert step > 10


def test_a_write_in_pieces_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data[:7])))
    store = LocalStore(tmp_path)
    store.create(PATH, bytes(range(100)))
    assert store.read(PATH) == bytes(range(100))


def test_a_disk_with_too_little_room_is_refused_before_writing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "wal", free_bytes_min=2**60)
    with pytest.raises(StoreUnavailable, match="free some space") as caught:
        store.create(PATH, b"data")
    assert caught.value.retry_after_seconds >= 1
    assert not (tmp_path / "wal").exists()


def test_folders_that_vanish_are_made_again(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create(PATH, b"1")
    store.delete(PATH)
    (tmp_path / PATH).parent.rmdir()
    store.create(PATH, b"2")
    assert store.read(PATH) == b"2"


def test_a_folder_that_cannot_be_read_does_not_look_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.create(PATH, b"1")

    def denied(path: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(StoreUnavailable, match="cannot be listed"):
        list(store.list("logs/"))


def test_reading_a_folder_or_through_a_file_is_unavailable_not_a_crash(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create(PATH, b"1")
    with pytest.raises(StoreUnavailable):
        store.read("logs")
    with pytest.raises(StoreUnavailable):
        store.create(f"{PATH}/below", b"1")


def test_abandoned_temporary_files_go_and_young_ones_stay(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create(PATH, b"1")
    left = tmp_path / ".incoming" / "dead.tmp"
    left.write_bytes(b"half")
    now = left.stat().st_mtime
    assert store.remove_abandoned(now + 60) == 0
    assert store.remove_abandoned(now + 7200) == 1
    assert not left.exists()
    assert LocalStore(tmp_path / "never").remove_abandoned() == 0
    assert [entry.path for entry in store.list("")] == [PATH]


def test_threads_that_create_different_names_do_not_disturb_each_other(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    failures: list[BaseException] = []

    def create(number: int) -> None:
        try:
            for sequence in range(10):
                store.create(f"logs/{number}/{sequence}", b"%d" % number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(list(store.list("logs/"))) == 60
