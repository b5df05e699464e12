"""The local store, call by call: what is synced before a write counts, and what a failing call leaves."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frazil.errors import StoreUnavailable
from frazil.storage.local import LocalStore

PATH = "logs/20261115T081823123-9f86d081884c7d65/00000000000000000000.parquet"
DATA = b"a segment"


class Recorder:
    """Notes fsync, link and mkdir with the paths they concern, in order; can make one of them fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.calls: list[tuple[str, str]] = []
        self.failing: Callable[[str, str], bool] = lambda call, path: False
        self._root = root
        for call in ("fsync", "link", "mkdir"):
            monkeypatch.setattr(os, call, self._recording(call, getattr(os, call)))

    def _recording(self, call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(first: Any, *rest: Any, **named: Any) -> Any:
            path = (
                os.readlink(f"/proc/self/fd/{first}")
                if call == "fsync"
                else str(rest[0] if call == "link" else first)
            )
            relative = os.path.relpath(path, self._root)
            name = ".incoming/temporary" if relative.endswith(".tmp") else relative
            self.calls.append((call, name))
            if self.failing(call, name):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(first, *rest, **named)

        return recorded

    def at(self, call: str, path: str) -> int:
        """The place of the last such call."""
        return len(self.calls) - 1 - self.calls[::-1].index((call, path))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recorder:
    return Recorder(monkeypatch, tmp_path)


def test_file_then_link_then_folder_are_synced_before_a_segment_counts(
    tmp_path: Path, recorder: Recorder
) -> None:
    LocalStore(tmp_path / "wal").create(PATH, DATA)
    segment = f"wal/{PATH}"
    assert recorder.at("fsync", ".incoming/temporary") < recorder.at("link", segment)
    assert recorder.at("link", segment) < recorder.at("fsync", os.path.dirname(segment))


def test_every_new_folder_is_synced_in_its_parent_before_the_link(tmp_path: Path, recorder: Recorder) -> None:
    LocalStore(tmp_path / "new" / "data" / "wal").create(PATH, DATA)
    made = [path for call, path in recorder.calls if call == "mkdir"]
    assert {"new", "new/data", "new/data/wal", "new/data/wal/logs"} < set(made)
    link = recorder.at("link", f"new/data/wal/{PATH}")
    for folder in made:
        parent = os.path.dirname(folder) or "."
        assert recorder.at("mkdir", folder) < recorder.at("fsync", parent) < link or parent.endswith("logs")


def test_folders_that_somebody_made_without_syncing_them_are_synced_all_the_same(
    tmp_path: Path, recorder: Recorder
) -> None:
    """The supervisor makes data_dir; a writer may be killed between mkdir and fsync."""
    root = tmp_path / "new" / "data" / "wal"
    root.mkdir(parents=True)
    recorder.calls.clear()
    LocalStore(root).create(PATH, DATA)
    link = recorder.at("link", f"new/data/wal/{PATH}")
    for parent in (".", "new", "new/data"):
        assert recorder.at("fsync", parent) < link


def test_a_folder_whose_sync_failed_is_synced_by_the_next_write(tmp_path: Path, recorder: Recorder) -> None:
    store = LocalStore(tmp_path / "new" / "wal")
    for parent in (".", "new", "new/wal", "new/wal/logs"):
        recorder.failing = lambda call, path, parent=parent: (call, path) == ("fsync", parent)
        with pytest.raises(StoreUnavailable):
            store.create(PATH, DATA)
        assert ("link", f"new/wal/{PATH}") not in recorder.calls
    recorder.failing = lambda call, path: False
    recorder.calls.clear()
    store.create(PATH, DATA)
    assert ("fsync", "new/wal/logs") in recorder.calls


def test_a_failed_folder_sync_refuses_and_the_same_bytes_are_synced_by_the_next_attempt(
    tmp_path: Path, recorder: Recorder
) -> None:
    store = LocalStore(tmp_path)
    folder = os.path.dirname(PATH)
    recorder.failing = lambda call, path: (call, path) == ("fsync", folder)
    with pytest.raises(StoreUnavailable, match="Input/output error"):
        store.create(PATH, DATA)
    recorder.failing = lambda call, path: False
    recorder.calls.clear()
    store.create(PATH, DATA)
    assert ("fsync", folder) in recorder.calls
    with pytest.raises(FileExistsError):
        store.create(PATH, b"other bytes")
    assert store.read(PATH) == DATA


def test_a_failed_write_leaves_no_temporary_file(tmp_path: Path, recorder: Recorder) -> None:
    recorder.failing = lambda call, path: call == "link" or path.endswith("temporary")
    with pytest.raises(StoreUnavailable):
        LocalStore(tmp_path).create(PATH, DATA)
    assert list((tmp_path / ".incoming").iterdir()) == []


def test_many_deletions_are_synced_in_each_folder_once(tmp_path: Path, recorder: Recorder) -> None:
    store = LocalStore(tmp_path)
    paths = [f"logs/{stream}/{number}" for stream in "ab" for number in range(5)]
    for path in paths:
        store.create(path, DATA)
    recorder.calls.clear()
    store.delete_all(paths)
    assert sorted(recorder.calls) == [("fsync", "logs/a"), ("fsync", "logs/b")]


def test_after_a_folder_is_removed_what_others_deleted_in_it_is_durable_too(
    tmp_path: Path, recorder: Recorder
) -> None:
    """Who deleted it may have been killed before the fsync; and who removed the folder, too."""
    store = LocalStore(tmp_path)
    folder = os.path.dirname(PATH)
    store.create(PATH, DATA)
    store.create(f"{folder}/notes.txt", DATA)
    (tmp_path / PATH).unlink()
    recorder.calls.clear()
    store.remove_folder(folder)
    assert ("fsync", folder) in recorder.calls
    (tmp_path / folder / "notes.txt").unlink()
    (tmp_path / folder).rmdir()
    recorder.calls.clear()
    store.remove_folder(folder)
    assert recorder.calls == [("fsync", "logs")]


def test_a_deletion_whose_sync_fails_is_told(tmp_path: Path, recorder: Recorder) -> None:
    store = LocalStore(tmp_path)
    store.create(PATH, DATA)
    recorder.failing = lambda call, path: call == "fsync"
    with pytest.raises(StoreUnavailable):
        store.delete(PATH)
    with pytest.raises(StoreUnavailable):
        store.remove_folder(os.path.dirname(PATH))


@pytest.mark.parametrize("place", [".", "wal", "wal/logs", "wal/.incoming"])
def test_a_file_where_a_folder_should_be_is_a_refusal_and_not_a_rival(place: str, tmp_path: Path) -> None:
    """FileExistsError would mean that the segment's name is taken: the writer would try others for ever."""
    root = tmp_path / "data" / "wal"
    file = tmp_path / "data" / place
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"")
    with pytest.raises(StoreUnavailable):
        LocalStore(root).create(PATH, DATA)


