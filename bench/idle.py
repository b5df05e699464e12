"""A pipeline that has nothing to do: what it costs, before its first landing and after."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import yaml
from tests.components.process import dies_with_parent, end, free_port, wait_until

from bench.backlog import make_backlog
from bench.land import local_config
from bench.table import Bench, Row

IDLE_SECONDS = 30.0
QUICK_IDLE_SECONDS = 8.0
_SETTLED_SECONDS = 3.0
_END_SECONDS_MAX = 40.0


def idle(bench: Bench) -> None:
    seconds = QUICK_IDLE_SECONDS if bench.quick else IDLE_SECONDS
    with tempfile.TemporaryDirectory(prefix="frazil-bench-idle-") as place:
        folder = Path(place)
        with _running_pipeline(folder) as (process, port):
            time.sleep(_SETTLED_SECONDS)
            _add(bench, "pipeline with nothing to do", process, port, seconds)
            if bench.quick:
                return
            make_backlog(local_config(folder / "data"), 2000)
            landed = wait_until(
                lambda: _metric(port, 'frazil_landed_rows_total{table="logs"}') >= 2000, seconds_max=120
            )
            assert landed, (folder / "pipeline.log").read_text()[-2000:]
            time.sleep(_SETTLED_SECONDS)
            _add(bench, "the same after a landing, Spark running", process, port, seconds)


@contextlib.contextmanager
def _running_pipeline(folder: Path) -> Iterator[tuple[psutil.Process, int]]:
    port = free_port()
    settings = {
        "data_dir": str(folder / "data"),
        "spark": {"master": "local[2]"},
        "pipeline": {"listen": f"127.0.0.1:{port}"},
        "land": {"age_max_seconds": 1},
    }
    config, log = folder / "frazil.yaml", folder / "pipeline.log"
    config.write_text(yaml.safe_dump(settings))
    with log.open("wb") as output:
        process = subprocess.Popen(
            dies_with_parent([sys.executable, "-m", "frazil", "--config", str(config), "pipeline"]),
            stdout=output,
            stderr=output,
            cwd=folder,
        )
    try:
        ready = wait_until(
            lambda: _is_ready(port), seconds_max=60, give_up=lambda: process.poll() is not None
        )
        assert ready, log.read_text()[-2000:]
        yield psutil.Process(process.pid), port
    finally:
        end(process, _END_SECONDS_MAX)


def _add(bench: Bench, name: str, process: psutil.Process, port: int, seconds: float) -> None:
    # Spark's idle Python workers use nothing, and end after a minute.
    jvms = process.children()
    jobs, before = _metric(port, "frazil_spark_jobs_total"), list(map(_cpu_seconds, (process, *jvms)))
    begin = time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - begin
    after = map(_cpu_seconds, (process, *jvms))
    driver_share, *jvm_shares = ((now - then) / passed for now, then in zip(after, before, strict=True))
    started = _metric(port, "frazil_spark_jobs_total") - jobs
    beside = f"JVM {sum(jvm_shares):.1%}" if jvms else "Spark is not started"
    bench.add(
        Row(
            name,
            "",
            f"{passed:.0f} s",
            f"driver {driver_share:.1%} of a core, {beside}, {started:.0f} jobs",
            "no jobs",
            started == 0,
        )
    )


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _metric(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0
