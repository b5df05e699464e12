"""Listing all files below a folder and deleting many at once, on disk and in a bucket."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest

from frazil.errors import StoreUnavailable
from frazil.lake.files import LakeFileIO, connection_of
from frazil.storage import s3
from tests.components.s3 import S3Server


@pytest.fixture(params=["disk", "bucket"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[LakeFileIO, str]:
    if request.param == "disk":
        return LakeFileIO(), str(tmp_path)
    server: S3Server = request.getfixturevalue("moto_s3")
    properties = {
        "s3.endpoint": server.endpoint,
        "s3.access-key-id": server.access_key,
        "s3.secret-access-key": server.secret_key,
        "frazil.s3.allow-http": "true",
    }
    return LakeFileIO(properties), f"s3://{server.make_bucket(f'walk-{uuid.uuid4().hex}')}"


def test_all_files_below_a_folder_are_found_with_size_and_time(lake: tuple[LakeFileIO, str]) -> None:
    files, root = lake
    written = {f"{root}/t/data/a=1%2F é/x": 1, f"{root}/t/data/y": 2, f"{root}/t/z": 0}
    for path, size in written.items():
        files.write(path, b"x" * size)
    files.write(f"{root}/tt/not below", b"")
    for location in (f"{root}/t", f"{root}/t/"):
        found = list(files.walk(location))
        assert {each.path: each.size for each in found} == written
        assert all(abs(each.modified_seconds - time.time()) < 600 for each in found)
    assert list(files.walk(f"{root}/missing")) == []
    for each in found:
        assert len(files.read(each.path)) == each.size


def test_many_are_deleted_at_once_and_those_that_are_gone_are_no_error(lake: tuple[LakeFileIO, str]) -> None:
    files, root = lake
    paths = [f"{root}/t/{number}" for number in range(30)]
    for path in paths:
        files.write(path, b"")
    files.write(f"{root}/kept", b"")
    files.delete(paths[3])
    files.delete_all(iter(paths))
    files.delete_all(paths)
    files.delete_all([])
    assert [each.path for each in files.walk(root)] == [f"{root}/kept"]


def test_the_clock_of_the_store_is_that_of_its_files(lake: tuple[LakeFileIO, str]) -> None:
    files, root = lake
    files.write(f"{root}/t/x", b"")
    now = files.now(f"{root}/t")
    found = list(files.walk(f"{root}/t"))
    assert [each.path for each in found] == [f"{root}/t/x"]
    assert 0 <= now - found[0].modified_seconds < 60


def test_a_bucket_deletes_a_thousand_with_a_request(
    moto_s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(s3.obstore, "delete", lambda _, paths: asked.append(len(paths)))
    bucket = s3.S3Store("b", connection_of({"client.region": "eu-west-1"}))
    bucket.delete_all([str(number) for number in range(2500)])
    assert sorted(asked) == [500, 1000, 1000]


def test_a_bucket_that_is_not_there_is_no_empty_one(moto_s3: S3Server) -> None:
    files = LakeFileIO(
        {
            "s3.endpoint": moto_s3.endpoint,
            "s3.access-key-id": moto_s3.access_key,
            "s3.secret-access-key": moto_s3.secret_key,
            "frazil.s3.allow-http": "true",
        }
    )
    for ask in (lambda at: list(files.walk(at)), files.now, lambda at: files.delete_all([f"{at}/x"])):
        with pytest.raises(StoreUnavailable):
            ask("s3://there-is-no-such-bucket/t")
