"""Processes of this machine: resources of a process tree, and the owner of a port."""

from __future__ import annotations

import contextlib
import ctypes
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Send SIGTERM to this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass(frozen=True)
class Use:
    processes: int
    memory_bytes: int
    """Resident, without pages that are shared with other processes."""
    open_files: int
    cpu_seconds: float
    """Includes ended descendants that were waited for, so that it never decreases."""


def process_tree(root: int) -> Use | None:
    """Return the resources of a process and its descendants; None if the process has ended."""
    try:
        first = psutil.Process(root)
        uses = [_use(process) for process in (first, *first.children(recursive=True))]
    except psutil.Error:
        return None
    return Use(
        processes=sum(use.processes for use in uses),
        memory_bytes=sum(use.memory_bytes for use in uses),
        open_files=sum(use.open_files for use in uses),
        cpu_seconds=sum(use.cpu_seconds for use in uses),
    )


def _use(process: psutil.Process) -> Use:
    memory_bytes = open_files = 0
    try:
        with process.oneshot():
            cpu = process.cpu_times()
            with contextlib.suppress(psutil.Error):  # another user's process
                memory = process.memory_info()
                memory_bytes, open_files = memory.rss - memory.shared, process.num_fds()
    except psutil.Error:  # the process has ended
        return Use(0, 0, 0, 0.0)
    return Use(1, memory_bytes, open_files, cpu.user + cpu.system + cpu.children_user + cpu.children_system)


@dataclass(frozen=True)
class PortOwner:
    """The process that listens on a port. `frazil_id` is the outermost frazil process that it belongs to."""

    process_id: int
    command: str
    frazil_id: int | None

    def __str__(self) -> str:
        return f"process {self.process_id} ({self.command})"


def port_owner(port: int) -> PortOwner | None:
    """Return the process that listens on `port`; None if there is none or it belongs to another user."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            is_it = connection.status == psutil.CONN_LISTEN and connection.laddr[1:] == (port,)
            if is_it and connection.pid:
                process = psutil.Process(connection.pid)
                words = process.cmdline()
                # Only the program and its first argument or module: other arguments may hold secrets.
                command = " ".join(words[: 3 if words[1:2] == ["-m"] else 2]).strip()
                return PortOwner(process.pid, command, _frazil_id(process))
    return None


def _frazil_id(process: psutil.Process) -> int | None:
    """Return the outermost ancestor that is frazil: the command of a worker does not name frazil."""
    found = None
    with contextlib.suppress(psutil.Error):
        for each in (process, *process.parents()):
            if _is_frazil(each.cmdline()):
                found = each.pid
    return found


def _is_frazil(words: Sequence[str]) -> bool:
    return list(words[1:3]) == ["-m", "frazil"] or any(Path(word).name == "frazil" for word in words[:2])
