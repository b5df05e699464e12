"""All roles, started with a umask that forbids nothing: no other user of the machine reads their files."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser.running import Up, running_up

OTHER_USER = 65534
READ = """
import os, sys
os.setgroups([]); os.setgid({user}); os.setuid({user})
for path in sys.argv[1:]:
    try:
        os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(4)
        print("read", path)
    except OSError as error:
        print(type(error).__name__, path)
"""


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    """In a folder that everyone can enter, unlike pytest's own."""
    before = os.umask(0)
    try:
        with tempfile.TemporaryDirectory(prefix="frazil-private-", ignore_cleanup_errors=True) as folder:
            Path(folder).chmod(0o755)
            audit = {"query": {"audit_file": str(Path(folder) / "data" / "audit.log")}}
            with running_up(Path(folder), audit) as running:
                yield running
    finally:
        os.umask(before)


def found(up: Up) -> dict[str, Path]:
    """A file or folder of each kind that holds rows."""
    data = up.folder / "data"
    kinds = {
        "data file": "warehouse/**/data/**/*.parquet",
        "metadata": "warehouse/**/metadata/*.json",
        "catalog": "catalog.db",
        "segment": "wal/**/*.parquet",
        "audit": "audit.log",
        "spark": "tmp/frazil-spark-*/blockmgr-*",
    }
    return {kind: next(data.glob(pattern)) for kind, pattern in kinds.items()}


@pytest.mark.slow
def test_no_file_of_any_role_is_for_other_users(up: Up) -> None:
    data = up.folder / "data"
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert found(up)
    # Spark's own, in a folder with 0700, can have any mode.
    theirs = data / "tmp"
    for path in data.rglob("*"):
        if path.is_relative_to(theirs) and path != theirs:
            continue
        try:
            mode = stat.S_IMODE(path.lstat().st_mode)
        except FileNotFoundError:
            continue  # the roles are running
        assert mode & 0o027 == 0, f"{path} {mode:04o}"
    for folder in theirs.iterdir():
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_reads_nothing_of_the_lake(up: Up) -> None:
    data, kinds = up.folder / "data", found(up)

    def tried() -> set[str]:
        command = [
            sys.executable,
            "-c",
            READ.format(user=OTHER_USER),
            str(up.folder),
            *map(str, kinds.values()),
        ]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        assert lines[0] == f"read {up.folder}", "the folder above it is open"
        assert len(lines) == 1 + len(kinds)
        return {line.partition(" ")[0] for line in lines[1:]}

    assert tried() == {"PermissionError"}
    data.chmod(0o755)  # what is below is closed by itself
    try:
        assert tried() == {"PermissionError"}
        for path in data.rglob("*"):
            if path.is_dir() and "frazil-spark-" not in str(path):
                path.chmod(0o755)
        assert tried() == {"PermissionError"}, "files are 0640"
    finally:
        data.chmod(0o700)
