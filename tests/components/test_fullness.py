"""The shim and the small disk do to a process what they say, and nothing to its other files."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .fullness import OPERATIONS, FaultControl, SmallFilesystem

# gcc and mounts are not "PyPI and Maven alone".
pytestmark = pytest.mark.slow

# One of each operation, as a segment writer does them, in the folder given; reports what failed and why.
ONE_OF_EACH = """
import json, os, sys
folder = sys.argv[1]
failed = {}
def attempt(name, call):
    try:
        return call()
    except OSError as error:
        failed[name] = error.errno
        return None
attempt("mkdir", lambda: os.mkdir(folder + "/sub"))
fd = attempt("create", lambda: os.open(folder + "/new", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
if fd is not None:
    attempt("write", lambda: os.write(fd, b"12345678"))
    attempt("fsync", lambda: os.fsync(fd))
    os.close(fd)
    attempt("link", lambda: os.link(folder + "/new", folder + "/linked"))
    attempt("unlink", lambda: os.unlink(folder + "/new"))
    if "link" not in failed:
        attempt("rename", lambda: os.rename(folder + "/linked", folder + "/renamed"))
print(json.dumps(failed))
"""


@pytest.fixture
def faults(tmp_path: Path, fault_shim: Path) -> Iterator[FaultControl]:
    with FaultControl(tmp_path / "faults", under=tmp_path / "data", shim=fault_shim) as control:
        yield control


def run(
    code: str, folder: Path, faults: FaultControl, *, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(folder)],
        env=os.environ | faults.environment(),
        capture_output=True,
        text=True,
        cwd=cwd,
    )


def test_operations_are_counted_and_left_alone_without_a_fault(tmp_path: Path, faults: FaultControl) -> None:
    ended = run(ONE_OF_EACH, tmp_path / "data", faults)
    assert json.loads(ended.stdout) == {}
    assert {operation: faults.seen(operation) for operation in OPERATIONS} == dict.fromkeys(OPERATIONS, 1)
    assert sorted(os.listdir(tmp_path / "data")) == ["renamed", "sub"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_fails_with_the_errno_asked_for_until_cleared(
    operation: str, tmp_path: Path, faults: FaultControl
) -> None:
    faults.fail(operation, errno.ENOSPC)
    ended = run(ONE_OF_EACH, tmp_path / "data" / "full", faults)
    assert json.loads(ended.stdout) == {operation: errno.ENOSPC}
    assert faults.failed() == 1
    faults.clear()
    ended = run(ONE_OF_EACH, tmp_path / "data" / "free", faults)
    assert json.loads(ended.stdout) == {}


def test_files_elsewhere_are_neither_counted_nor_failed(tmp_path: Path, faults: FaultControl) -> None:
    faults.fail(OPERATIONS, errno.EIO)
    for elsewhere in (tmp_path / "elsewhere", tmp_path / "database"):  # the second begins like "data"
        assert json.loads(run(ONE_OF_EACH, elsewhere, faults).stdout) == {}
    assert faults.seen() == 0


VARIANTS = """
import os, sys
os.chdir(sys.argv[1])
folder = os.open(".", os.O_RDONLY)
fd = os.open("a", os.O_RDWR | os.O_CREAT, dir_fd=folder)
os.write(fd, b"x"); os.pwrite(fd, b"x", 0); os.writev(fd, [b"x", b"y"]); os.pwritev(fd, [b"x"], 0)
os.fsync(fd); os.fdatasync(fd); os.fsync(folder)
os.link("a", "b", src_dir_fd=folder, dst_dir_fd=folder)
os.rename("b", "c", src_dir_fd=folder, dst_dir_fd=folder); os.replace("c", "d")
os.unlink("d", dir_fd=folder)
os.mkdir("e", dir_fd=folder)
nameless = os.open(".", os.O_WRONLY | os.O_TMPFILE)
with open("f", "wb") as file:
    file.write(b"x")
os.open("f", os.O_RDONLY)
os.write(1, b"done")
"""


def test_relative_paths_folder_descriptors_and_gathered_writes_count_too(
    tmp_path: Path, faults: FaultControl
) -> None:
    ended = run(VARIANTS, tmp_path / "data", faults)
    assert ended.stdout == "done", ended.stderr
    seen = {operation: faults.seen(operation) for operation in OPERATIONS}
    assert seen == {"create": 3, "write": 5, "fsync": 3, "link": 1, "rename": 2, "unlink": 1, "mkdir": 1}


def test_a_folder_reached_through_a_symbolic_link_is_still_the_folder(
    tmp_path: Path, faults: FaultControl
) -> None:
    (tmp_path / "alias").symlink_to(tmp_path / "data")
    faults.fail("link", errno.EIO)
    assert json.loads(run(ONE_OF_EACH, tmp_path / "alias", faults).stdout) == {"link": errno.EIO}


def test_a_fault_sets_in_and_ends_while_the_process_runs(tmp_path: Path, faults: FaultControl) -> None:
    code = """
import os, sys
fd = os.open(sys.argv[1] + "/log", os.O_WRONLY | os.O_CREAT)
for line in sys.stdin:
    try:
        os.write(fd, line.encode()); os.fsync(fd)
        print("ok", flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code, str(tmp_path / "data")],
        env=os.environ | faults.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def said() -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("line\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    with process:
        assert said() == "ok"
        faults.fail("fsync", errno.EIO)
        assert [said(), said()] == [str(errno.EIO)] * 2
        faults.clear()
        assert said() == "ok"
        faults.fail_at("write", 2, errno.ENOSPC)
        assert [said(), said(), said()] == ["ok", str(errno.ENOSPC), "ok"]
        assert faults.fired


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_sweep_kills_at_every_operation_and_then_finds_no_more(
    when: str, tmp_path: Path, faults: FaultControl
) -> None:
    # What is in the folder before the first operation of ONE_OF_EACH, and after each of them.
    left = [set(), {"sub"}, {"sub", "new"}, {"sub", "new"}, {"sub", "new"}, {"sub", "new", "linked"}]
    left += [{"sub", "linked"}, {"sub", "renamed"}]
    for n in range(1, len(left) + 1):
        folder = tmp_path / "data" / str(n)
        faults.kill_at(OPERATIONS, n, when=when)
        ended = run(ONE_OF_EACH, folder, faults)
        if not faults.fired:
            break
        assert ended.returncode == -signal.SIGKILL
        assert set(os.listdir(folder)) == left[n - 1 if when == "before" else n]
    assert n == len(left)
    assert ended.returncode == 0
    assert faults.seen() == sum(range(1, len(OPERATIONS) + 1)) + len(OPERATIONS)


def test_a_kill_halfway_leaves_half_of_a_write(tmp_path: Path, faults: FaultControl) -> None:
    faults.kill_at("write", 1, when="halfway")
    assert run(ONE_OF_EACH, tmp_path / "data", faults).returncode == -signal.SIGKILL
    assert (tmp_path / "data" / "new").read_bytes() == b"1234"


def test_only_the_process_that_meets_the_fault_dies_and_only_once(
    tmp_path: Path, faults: FaultControl
) -> None:
    code = """
import os, sys
deaths = 0
for n in range(5):
    child = os.fork()
    if child == 0:
        os.open(f"{sys.argv[1]}/{n}", os.O_CREAT | os.O_WRONLY)
        os._exit(0)
    deaths += os.WIFSIGNALED(os.waitpid(child, 0)[1])
print(deaths)
"""
    faults.kill_at("create", 3)
    assert run(code, tmp_path / "data", faults).stdout == "1\n"
    assert sorted(os.listdir(tmp_path / "data")) == ["0", "1", "3", "4"]


def test_a_small_disk_is_full_until_it_is_freed_and_outlives_its_processes(
    small_disk: Callable[[int], SmallFilesystem],
) -> None:
    disk = small_disk(1 << 20)

    def written(name: str) -> str:
        code = "import sys; open(sys.argv[1], 'wb', buffering=0).write(bytes(5000))"
        command = disk.command([sys.executable, "-I", "-S", "-c", code, disk.folder / name])
        return subprocess.run(command, capture_output=True, text=True).stderr

    assert written("first") == ""
    disk.fill()
    assert "No space left on device" in written("second")
    disk.free()
    assert written("third") == ""
    assert (disk.path / "first").stat().st_size == 5000
    assert list(disk.folder.iterdir()) == []  # not mounted for us
