"""Files that nobody knows are found and go; all others stay: young ones, needed ones, those of others."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from frazil.errors import Conflict
from frazil.lake.commits.commit import Committer, read_checkpoint
from frazil.lake.files import LakeFileIO
from frazil.lake.upkeep import orphans as orphans_module
from frazil.lake.upkeep.orphans import find_orphans, remove_orphans
from frazil.pipeline.datafile import Layout, write_part
from frazil.pipeline.partition_sort import Part
from frazil.tables import SET_ASIDE
from tests.support.lake.history import IDENTIFIER, History, rows_of

DAY = 86_400.0


@pytest.fixture
def history(catalog: Catalog) -> History:
    history = History(catalog)
    for _ in range(3):
        history.land()
    history.rewrite()
    history.land()
    return history


@pytest.fixture
def root(history: History) -> Path:
    return Path(history.table.location())


def in_two_days() -> float:
    return time.time() + 2 * DAY


def names(history: History, age_seconds: float = DAY, now: float | None = None) -> set[str]:
    found = find_orphans(history.table, age_seconds, in_two_days() if now is None else now)
    return {orphan.path.rsplit("/", 1)[-1] for orphan in found}


def test_of_a_table_that_was_only_ever_committed_to_nothing_is_an_orphan(history: History) -> None:
    before = history.names()
    assert find_orphans(history.table, 0) == []
    assert find_orphans(history.table, 0, in_two_days()) == []
    assert remove_orphans(history.table, 0, in_two_days()) == []
    assert history.names() == before


def test_what_writers_leave_behind_is_found_when_it_is_old(history: History, root: Path) -> None:
    history.land("never committed", write_only=True)
    left = {
        "data/tenant_id=a/time_day=2026-11-15/x.parquet",
        "data/x.parquet.0123456789abcdef.tmp",
        "metadata/00009-x.metadata.json",
        "metadata/00009-x.metadata.json.0123456789abcdef.tmp",
        "metadata/snap-1-0-x.avro",
        "metadata/x-m0.avro",
    }
    for name in left:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"12345")
    assert names(history, now=time.time()) == set()
    assert find_orphans(history.table, DAY) == []
    found = find_orphans(history.table, DAY, in_two_days())
    assert len(found) == 7
    assert {orphan.path for orphan in found} > {str(root / name) for name in left}
    assert sum(orphan.bytes == 5 for orphan in found) == 6
    assert all(abs(orphan.modified - time.time()) < 600 for orphan in found)
    assert remove_orphans(history.table, DAY, in_two_days()) == found
    assert not any((root / name).exists() for name in left)
    assert names(history) == set()
    history.assert_kept_are_whole()


def test_what_is_not_the_tables_to_delete_stays(history: History, root: Path) -> None:
    for name in ("metadata/version-hint.text", "other/metadata/1.metadata.json", "README"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")
    (root / "data/link").symlink_to("/etc/hostname")
    (root / "data/folder").symlink_to(root / "other")
    assert names(history) == set()


def test_a_checksum_that_hadoop_put_beside_a_file_stays_as_long_as_that(history: History, root: Path) -> None:
    data = next((root / "data").rglob("*.parquet"))
    for path in (data.with_name(f".{data.name}.crc"), data.with_name(".gone.parquet.crc")):
        path.write_bytes(b"")
    assert names(history) == {".gone.parquet.crc"}


def test_files_from_the_future_and_those_just_moved_here_are_young(history: History, root: Path) -> None:
    future, moved = root / "data/future.parquet", root / "data/moved.parquet"
    future.write_bytes(b"")
    os.utime(future, (time.time() + 30 * DAY,) * 2)
    moved.write_bytes(b"")
    os.utime(moved, (time.time() - 30 * DAY,) * 2)
    assert find_orphans(history.table, DAY) == []
    assert names(history) == {"moved.parquet"}


def test_the_age_is_told_by_the_clock_of_the_store(
    history: History, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine whose clock is days ahead must not take what was written a moment ago for old."""
    (root / "data/x.parquet").write_bytes(b"")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 30 * DAY)
    assert find_orphans(history.table, DAY) == []
    assert not list((root / "metadata").glob("clock*"))


