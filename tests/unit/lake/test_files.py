"""The lake's files on disk: durable when written, never half there, never overwritten by accident."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from frazil.errors import ConfigError, StoreUnavailable
from frazil.lake import files as files_module
from frazil.lake.files import LakeFileIO
from frazil.storage.local import LocalStore

NAME = "otel/logs/data/00000.parquet"


@pytest.fixture(autouse=True)
def fresh_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder is known to be durable yet."""
    monkeypatch.setattr(files_module, "_DISK", LocalStore(None, name="lake"))


class Calls:
    """Every system call that makes data durable, in order, with the n-th of them failing if so wanted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fail_at: int | None = None) -> None:
        self.made: list[tuple[str, str]] = []
        self._fail_at = fail_at
        for name in ("open", "write", "fsync", "link", "replace", "mkdir"):
            monkeypatch.setattr(os, name, self._watched(name, getattr(os, name)))

    def _watched(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *rest: Any, **named: Any) -> Any:
            where = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else str(first)
            self.made.append((name, str(rest[0]) if name in ("link", "replace") else where))
            if len(self.made) == self._fail_at:
                raise OSError(errno.EIO, "Input/output error")
            return real(first, *rest, **named)

        return call

    def synced(self) -> list[str]:
        return [where for name, where in self.made if name == "fsync"]


@pytest.mark.parametrize("prefix", ["", "file:", "file://", "file://localhost"])
def test_plain_paths_and_file_addresses_are_the_same_files(tmp_path: Path, prefix: str) -> None:
    files = LakeFileIO()
    location = f"{prefix}{tmp_path}/a b/c%2Fd=é/x"
    files.write(location, b"data")
    assert (tmp_path / "a b" / "c%2Fd=é" / "x").read_bytes() == b"data"
    assert files.read(location) == b"data"
    assert len(files.new_input(location)) == 4
    files.delete(location)
    files.delete(files.new_output(location))
    assert not files.new_input(location).exists()


def test_other_stores_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="gs://bucket/x"):
        LakeFileIO().new_input("gs://bucket/x")


def test_bytes_and_arrow_buffers_are_written_alike(tmp_path: Path) -> None:
    files = LakeFileIO()
    for number, data in enumerate((b"data", memoryview(b"data"), pa.py_buffer(b"data"))):
        files.write(str(tmp_path / str(number)), data)
        assert files.read(str(tmp_path / str(number))) == b"data"
    files.write(str(tmp_path / "empty"), b"")
    assert files.read(str(tmp_path / "empty")) == b""


def test_a_name_is_taken_once_unless_overwriting_is_asked_for(tmp_path: Path) -> None:
    files, place = LakeFileIO(), str(tmp_path / NAME)
    files.write(place, b"first")
    with pytest.raises(FileExistsError):
        files.write(place, b"second")
    with pytest.raises(FileExistsError), files.new_output(place).create() as stream:
        stream.write(b"second")
    assert files.read(place) == b"first"
    files.write(place, b"third", overwrite=True)
    assert files.read(place) == b"third"
    assert os.listdir(tmp_path / "otel/logs/data") == ["00000.parquet"]


def test_what_is_missing_is_said_to_be_missing(tmp_path: Path) -> None:
    files = LakeFileIO()
    missing = str(tmp_path / "missing")
    for ask in (files.read, lambda place: len(files.new_input(place))):
        with pytest.raises(FileNotFoundError, match="missing"):
            ask(missing)
    assert files.list(missing) == ((), ())


def test_folders_list_what_is_directly_in_them(tmp_path: Path) -> None:
    files = LakeFileIO()
    for name in ("b/x", "a/y", "z"):
        files.write(str(tmp_path / name), b"")
    assert files.list(str(tmp_path)) == (("a", "b"), ("z",))


@pytest.mark.parametrize("overwrite", [False, True])
def test_the_content_then_the_name_then_every_new_folder_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    calls = Calls(monkeypatch)
    LakeFileIO().write(str(tmp_path / NAME), b"data", overwrite=overwrite)
    monkeypatch.undo()
    publish = calls.made.index(("replace" if overwrite else "link", str(tmp_path / NAME)))
    before = [where for name, where in calls.made[:publish] if name == "fsync"]
    assert before[-1].endswith(".tmp")
    for folder in (tmp_path, tmp_path / "otel", tmp_path / "otel/logs"):
        assert str(folder) in before
    assert calls.made[-1] == ("fsync", str(tmp_path / "otel/logs/data"))


def test_later_files_of_a_folder_do_not_sync_its_ancestors_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LakeFileIO().write(str(tmp_path / NAME), b"data")
    calls = Calls(monkeypatch)
    LakeFileIO().write(str(tmp_path / "otel/logs/data/2"), b"data")
    monkeypatch.undo()
    content, folder = calls.synced()
    assert content.endswith(".tmp")
    assert folder == str(tmp_path / "otel/logs/data")


def test_a_folder_that_somebody_deleted_is_made_and_synced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = LakeFileIO()
    files.write(str(tmp_path / NAME), b"1")
    shutil.rmtree(tmp_path / "otel")
    calls = Calls(monkeypatch)
    files.write(str(tmp_path / NAME), b"2")
    monkeypatch.undo()
    assert files.read(str(tmp_path / NAME)) == b"2"
    assert {str(tmp_path), str(tmp_path / "otel"), str(tmp_path / "otel/logs")} <= set(calls.synced())


def test_a_folder_that_is_deleted_under_the_writer_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, times = os.link, iter((True, True, False))

    def link(source: Any, target: Any) -> None:
        if next(times):
            shutil.rmtree(tmp_path / "otel")
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    LakeFileIO().write(str(tmp_path / NAME), b"data")
    assert LakeFileIO().read(str(tmp_path / NAME)) == b"data"


def test_a_folder_that_is_always_deleted_ends_in_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        os, "link", lambda source, target: shutil.rmtree(tmp_path / "otel") or os.stat(target)
    )
    with pytest.raises(StoreUnavailable, match="was removed by another process"):
        LakeFileIO().write(str(tmp_path / NAME), b"data")


def test_whichever_step_fails_nothing_is_claimed_and_trying_again_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = 0
    while True:
        step += 1
        monkeypatch.setattr(files_module, "_DISK", LocalStore(None, name="lake"))
        place = tmp_path / str(step) / NAME
        calls = Calls(monkeypatch, fail_at=step)
        try:
            LakeFileIO().write(str(place), b"data")
        except StoreUnavailable:
            failed = True
        else:
            failed = False
        monkeypatch.undo()
        if len(calls.made) < step:
            break
        assert failed, calls.made[-1]
        LakeFileIO().write(str(place), b"data", overwrite=True)
        assert place.read_bytes() == b"data"
        assert os.listdir(place.parent) == [place.name]
    assert step > 10


def test_a_write_in_pieces_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, bytes(data[:7])))
    LakeFileIO().write(str(tmp_path / "x"), bytes(range(100)))
    assert (tmp_path / "x").read_bytes() == bytes(range(100))


def test_a_file_in_the_place_of_a_folder_is_unavailable_not_a_crash(tmp_path: Path) -> None:
    files = LakeFileIO()
    files.write(str(tmp_path / "x"), b"")
    for ask in (lambda place: files.write(place, b""), files.read, files.list):
        with pytest.raises(StoreUnavailable):
            ask(str(tmp_path / "x" / "y"))


def test_a_stream_whose_block_fails_or_that_nobody_closes_leaves_nothing(tmp_path: Path) -> None:
    output = LakeFileIO().new_output(str(tmp_path / "x"))
    with contextlib.suppress(ZeroDivisionError), output.create() as stream:
        stream.write(b"half")
        raise ZeroDivisionError
    stream.close()
    output.create().write(b"half")
    gc.collect()
    assert os.listdir(tmp_path) == []


def test_a_stream_is_there_when_it_is_closed(tmp_path: Path) -> None:
    output = LakeFileIO().new_output(str(tmp_path / "x"))
    stream = output.create()
    assert (stream.write(b"da"), stream.write(b"ta"), stream.tell()) == (2, 2, 4)
    assert not output.exists()
    stream.close()
    stream.close()
    assert len(output) == 4
    assert output.to_input_file().open().read() == b"data"


def test_parquet_is_written_and_read_through_it(tmp_path: Path) -> None:
    files = LakeFileIO()
    table = pa.table({"a": list(range(1000))})
    with files.new_output(str(tmp_path / "x.parquet")).create() as stream:
        pq.write_table(table, stream)
    with files.new_input(str(tmp_path / "x.parquet")).open() as source:
        assert pq.read_table(source) == table


def test_pickled_it_knows_the_store_and_nothing_of_the_catalog() -> None:
    given = {
        "uri": "postgresql://user:secret@db/frazil",
        "token": "secret",
        "auth.manager": object(),
        "s3.region": "eu-west-1",
        "client.region": "eu-west-1",
    }
    there = pickle.loads(pickle.dumps(LakeFileIO(given)))
    assert isinstance(there, LakeFileIO)
    assert there.properties == {"s3.region": "eu-west-1", "client.region": "eu-west-1"}


def test_the_same_bytes_count_as_the_first_write(tmp_path: Path) -> None:
    """As in a bucket, where a retry whose first answer was lost looks like this."""
    files, place = LakeFileIO(), str(tmp_path / NAME)
    files.write(place, b"first")
    files.write(place, b"first")
    with pytest.raises(FileExistsError):
        files.write(place, b"other")


def test_deletions_are_synced_once_for_each_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that were erased must not come back with a power loss."""
    files = LakeFileIO()
    places = [str(tmp_path / folder / name) for folder in "ab" for name in "123"]
    for place in places:
        files.write(place, b"")
    calls = Calls(monkeypatch)
    files.delete_all(places)
    monkeypatch.undo()
    assert sorted(calls.synced()) == [str(tmp_path / "a"), str(tmp_path / "b")]