def test_a_full_disk_is_refused_before_it_is_full(tmp_path: Path) -> None:
    usage = os.statvfs(tmp_path)
    free = usage.f_bavail * usage.f_frsize
    store = LocalStore(tmp_path / "wal", free_bytes_min=free + (1 << 30))
    with pytest.raises(StoreUnavailable, match=r"free_bytes_min reserves \d+ MiB; free some space") as caught:
        store.create(PATH, DATA)
    assert caught.value.retry_after_seconds >= 1
    assert not (tmp_path / "wal").exists()


def test_temporary_files_are_removed_after_an_hour_and_not_before(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create(PATH, DATA)
    ages = {"young": 0.0, "almost": 3590.0, "old": 3610.0, "ancient": 1e6}
    now = 1_800_000_000.0
    for name, age in ages.items():
        place = tmp_path / ".incoming" / f"{name}.tmp"
        place.write_bytes(b"half a segment")
        os.utime(place, (now - age, now - age))
    assert store.remove_abandoned(now) == 2
    assert sorted(place.stem for place in (tmp_path / ".incoming").iterdir()) == ["almost", "young"]
    assert store.read(PATH) == DATA


def test_a_temporary_file_that_cannot_be_removed_is_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    incoming = tmp_path / ".incoming"
    incoming.mkdir()
    for name in ("a", "b"):
        (incoming / f"{name}.tmp").write_bytes(b"")
        os.utime(incoming / f"{name}.tmp", (1, 1))
    real = os.unlink

    def unlink(path: Any, *rest: Any, **named: Any) -> None:
        if Path(path).name == "a.tmp":
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        real(path, *rest, **named)

    monkeypatch.setattr(os, "unlink", unlink)
    assert LocalStore(tmp_path).remove_abandoned() == 1
    assert [place.name for place in incoming.iterdir()] == ["a.tmp"]


def test_a_folder_that_cannot_be_read_is_an_error_and_not_an_empty_wal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.create(PATH, DATA)
    real = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith("9f86d081884c7d65"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(StoreUnavailable):
        list(store.list("logs/"))
    assert list(store.list("spans/")) == []  # nothing there yet is no error