def test_addresses_may_be_written_in_any_way(history: History, root: Path, tmp_path: Path) -> None:
    """The same folder by another name: as after a link was put in its place."""
    (tmp_path / "elsewhere").mkdir()
    shutil.move(root, tmp_path / "elsewhere/t")
    root.symlink_to(tmp_path / "elsewhere/t")
    assert names(history) == set()
    table = history.table
    table.metadata = table.metadata.model_copy(update={"location": f"file://{os.path.realpath(root)}/"})
    loaded = history.table
    loaded.metadata = table.metadata
    table.catalog = type("Same", (), {"load_table": lambda *_: loaded})()  # type: ignore[assignment]
    (root / "data/x.parquet").write_bytes(b"")
    found = find_orphans(table, DAY, in_two_days())
    assert [orphan.path.rsplit("/", 1)[-1] for orphan in found] == ["x.parquet"]


def test_what_is_committed_while_it_looks_is_no_orphan(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written long ago, committed between the listing and the look at the table, or before the deletion."""
    checkpoint = read_checkpoint(history.catalog, IDENTIFIER)
    layouts = [Layout.of(checkpoint.table, SET_ASIDE, 1) for _ in range(2)]
    parts = [write_part(layout, Part(None, None, rows_of("x")), layout.batch) for layout in layouts]
    real, table = LakeFileIO.walk, history.table

    def walk(self: LakeFileIO, location: str) -> Iterator[object]:
        yield from list(real(self, location))
        if location.endswith("/metadata"):
            now = read_checkpoint(history.catalog, IDENTIFIER)
            Committer(history.catalog, deadline_seconds=60).append(now, parts[:1], "at 10")

    monkeypatch.setattr(LakeFileIO, "walk", walk)
    looked = orphans_module._Search(table, DAY, in_two_days())
    found = looked.orphans()
    assert [orphan.path for orphan in found] == [parts[1].file_path]
    now = read_checkpoint(history.catalog, IDENTIFIER)
    Committer(history.catalog, deadline_seconds=60).append(now, parts[1:], "at 11")
    assert looked.unreferenced(found) == []


def test_a_table_that_was_made_anew_in_the_same_place_loses_nothing(history: History) -> None:
    table = history.table
    history.catalog.drop_table(IDENTIFIER)
    for path in Path(table.location(), "metadata").iterdir():
        path.unlink()
    History(history.catalog)
    with pytest.raises(Conflict, match="replaced by another of the same name"):
        remove_orphans(table, 0, in_two_days())


def test_folders_that_have_been_empty_for_long_go_and_others_stay(history: History, root: Path) -> None:
    empty, full = root / "data/tenant_id=a/time_day=1", root / "data/tenant_id=b"
    for folder in (empty, full):
        folder.mkdir(parents=True)
    (full / "x.tmp").write_bytes(b"")
    remove_orphans(history.table, DAY)
    assert empty.is_dir()
    remove_orphans(history.table, DAY, in_two_days())
    assert not empty.parent.exists()
    assert not full.exists()
    assert (root / "metadata").is_dir()
    history.assert_kept_are_whole()


def test_a_writer_whose_folder_goes_just_then_makes_it_again(tmp_path: Path) -> None:
    """One search for orphans removes a folder once, and the folders above it once."""
    files, folder = LakeFileIO(), tmp_path / "data/tenant_id=a/time_day=1"
    with ThreadPoolExecutor(1) as removers:
        for number in range(60):
            path = str(folder / f"{number}.parquet")
            removed = removers.submit(files.remove_empty_folders, str(tmp_path), time.time() + 60)
            files.write(path, b"data")
            assert files.read(path) == b"data"
            files.delete(path)
            removed.result()
