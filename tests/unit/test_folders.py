"""Who can read what is written: the owner, the group where it was given access, and no other user."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from frazil.config import Config
from frazil.paths import OwnFolder, is_open_to_others, keep_private, private_folders


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_data_folder_is_its_owners_and_files_are_not_for_others(tmp_path: Path) -> None:
    config = Config(data_dir=tmp_path / "new" / "data")
    keep_private(config)
    assert mode_of(config.data_dir) == 0o700
    (config.data_dir / "below").mkdir()
    (config.data_dir / "file").touch()
    assert mode_of(config.data_dir / "below") == 0o750
    assert mode_of(config.data_dir / "file") == 0o640


def test_a_stricter_umask_stays(tmp_path: Path) -> None:
    os.umask(0o077)
    keep_private(Config(data_dir=tmp_path / "data"))
    (tmp_path / "file").touch()
    assert mode_of(tmp_path / "file") == 0o600


@pytest.mark.parametrize(
    ("before", "after"), [(0o755, 0o750), (0o777, 0o770), (0o750, 0o750), (0o2775, 0o2770), (0o700, 0o700)]
)
def test_only_other_users_lose_access_to_a_folder_that_exists(
    tmp_path: Path, before: int, after: int
) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    data_dir.chmod(before)
    with capture_logs() as logged:
        keep_private(Config(data_dir=data_dir))
    assert mode_of(data_dir) == after
    closed = [entry for entry in logged if entry["event"] == "folder closed to other users"]
    assert len(closed) == (before != after)


def test_folders_elsewhere_are_closed_and_shared_ones_left_alone(tmp_path: Path) -> None:
    wal, warehouse = tmp_path / "wal", tmp_path / "warehouse"
    wal.mkdir(mode=0o755)
    warehouse.mkdir()
    warehouse.chmod(0o1777)
    config = Config.model_validate(
        {
            "data_dir": tmp_path / "data",
            "wal": {"local": {"path": wal}},
            "lake": {"warehouse": str(warehouse)},
        }
    )
    assert [key for key, _ in private_folders(config)] == ["data_dir", "wal.local.path", "lake.warehouse"]
    keep_private(config)
    assert (mode_of(wal), mode_of(warehouse)) == (0o750, 0o1777)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_is_left_alone_and_files_made_in_it_are_warned_of(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir(mode=0o755)
    os.chown(data_dir, 65534, 65534)
    with capture_logs() as logged:
        keep_private(Config(data_dir=data_dir))
    assert mode_of(data_dir) == 0o755
    assert [entry["event"] for entry in logged] == ["data folder owned by another user"]


def test_a_path_is_open_only_where_all_folders_above_it_are(tmp_path: Path) -> None:
    above, below = tmp_path / "above", tmp_path / "above" / "below"
    below.mkdir(parents=True)
    open_above = all(parent.stat().st_mode & stat.S_IXOTH for parent in tmp_path.parents)
    tmp_path.chmod(0o755)
    assert is_open_to_others(below) == open_above
    above.chmod(0o750)
    assert not is_open_to_others(below)
    assert not is_open_to_others(tmp_path / "absent")


def test_a_temporary_folder_is_private_and_what_killed_processes_left_is_deleted(tmp_path: Path) -> None:
    left = tmp_path / "t-left"
    left.mkdir()
    (left / ".lock").touch()
    own, other = OwnFolder(tmp_path, "t-"), OwnFolder(tmp_path, "t-")
    folder = own.take()
    assert mode_of(folder) == 0o700
    assert not left.exists()
    other.take()
    assert folder.exists(), "it is in use"
    own.give_back()
    other.give_back()
    assert list(tmp_path.iterdir()) == []
