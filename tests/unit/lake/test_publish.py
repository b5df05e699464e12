"""Files too large for memory: written on a disk first, then given their name; and the way back."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import uuid
from pathlib import Path

import pytest

from frazil.errors import StoreUnavailable
from frazil.lake import files as files_module
from frazil.lake.files import LakeFileIO
from frazil.storage import s3
from frazil.storage.local import LocalStore
from tests.components.s3 import S3Server
from tests.unit.lake.test_files import Calls

NAME = "otel/logs/data/00000.parquet"
LARGE = bytes(range(256)) * 70_000
"""More than one part of an upload."""


@pytest.fixture(autouse=True)
def fresh_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder is known to be durable yet."""
    monkeypatch.setattr(files_module, "_DISK", LocalStore(None, name="lake"))


@pytest.fixture
def temporaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporaries"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture(scope="module")
def bucket_files(moto_s3: S3Server) -> LakeFileIO:
    return LakeFileIO(
        {
            "s3.endpoint": moto_s3.endpoint,
            "s3.access-key-id": moto_s3.access_key,
            "s3.secret-access-key": moto_s3.secret_key,
            "frazil.s3.allow-http": "true",
        }
    )


@pytest.fixture
def root(moto_s3: S3Server) -> str:
    return f"s3://{moto_s3.make_bucket(f'lake-{uuid.uuid4().hex}')}"


def test_on_a_disk_the_content_then_the_name_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, place = LakeFileIO(), str(tmp_path / NAME)
    local = files.temporary(place)
    assert (local.parent, local.exists()) == (tmp_path / "otel/logs/data", False)
    local.write_bytes(b"data")
    calls = Calls(monkeypatch)
    files.publish(place, local)
    monkeypatch.undo()
    changes = [call for call in calls.made if call[0] != "open"]
    assert changes == [("fsync", str(local)), ("link", place), ("fsync", str(local.parent))]
    assert files.read(place) == b"data"
    assert os.listdir(local.parent) == ["00000.parquet"]


def test_on_a_disk_a_failure_anywhere_leaves_no_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, fail_at = LakeFileIO(), 1
    while True:
        place = str(tmp_path / f"data-{fail_at}" / "x")
        local = files.temporary(place)
        local.write_bytes(b"data")
        with monkeypatch.context() as patched:
            Calls(patched, fail_at)
            try:
                files.publish(place, local)
            except StoreUnavailable:
                pass
            else:
                break
        assert not local.exists()
        fail_at += 1
    assert fail_at > 4


def test_on_a_disk_a_name_is_taken_once(tmp_path: Path) -> None:
    files, place = LakeFileIO(), str(tmp_path / NAME)
    files.write(place, b"first")
    local = files.temporary(place)
    local.write_bytes(b"second")
    with pytest.raises(FileExistsError, match="00000"):
        files.publish(place, local)
    assert files.read(place) == b"first"
    assert not local.exists()


def test_on_a_disk_files_are_not_for_other_users_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        files = LakeFileIO()
        written, published = f"file://{tmp_path}/a/written", f"file://{tmp_path}/a/published"
        files.write(written, b"x")
        local = files.temporary(published)
        local.write_bytes(b"x")
        files.publish(published, local)
    finally:
        os.umask(before)
    for name in ("written", "published"):
        assert stat.S_IMODE((tmp_path / "a" / name).stat().st_mode) == 0o640


def test_a_file_on_a_disk_is_read_where_it_is(tmp_path: Path) -> None:
    with LakeFileIO().local(f"file://{tmp_path}/x") as path:
        assert path == tmp_path / "x"


@pytest.mark.parametrize("data", [b"data", LARGE], ids=["small", "in parts"])
def test_in_a_bucket_the_file_is_uploaded_and_gone_here(
    bucket_files: LakeFileIO, root: str, temporaries: Path, data: bytes
) -> None:
    place = f"{root}/{NAME}"
    local = bucket_files.temporary(place)
    assert local.stat().st_mode & 0o077 == 0, "others may read it"
    local.write_bytes(data)
    bucket_files.publish(place, local)
    assert bucket_files.read(place) == data
    second = bucket_files.temporary(place)
    second.write_bytes(data[1:])
    with pytest.raises(FileExistsError):
        bucket_files.publish(place, second)
    assert bucket_files.read(place) == data
    assert list(temporaries.iterdir()) == []


def test_of_a_file_in_a_bucket_there_is_a_copy_for_a_while(
    bucket_files: LakeFileIO, root: str, temporaries: Path
) -> None:
    bucket_files.write(f"{root}/x", LARGE)
    with bucket_files.local(f"{root}/x") as path:
        assert path.parent == temporaries
        assert path.read_bytes() == LARGE
        assert path.stat().st_mode & 0o077 == 0
    assert list(temporaries.iterdir()) == []
    with pytest.raises(FileNotFoundError, match="missing"), bucket_files.local(f"{root}/missing"):
        pass
    assert list(temporaries.iterdir()) == []


def test_an_upload_that_fails_leaves_nothing_here(
    bucket_files: LakeFileIO, temporaries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "_PART_BYTES", 2)
    for data in (b"1", b"more than a part"):
        local = bucket_files.temporary("s3://no-such-bucket/x")
        local.write_bytes(data)
        with pytest.raises(StoreUnavailable):
            bucket_files.publish("s3://no-such-bucket/x", local)
    assert list(temporaries.iterdir()) == []


@pytest.mark.parametrize("data", [b"small", LARGE])
def test_an_object_gets_its_storage_class_in_one_part_or_many(
    data: bytes, bucket_files: LakeFileIO, moto_s3: S3Server, temporaries: Path
) -> None:
    bucket = moto_s3.make_bucket(f"lake-{uuid.uuid4().hex}")
    for name, wanted in (("plain", None), ("cheap", "GLACIER_IR")):
        temporary = bucket_files.temporary(f"s3://{bucket}/{name}")
        temporary.write_bytes(data)
        bucket_files.publish(f"s3://{bucket}/{name}", temporary, wanted)
        with contextlib.closing(moto_s3.client()) as client:
            assert client.head_object(Bucket=bucket, Key=name).get("StorageClass") == wanted
        assert bucket_files.read(f"s3://{bucket}/{name}") == data
