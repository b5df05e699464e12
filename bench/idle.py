"""`frazil up` that has nothing to do: what each role costs, before its first landing and after."""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path

import psutil
from tests.components.process import wait_until

from bench.backlog import make_backlog
from bench.land import local_config
from bench.table import Bench, Row
from bench.up import Up, cpu_seconds, running_up

IDLE_SECONDS = 60.0
QUICK_IDLE_SECONDS = 8.0
CORE_SHARE_MAX = 0.03
MEMORY_BYTES_MAX = 2.5e9
_SETTLED_SECONDS = 10.0
_QUICK_SETTLED_SECONDS = 3.0


def idle(bench: Bench) -> None:
    seconds = QUICK_IDLE_SECONDS if bench.quick else IDLE_SECONDS
    settled = _QUICK_SETTLED_SECONDS if bench.quick else _SETTLED_SECONDS
    with tempfile.TemporaryDirectory(prefix="frazil-bench-idle-") as place:
        folder = Path(place)
        with running_up(folder, land={"age_max_seconds": 1}) as up:
            time.sleep(settled)
            _add(bench, "`frazil up` idle", up, seconds)
            if bench.quick:
                return
            make_backlog(local_config(folder / "data"), 2000)
            derived = wait_until(
                lambda: (
                    up.metric("pipeline", 'frazil_derived_source_rows_total{table="log_rollups"}') >= 2000
                ),
                seconds_max=120,
            )
            assert derived, (folder / "up.log").read_text()[-2000:]
            time.sleep(settled)
            _add(bench, "the same after landing and derivation, Spark running", up, seconds)


def _add(bench: Bench, name: str, up: Up, seconds: float) -> None:
    roles = up.roles()
    jobs = up.metric("pipeline", "frazil_spark_jobs_total")
    before = {role: sum(map(cpu_seconds, processes)) for role, processes in roles.items()}
    begin = time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - begin
    shares = {
        role: max(0.0, sum(map(cpu_seconds, processes)) - before[role]) / passed
        for role, processes in roles.items()
    }
    memory = {role: sum(map(_memory_bytes, processes)) for role, processes in roles.items()}
    started = up.metric("pipeline", "frazil_spark_jobs_total") - jobs
    share, used = sum(shares.values()), sum(memory.values())
    each = ", ".join(f"{role} {shares[role]:.1%} and {memory[role] / 1e6:.0f} MB" for role in roles)
    bench.add(
        Row(
            name,
            "",
            f"{passed:.0f} s",
            f"{share:.1%} of a core, {used / 1e6:,.0f} MB: {each}; {started:.0f} jobs",
            f"< {CORE_SHARE_MAX:.0%} of a core, < {MEMORY_BYTES_MAX / 1e9:g} GB, no jobs",
            started == 0 and share < CORE_SHARE_MAX and used < MEMORY_BYTES_MAX,
        )
    )


def _memory_bytes(process: psutil.Process) -> int:
    """What it alone uses and its part of what it shares: the sum over processes counts nothing twice."""
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    found = re.search(r"^Pss:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
