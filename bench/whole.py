"""The whole process tree of `frazil up`, from the first byte received until rows are landed, then merged."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import yaml
from tests.components.process import wait_until

from bench.load import Load
from bench.measure import running_load
from bench.table import Bench, Row
from bench.up import CpuByRole, Up, cpu_seconds, running_up

LOADS, REQUESTS, RECORDS = 6, 1_000, 1_000
"""Each load is a client process that makes its requests before it sends them."""
LANDED_PROMISED, COMPACTED_PROMISED = 65_000, 45_000
_LANDED_SECONDS_MAX = 600.0


def whole(bench: Bench) -> None:
    requests = bench.count(REQUESTS)
    records = LOADS * requests * RECORDS
    with tempfile.TemporaryDirectory(prefix="frazil-bench-whole-") as place:
        folder = Path(place)
        with running_up(folder) as up:
            begin = time.monotonic()
            with CpuByRole(up) as watched:
                for number in range(LOADS):
                    _send(up, requests, number * requests)
                landed = wait_until(lambda: _landed(up) >= records, seconds_max=_LANDED_SECONDS_MAX)
                assert landed, (folder / "up.log").read_text()[-2000:]
            roles = watched.look()
            _add(
                bench,
                f"`frazil up`, {records / 1e6:g} million logs until landed",
                records,
                roles,
                begin,
                LANDED_PROMISED,
            )
        roles["forced compaction"] = _compact(up)
        _add(bench, "the same and `frazil maintain compact`", records, roles, begin, COMPACTED_PROMISED)


def _send(up: Up, requests: int, first_seed: int) -> None:
    load = Load(up.ports["http"], 0, requests=requests, records=RECORDS, clients=16, first_seed=first_seed)
    with running_load(load) as client:
        outcome = client.run()
    assert outcome.failed == 0, outcome.failed


def _landed(up: Up) -> float:
    return up.metric("pipeline", 'frazil_landed_rows_total{table="logs"}')


def _compact(up: Up) -> float:
    """CPU-seconds of the command and its Spark. A process that has ended counts as it was last seen.

    The lowest `fan_in` merges the files of the open day too.
    """
    config = up.config.with_name("compact.yaml")
    forced = {"maintain": {"compact": {"fan_in": 2}}}
    config.write_text(yaml.safe_dump(yaml.safe_load(up.config.read_text()) | forced))
    words = [sys.executable, "-m", "frazil", "--config", str(config), "maintain", "compact", "--json"]
    seconds: dict[psutil.Process, float] = {}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        root = psutil.Process(process.pid)
        output: list[str] = []
        assert process.stdout is not None
        reader = threading.Thread(target=lambda: output.extend(process.stdout or ()), daemon=True)
        reader.start()
        while process.poll() is None:
            for one in (root, *root.children(recursive=True)):
                seconds[one] = max(seconds.get(one, 0.0), cpu_seconds(one))
            time.sleep(0.1)
        reader.join()
    assert process.returncode == 0, "".join(output)[-2000:]
    assert any(task["rows"] for line in output if line.startswith("[") for task in json.loads(line)), output
    return sum(seconds.values())


def _add(bench: Bench, name: str, records: int, roles: Counter[str], begin: float, promised: int) -> None:
    speed = records / roles.total()
    each = ", ".join(f"{role} {seconds:.1f}" for role, seconds in roles.most_common() if seconds >= 0.05)
    bench.add(
        Row(
            name,
            f"{speed:,.0f}",
            f"{time.monotonic() - begin:.0f} s",
            f"CPU-seconds: {each}",
            f"≥ {promised:,}",
            speed >= promised,
        )
    )
