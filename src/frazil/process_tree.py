"""What a process and all its descendants use, from /proc. A JVM, its Python workers, a pool of query workers:
the numbers of one process alone would say little.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_PARENT, _UTIME, _CSTIME = 1, 11, 14
"""Places in /proc/PID/stat after the name: the parent, and four counts of CPU in a row."""


@dataclass(frozen=True)
class Use:
    processes: int
    memory_bytes: int
    """Resident, less pages that are shared with others."""
    open_files: int
    cpu_seconds: float
    """With that of descendants that have ended and were waited for, so that it does not fall."""


def process_tree(root: int) -> Use | None:
    """None where there is no /proc, or no such process."""
    stats = {int(name): stat for name in _names() if (stat := _stat(name)) is not None}
    if root not in stats:
        return None
    children: dict[int, list[int]] = {}
    for process, stat in stats.items():
        children.setdefault(int(stat[_PARENT]), []).append(process)
    family = [root]
    for process in family:  # grows while it is read
        family += children.get(process, [])
    ticks = sum(sum(map(int, stats[process][_UTIME : _CSTIME + 1])) for process in family)
    return Use(
        processes=len(family),
        memory_bytes=sum(map(_memory_bytes, family)),
        open_files=sum(map(_open_files, family)),
        cpu_seconds=ticks / os.sysconf("SC_CLK_TCK"),
    )


def _names() -> list[str]:
    try:
        return [name for name in os.listdir(_PROC) if name.isdecimal()]
    except OSError:
        return []


def _stat(name: str) -> list[str] | None:
    try:
        text = (_PROC / name / "stat").read_text(errors="replace")
    except OSError:  # it has ended meanwhile
        return None
    return text.rpartition(")")[2].split()  # the name before it may have spaces and brackets


def _memory_bytes(process: int) -> int:
    try:
        _, resident, shared, *_ = (_PROC / str(process) / "statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _open_files(process: int) -> int:
    try:
        return len(os.listdir(_PROC / str(process) / "fd"))
    except OSError:
        return 0
