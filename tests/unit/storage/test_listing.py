"""Listing, by every store alike: in the order of paths, from a place on, and folder by folder."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frazil.errors import StoreUnavailable
from frazil.storage import Store, local
from frazil.storage.local import LocalStore
from tests.components.s3 import S3Server
from tests.support.wal_stores import MemoryStore, s3_store

PATHS = [
    "lease/pipeline/1",
    "logs-old/1",
    "logs/a-b/1",  # "-" comes before "/": as paths sort, not as names do
    "logs/a/1",
    "logs/a/2",
    "logs/a/2/deep",
    "logs/a/3",
    "logs/b/1",
    "logs/note",
    "set-aside/logs/a/1",
]


@pytest.fixture(params=["memory", "local", "s3", "s3 below a prefix"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    match request.param:
        case "memory":
            return MemoryStore()
        case "local":
            return LocalStore(tmp_path / "wal")
    server: S3Server = request.getfixturevalue("moto_s3")
    bucket = server.make_bucket(f"wal-{secrets.token_hex(6)}")
    return s3_store(server, bucket, prefix="some/where" if "prefix" in request.param else "")


def holding(store: Store, *paths: str) -> Store:
    for path in paths:
        if not (isinstance(store, LocalStore) and path == "logs/a/2/deep"):  # a file cannot be a folder
            store.create(path, path.encode())
    return store


def paths(store: Store, prefix: str, after: str | None = None) -> list[str]:
    return [entry.path for entry in store.list(prefix, after)]


def test_paths_come_in_their_order_and_only_those_after_a_place(store: Store) -> None:
    holding(store, *reversed(PATHS))
    there = [path for path in PATHS if path in set(paths(store, ""))]
    assert len(there) >= len(PATHS) - 1
    assert paths(store, "") == there
    logs = [path for path in there if path.startswith("logs/")]
    assert paths(store, "logs/") == logs
    for after in [*PATHS, "logs/a", "logs/a/25", "logs/aa", "a", "z", "logs/z"]:
        assert paths(store, "logs/", after) == [path for path in logs if path > after]
        assert paths(store, "logs/a/", after) == [
            path for path in logs if path.startswith("logs/a/") and path > after
        ]


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_a_folder_that_is_listed_in_parts_is_listed_whole_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    store = LocalStore(tmp_path)
    holding(store, *reversed(PATHS))
    expected = {after: paths(store, "", after) for after in [None, *PATHS, "logs/a/25", "z"]}
    assert expected[None] == [path for path in PATHS if path != "logs/a/2/deep"]
    monkeypatch.setattr(local, "_LISTED_AT_ONCE_MAX", at_once)
    assert {after: paths(store, "", after) for after in expected} == expected


def test_a_folder_that_is_emptied_while_it_is_listed_in_parts_is_listed_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_LISTED_AT_ONCE_MAX", 2)
    store = LocalStore(tmp_path)
    there = [f"logs/a/{number}" for number in range(9)]
    holding(store, *there)
    listed = []
    for entry in store.list("logs/a/"):
        listed.append(entry.path)
        store.delete(entry.path)
    assert listed == there


def test_children_are_the_folders_directly_below(store: Store) -> None:
    holding(store, *PATHS)
    assert list(store.children("logs/").folders) == ["a", "a-b", "b"]
    assert list(store.children("").folders) == ["lease", "logs", "logs-old", "set-aside"]
    assert list(store.children("none/").folders) == []


def test_many_are_deleted_at_once_and_what_is_gone_is_no_error(store: Store) -> None:
    many = [f"logs/{stream}/{number:03d}" for stream in "ab" for number in range(40)]
    holding(store, *many, "logs/a/other")
    store.delete_all([*many, "logs/a/never", "never/there"])
    store.delete_all([])
    assert paths(store, "") == ["logs/a/other"]


def test_only_an_empty_folder_is_removed(store: Store) -> None:
    holding(store, "logs/a/1", "logs/b/1")
    store.delete("logs/a/1")
    for folder in ("logs/a/", "logs/b/", "logs/never/"):
        store.remove_folder(folder)
    assert list(store.children("logs/").folders) == ["b"]
    holding(store, "logs/a/1")
    assert paths(store, "logs/") == ["logs/a/1", "logs/b/1"]


def test_the_local_store_looks_into_no_folder_that_it_passes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    holding(store, *(f"logs/{stream}/{number}" for stream in "abcd" for number in range(5)))
    looked: list[str] = []
    real = os.scandir

    def scandir(path: Any) -> Any:
        looked.append(Path(path).name)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert paths(store, "logs/", "logs/c/3") == ["logs/c/4", *(f"logs/d/{number}" for number in range(5))]
    assert looked == ["logs", "c", "d"]


def test_a_writer_whose_folder_is_removed_under_its_hands_makes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    monkeypatch.setattr(os, "link", removing(store, os.link, times=1))
    store.create("logs/a/1", b"data")
    assert store.read("logs/a/1") == b"data"


def test_a_writer_whose_folder_is_removed_again_and_again_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    monkeypatch.setattr(os, "link", removing(store, os.link, times=1000))
    with pytest.raises(StoreUnavailable):
        store.create("logs/a/1", b"data")
    assert list(store.list("")) == []
    assert list((tmp_path / ".incoming").iterdir()) == []


def removing(store: LocalStore, link: Callable[..., None], times: int) -> Callable[..., None]:
    """A link just before which, so many times, clean-up removes the folder."""
    left = iter(range(times))

    def linked(source: Path, target: Path) -> None:
        if next(left, None) is not None:
            store.remove_folder("logs/a/")
        link(source, target)

    return linked
