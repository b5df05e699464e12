"""Disks that are full or fail: a shim between a process and its files, and a real file system of a few bytes.

The shim shows how a process takes errors and its own sudden death. SIGKILL leaves the page cache standing, so
no test with it can show a missing fsync: `seen("fsync")` can.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Literal

from .cache import ComponentMissingError, built_once
from .process import dies_with_parent, end

SHIM_SOURCE = Path(__file__).with_name("fault_shim.c")

# In the order of `enum operation` in fault_shim.c. fsync stands for fdatasync too, link for linkat, and so
# on; create is an open with O_CREAT or O_TMPFILE.
OPERATIONS = ("create", "write", "fsync", "link", "rename", "unlink", "mkdir")
# A sync changes nothing that SIGKILL leaves behind: dead before it is dead before what comes next.
CHANGES = tuple(operation for operation in OPERATIONS if operation != "fsync")

When = Literal["before", "after", "halfway"]


class Action(IntEnum):
    """`enum action` in fault_shim.c."""

    NEVER = 0
    KILL_BEFORE = 1
    KILL_AFTER = 2
    KILL_HALFWAY = 3
    FAIL = 4


class Words(IntEnum):
    """Places of 64-bit words in the control file: `enum word` in fault_shim.c."""

    TRIGGER_MASK = 0
    TRIGGER_AT = 1
    TRIGGER_ACTION = 2
    TRIGGER_ERRNO = 3
    TRIGGER_SEEN = 4
    TRIGGER_FIRED = 5
    SEEN = 6
    FAILING = SEEN + len(OPERATIONS)
    FAILED = FAILING + len(OPERATIONS)
    END = FAILED + len(OPERATIONS)


def fault_shim(folder: Path | None = None) -> Path:
    """The compiled shim, built once into `folder` (else the tests' cache)."""
    source = SHIM_SOURCE.read_bytes()

    def build(into: Path) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            raise ComponentMissingError("the fault shim", "a C compiler (Debian: gcc and libc6-dev)")
        flags = ["-O2", "-Wall", "-Werror", "-shared", "-fPIC"]
        command = [compiler, *flags, "-o", str(into / "fault_shim.so"), str(SHIM_SOURCE), "-ldl"]
        ended = subprocess.run(command, capture_output=True, text=True)
        if ended.returncode != 0:
            raise ComponentMissingError("the fault shim", f"{compiler} refused it:\n{ended.stderr}")

    return built_once(
        f"fault_shim-{hashlib.sha256(source).hexdigest()[:12]}", "fault_shim.so", build, folder=folder
    )


class FaultControl:
    """Says what happens to file operations under one folder in the processes started with `environment()`.

    The counters and the trigger are shared by all of those processes and can be read and set while they run.
    """

    def __init__(self, file: Path, *, under: Path, shim: Path) -> None:
        under.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(Words.END * 8))
        self._file, self._under, self._shim = file, under, shim
        with open(file, "r+b") as opened:
            self._mapped = mmap.mmap(opened.fileno(), Words.END * 8)
        self._words = memoryview(self._mapped).cast("q")

    def __enter__(self) -> FaultControl:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._words.release()
        self._mapped.close()

    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to be under control."""
        preload = [str(self._shim), os.environ.get("LD_PRELOAD", "")]
        return {
            "LD_PRELOAD": ":".join(filter(None, preload)),
            "FAULT_SHIM_CONTROL": str(self._file),
            "FAULT_SHIM_UNDER": str(self._under),
        }

    def fail(self, operation: str | Iterable[str], error_number: int) -> None:
        """From now on every such operation fails with this errno, until `clear()`."""
        for place in _places(operation):
            self._words[Words.FAILING + place] = error_number

    def fail_at(self, operation: str | Iterable[str], n: int, error_number: int) -> None:
        """The n-th such operation from now on fails with this errno; those after it do not."""
        self._arm(operation, n, Action.FAIL, error_number)

    def kill_at(self, operation: str | Iterable[str], n: int, when: When = "before") -> None:
        """The process that reaches the n-th such operation from now on gets SIGKILL.

        Before the operation, after it (done, but nobody was told), or halfway: a write has then written half
        of its bytes; for operations that have no middle this is "before".
        """
        self._arm(operation, n, Action[f"KILL_{when.upper()}"])

    def clear(self) -> None:
        """Nothing fails any more and nothing is armed. The counters stay."""
        self._words[Words.TRIGGER_AT] = 0
        for place in range(len(OPERATIONS)):
            self._words[Words.FAILING + place] = 0

    def seen(self, operation: str | Iterable[str] = OPERATIONS) -> int:
        """How many such operations were begun so far, failed ones and the fatal one included."""
        return sum(self._words[Words.SEEN + place] for place in _places(operation))

    def failed(self, operation: str | Iterable[str] = OPERATIONS) -> int:
        """How many such operations were made to fail so far."""
        return sum(self._words[Words.FAILED + place] for place in _places(operation))

    @property
    def fired(self) -> bool:
        """Whether what `kill_at` or `fail_at` last armed has happened: where not, a sweep is at its end."""
        return self._words[Words.TRIGGER_FIRED] != 0

    def _arm(self, operation: str | Iterable[str], n: int, action: Action, error_number: int = 0) -> None:
        if n < 1:
            raise ValueError(f"operations are counted from 1, not {n}")
        self._words[Words.TRIGGER_AT] = 0
        self._words[Words.TRIGGER_MASK] = sum(1 << place for place in _places(operation))
        self._words[Words.TRIGGER_ACTION] = action
        self._words[Words.TRIGGER_ERRNO] = error_number
        self._words[Words.TRIGGER_SEEN] = 0
        self._words[Words.TRIGGER_FIRED] = 0
        self._words[Words.TRIGGER_AT] = n


def _places(operation: str | Iterable[str]) -> list[int]:
    names = [operation] if isinstance(operation, str) else list(operation)
    return [OPERATIONS.index(name) for name in names]


@dataclass(frozen=True)
class SmallFilesystem:
    """A tmpfs that only the processes started with `command()` see at `folder`; others see it at `path`."""

    folder: Path
    holder_id: int

    @property
    def path(self) -> Path:
        return Path(f"/proc/{self.holder_id}/root{self.folder}")

    def command(self, command: Sequence[str | Path]) -> list[str]:
        """The command, wrapped so that it runs where the file system is mounted, in our working directory."""
        enter = ["nsenter", "--target", str(self.holder_id), "--mount"]
        if os.geteuid() != 0:
            enter += ["--user", "--preserve-credentials"]
        return [*enter, "sh", "-c", 'cd "$0" && exec "$@"', os.getcwd(), *map(str, command)]

    def fill(self) -> None:
        """Leaves not one free byte."""
        with open(self.path / ".filler", "ab", buffering=0) as filler, contextlib.suppress(OSError):
            for size in (1 << 16, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while filler.write(bytes(size)):
                        pass

    def free(self) -> None:
        (self.path / ".filler").unlink(missing_ok=True)


@contextlib.contextmanager
def small_filesystem(folder: Path, *, bytes_max: int) -> Iterator[SmallFilesystem]:
    """Mounts a tmpfs of this size on `folder`, in a mount namespace that ends with the block.

    Needs root, or a kernel that lets users make namespaces.
    """
    for program in ("unshare", "nsenter", "mount"):
        if shutil.which(program) is None:
            raise ComponentMissingError("a small file system", f"{program} (Debian: util-linux, mount)")
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    own_user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    mount = 'mount -t tmpfs -o size="$0" tmpfs "$1" && echo mounted && exec cat'
    holder = subprocess.Popen(
        dies_with_parent(["unshare", "--mount", *own_user, "sh", "-c", mount, str(bytes_max), folder]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        assert holder.stdout is not None
        said = holder.stdout.readline()
        if said != b"mounted\n":
            raise ComponentMissingError(
                "a small file system", f"the right to mount one ({said.decode().strip()})"
            )
        yield SmallFilesystem(folder, holder.pid)
    finally:
        holder.stdin.close()  # type: ignore[union-attr]
        end(holder)
        holder.stdout.close()  # type: ignore[union-attr]
