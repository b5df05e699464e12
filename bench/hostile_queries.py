"""`python -m bench.hostile_queries`: one tenant's queries end its workers; how long does another tenant wait?

A real API has keys of two tenants. Tenant b asks `count(*)` ten times a second: alone first, then while three
clients of tenant a repeat a query that crashes its worker, then while they repeat one that does not stop
when it is interrupted. The result cache is off.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from tests.support.query.small_lake import fill

from bench.serving import running_api
from bench.table import Bench, Row
from frazil.config import Config
from frazil.keys import new_key

CRASHING = "SELECT json_structure(repeat('[',100000)||repeat(']',100000))"
DEAF = "SELECT levenshtein(repeat('a',300000), repeat('b',300000))"
DEAF_SECONDS_MAX = 1.0
CLIENTS = 3
PAUSE_SECONDS = 0.1
P99_SECONDS_TARGET = 1.0
VICTIM, ATTACKER = "globex", "acme"


@dataclass(frozen=True)
class Waits:
    """Durations of a tenant's queries, and the status codes of the attacking clients."""

    seconds: list[float]
    failed: int
    statuses: Counter[int] = field(default_factory=Counter)

    def quantile(self, share: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    @property
    def quantiles(self) -> str:
        return " / ".join(f"{1000 * self.quantile(share):.0f}" for share in (0.5, 0.99, 1.0)) + " ms"

    @property
    def met(self) -> bool:
        return not self.failed and self.quantile(0.99) < P99_SECONDS_TARGET


@contextmanager
def attacked_api(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of an API with a small lake, and the keys of its two tenants."""
    fill(Config(data_dir=folder / "data"))
    keys, entries = {}, []
    for tenant in (VICTIM, ATTACKER):
        keys[tenant], digest = new_key(tenant)
        entries.append({"name": tenant, "tenant": tenant, "hash": digest, "roles": ["read"]})
    query = {"result_cache_bytes_max": 0}
    log = {"level": "warning", "format": "json"}
    with running_api(folder / "data", auth={"keys": entries}, query=query, log=log) as url:
        yield url, keys


def waits(url: str, keys: dict[str, str], seconds: float, attack: dict[str, object] | None = None) -> Waits:
    """Runs queries as tenant b for so many seconds, while clients of tenant a repeat the `attack`."""
    stop, statuses = threading.Event(), Counter[int]()

    def repeat() -> None:
        with _client(url, keys[ATTACKER]) as client:
            while not stop.is_set():
                statuses[client.post("/api/v1/sql", json=attack).status_code] += 1

    attackers = [threading.Thread(target=repeat) for _ in range(CLIENTS if attack else 0)]
    for attacker in attackers:
        attacker.start()
    taken, failed, end = [], 0, time.monotonic() + seconds
    with _client(url, keys[VICTIM]) as client:
        while (begin := time.monotonic()) < end:
            answer = client.post("/api/v1/sql", json={"sql": "SELECT count(*) FROM logs"})
            taken.append(time.monotonic() - begin)
            failed += answer.status_code != 200
            time.sleep(PAUSE_SECONDS)
    stop.set()
    for attacker in attackers:
        attacker.join()
    return Waits(taken, failed, statuses)


def _client(url: str, key: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=120, headers={"authorization": f"Bearer {key}"})


def crashes(url: str) -> float:
    """Workers that were killed or died since the API's start."""
    for line in httpx.get(f"{url}/metrics", timeout=30).text.splitlines():
        if line.startswith("frazil_query_workers_killed_total "):
            return float(line.split()[1])
    return 0.0


ATTACKS: dict[str, dict[str, object] | None] = {
    "alone": None,
    "queries that crash": {"sql": CRASHING},
    "queries that ignore interrupts": {"sql": DEAF, "seconds_max": DEAF_SECONDS_MAX},
}


def measured(seconds: float) -> Iterator[tuple[str, Waits, float]]:
    """For each attack: its name, tenant b's waits, and how many workers were killed."""
    with tempfile.TemporaryDirectory(prefix="frazil-bench-hostile-") as folder:
        for name, attack in ATTACKS.items():
            with attacked_api(Path(folder) / name.replace(" ", "-")) as (url, keys):
                waits(url, keys, 3)
                found = waits(url, keys, seconds, attack)
                killed = crashes(url)
            yield name, found, killed


def hostile_queries(bench: Bench) -> None:
    """What another tenant's queries take while each attack runs."""
    alone = ""
    for name, found, killed in measured(8 if bench.quick else 25):
        if ATTACKS[name] is None:
            alone = found.quantiles
            continue
        bench.add(
            Row(
                f"count(*) during: {name}",
                found.quantiles,
                alone,
                f"{killed:.0f} workers killed",
                f"p99 < {P99_SECONDS_TARGET:g} s",
                found.met,
            )
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.hostile_queries", description=__doc__)
    parser.add_argument("--seconds", type=float, default=25, help="how long each attack lasts")
    arguments = parser.parse_args()
    met = True
    for name, found, killed in measured(arguments.seconds):
        print(
            f"{name}: {len(found.seconds)} queries, {found.failed} failed, "
            f"p50 / p99 / max {found.quantiles}; {killed:.0f} workers killed, "
            f"answers to the other tenant {dict(found.statuses)}",
            flush=True,
        )
        met &= found.met
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
