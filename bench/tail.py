"""Rows that have not landed: the first query after silence, their cost without queries, many tenants."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import psutil

from bench.backlog import Payloads
from bench.serving import running_api
from bench.table import Bench, Row
from frazil.config import Config
from frazil.otlp.decode import Decoder
from frazil.position import WalPosition
from frazil.query.tail import Tail
from frazil.wal.names import SegmentName, new_stream
from frazil.wal.segment import SegmentWriter

BACKLOG_SECONDS = 60
SEGMENTS_PER_SECOND = 20
"""As a receiver writes them that gets a request every 50 ms."""
PROMISED_MS = {2_000: 700, 10_000: 2_000}
ROUNDS, QUICK_ROUNDS = 5, 2
IDLE_SECONDS, QUICK_IDLE_SECONDS = 30, 10
TENANTS, TENANTS_ROWS = 500, 5_000
_QUERIES = {
    "errors by service": "SELECT service_name, count(*) FROM logs WHERE severity_number >= 17 GROUP BY ALL",
    "text search": "SELECT time, body FROM logs WHERE body LIKE '%timeout%' ORDER BY time DESC LIMIT 50",
}


def tail(bench: Bench) -> None:
    with tempfile.TemporaryDirectory(prefix="frazil-bench-tail-") as place:
        for rate in PROMISED_MS:
            data = Path(place) / f"{rate}" / "data"
            _write(data / "wal", BACKLOG_SECONDS * SEGMENTS_PER_SECOND, rate // SEGMENTS_PER_SECOND)
            for name, sql in _QUERIES.items():
                _first_query(bench, data, rate, name, sql)
        _without_queries(bench, Path(place))
        _many_tenants(bench, Path(place) / "tenants")


def _write(wal: Path, segments: int, rows: int, tenants: int = 1) -> None:
    """One stream of segments with so many rows each. Not synced: no test loses them."""
    stream, source, decoder, before = new_stream(), Payloads(rows // tenants), Decoder("logs"), 0
    for sequence in range(segments):
        seeds = range(sequence * tenants, (sequence + 1) * tenants)
        received = source.received_unix_nano(seeds[-1])
        bodies, names = [source.body(seed) for seed in seeds], [f"tenant-{n}" for n in range(tenants)]
        writer = SegmentWriter(1, decoder.fill.fingerprint)
        owners = ["default"] if tenants == 1 else names
        writer.write(decoder.decode(bodies, owners, [received] * tenants).table)
        name = SegmentName("logs", stream, sequence)
        path = wal / name.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(writer.finish(name, stream_rows=before, received=(received, received)))
        before += writer.rows


def _first_query(bench: Bench, data: Path, rate: int, name: str, sql: str) -> None:
    """Each time a new API: it has decoded nothing."""
    found, cpu = [], []
    for _ in range(QUICK_ROUNDS if bench.quick else ROUNDS):
        with running_api(data) as url, httpx.Client(timeout=60) as client:
            _ask(client, url, "SELECT count(*) FROM spans")
            with _cpu_seconds(cpu):
                begin = time.perf_counter()
                rows = _ask(client, url, sql)
                found.append((time.perf_counter() - begin) * 1000)
            assert rows == rate * BACKLOG_SECONDS, rows
    bench.add(
        Row(
            f"first query after silence, {BACKLOG_SECONDS} s at {rate:,}/s: {name}",
            f"p50 {statistics.median(found):.0f} ms",
            "",
            f"{statistics.median(cpu):.2f} CPU-seconds of the API, {len(found)} times, "
            f"slowest {max(found):.0f} ms",
            f"p50 < {PROMISED_MS[rate]} ms",
            statistics.median(found) < PROMISED_MS[rate],
        )
    )


def _ask(client: httpx.Client, url: str, sql: str) -> int:
    """How many rows it found in the tail."""
    answer = client.post(f"{url}/api/v1/sql", content=json.dumps({"sql": sql}))
    answer.raise_for_status()
    return int(answer.json()["stats"]["tail_rows"])


@contextmanager
def _cpu_seconds(found: list[float]) -> Iterator[None]:
    """Of the API and its workers, in the meantime."""

    def total() -> float:
        mine = [each for each in psutil.Process().children() if "serve" in each.cmdline()]
        all_of_them = [each for one in mine for each in (one, *one.children(recursive=True))]
        return sum(sum(each.cpu_times()[:2]) for each in all_of_them)

    before = total()
    yield
    found.append(total() - before)


def _without_queries(bench: Bench, place: Path) -> None:
    """Segments of 10,000 records/s arrive, and no query runs."""
    seconds = QUICK_IDLE_SECONDS if bench.quick else IDLE_SECONDS
    data, cpu = place / "idle" / "data", list[float]()
    (data / "wal").mkdir(parents=True)
    ready = sorted((place / "10000" / "data" / "wal").rglob("*.parquet"))
    with running_api(data) as url, httpx.Client(timeout=60) as client:
        _ask(client, url, "SELECT count(*) FROM spans")
        begin = time.monotonic()
        with _cpu_seconds(cpu):
            for number, path in enumerate(ready[: seconds * SEGMENTS_PER_SECOND]):
                target = data / path.relative_to(place / "10000" / "data")
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, target)
                time.sleep(max(0.0, begin + number / SEGMENTS_PER_SECOND - time.monotonic()))
    bench.add(
        Row(
            "the API without queries, 10,000 records/s",
            f"{cpu[0] / seconds:.1%} of a core",
            "",
            f"{cpu[0]:.2f} CPU-seconds in {seconds} s",
            "< 3 % of a core",
            cpu[0] / seconds < 0.03,
        )
    )


def _many_tenants(bench: Bench, place: Path) -> None:
    """One tenant's rows of a segment that many tenants share, compared with a segment of one tenant."""
    found = {}
    for tenants in (1, TENANTS):
        data = place / f"{tenants}"
        _write(data / "wal", 1, TENANTS_ROWS, tenants)
        tenant = "default" if tenants == 1 else "tenant-7"
        with closing(Tail(Config(data_dir=data), data / "tail")) as rows:
            rows.cut("logs", WalPosition(), tenant, ["body"]).release()
            begin = time.process_time()
            assert rows.cut("logs", WalPosition(), tenant).rows == TENANTS_ROWS // tenants
            found[tenants] = (time.process_time() - begin) * 1000
    bench.add(
        Row(
            f"a segment of {TENANTS_ROWS:,} rows, one of {TENANTS} tenants, all columns",
            f"{found[TENANTS]:.0f} ms CPU",
            "",
            f"{found[1]:.0f} ms where all rows are of one tenant",
            "< 50 ms",
            found[TENANTS] < 50,
        )
    )
