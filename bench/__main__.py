"""`python -m bench [--quick]`: the speed tables of the README.

Speed is stated as records per CPU-second of all processes together (of the receiver; for landing, of Spark's
JVM, its Python workers and the driver), since machines differ and are noisy; latency, wall time and memory
are of the machine that ran it. Queries run through the API and, in the same run, in plain DuckDB.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from tests.components.proxy import FaultyProxy
from tests.components.s3 import moto_server
from tests.support.receiver import Receiver, running_receiver

from bench.load import Load
from bench.measure import Measured, measure
from bench.table import MIB, Bench, Row
from frazil.config import LogConfig
from frazil.log import configure_logging

PUT_DOLLARS = 0.005 / 1000
"""The public price of one PUT in S3 Standard, us-east-1."""
WARM_UP_SEED = 10**6
RECEIVING = ("throughput", "latency", "small", "large", "growth")
LANDING = (
    *("land", "backlog", "commits", "cluster", "idle", "whole"),
    *("derive", "derive_functions", "derive_tenants", "derive_demo", "derive_steady"),
)
ASKING = ("query", "queries", "freshness", "tail", "metric_steps")
MAINTAINING = ("maintain", "compact", "day")
LOOKING = ("pages",)
ATTACKED = ("hostile",)


@contextmanager
def warm_receiver(settings: dict[str, Any] | None = None, *, signal: str = "logs") -> Iterator[Receiver]:
    with (
        tempfile.TemporaryDirectory(prefix="frazil-bench-") as folder,
        running_receiver(Path(folder), settings or {}) as receiver,
    ):
        for transport in ("http", "grpc"):
            warm_up = {"transport": transport, "requests": 8, "first_seed": WARM_UP_SEED}
            measure(receiver, _load(receiver, signal=signal, **warm_up))
        yield receiver


def _load(receiver: Receiver, **settings: Any) -> Load:
    return Load(receiver.http_port, receiver.grpc_port, **settings)


def _speed(measured: Measured) -> str:
    return f"{measured.records_per_cpu_second:,.0f}"


def _latency(measured: Measured) -> str:
    return f"{measured.p50_ms:.0f} / {measured.p99_ms:.0f} ms"


def throughput(bench: Bench, *, only_logs: bool = False) -> float:
    """Batches of 1,000, as fast as 16 clients go. Returns the requests per second of logs over HTTP."""
    cases: list[tuple[str, dict[str, Any], int]] = [
        ("logs, HTTP", {}, 100_000),
        ("logs, gRPC", {"transport": "grpc"}, 0),
        ("logs, HTTP, gzip", {"encoding": "gzip"}, 0),
        ("logs, gRPC, gzip", {"transport": "grpc", "encoding": "gzip"}, 0),
        ("logs, HTTP, JSON", {"content": "json", "requests": bench.count(120)}, 0),
        ("spans, HTTP", {"signal": "spans"}, 60_000),
        ("metrics, HTTP", {"signal": "metrics", "requests": bench.count(200)}, 0),
    ]
    reached, base = 0.0, 0.0
    if only_logs:
        cases = cases[:1]
    elif bench.quick:
        cases = [case for case in cases if case[0] not in ("logs, gRPC, gzip", "logs, HTTP, JSON")]
    for name, settings, promised in cases:
        with warm_receiver(signal=settings.get("signal", "logs")) as receiver:
            got = measure(
                receiver, _load(receiver, **{"requests": bench.count(400), "clients": 16} | settings)
            )
        speed = got.records_per_cpu_second
        target, met = (f"≥ {promised:,}", speed >= promised) if promised else ("", None)
        if name == "logs, HTTP":
            reached, base = got.records_per_second / 1000, speed
        elif name == "logs, gRPC":
            target, met = "within 30 % of HTTP", speed >= 0.7 * base
        elif name == "logs, HTTP, gzip":
            target, met = "within 40 %", speed >= 0.6 * base
        bench.add(
            Row(name, _speed(got), _latency(got), f"{got.records_per_second:,.0f} records/s", target, met)
        )
    return reached


def latency(bench: Bench, reached: float) -> None:
    with warm_receiver() as receiver:
        half = measure(
            receiver, _load(receiver, requests=bench.count(int(reached * 10)), rate=reached / 2, clients=32)
        )
        met = half.p50_ms < 100 and half.p99_ms < 400
        bench.add(
            Row(
                "logs, HTTP, half of the highest rate",
                _speed(half),
                _latency(half),
                f"{reached * 500:,.0f} records/s",
                "p50 < 100, p99 < 400 ms",
                met,
            )
        )
        ten = measure(
            receiver, _load(receiver, requests=bench.count(200), rate=10.0, clients=8, first_seed=5000)
        )
        bench.add(
            Row("logs, HTTP, 10 requests/s", _speed(ten), _latency(ten), "", "p50 < 70 ms", ten.p50_ms < 70)
        )


def small_requests(bench: Bench) -> None:
    for transport in ("http",) if bench.quick else ("http", "grpc"):
        with warm_receiver() as receiver:
            got = measure(
                receiver,
                _load(receiver, transport=transport, requests=bench.count(12_000), records=10, clients=64),
            )
        requests_per_second = got.records_per_second / 10
        bench.add(
            Row(
                f"10 logs per request, 64 clients, {'HTTP' if transport == 'http' else 'gRPC'}",
                _speed(got),
                _latency(got),
                f"{requests_per_second:,.0f} requests/s, {got.segments:.0f} segments",
            )
        )


def large_requests(bench: Bench) -> None:
    """Eight clients with 60 MiB requests: memory of all receiver processes, shared pages left out."""
    for transport in ("http", "grpc"):
        with warm_receiver() as receiver:
            load = _load(receiver, transport=transport, requests=8, records=210_000, clients=8)
            got = measure(receiver, load, watch_memory=True)
        memory = got.memory_bytes_max / 1e6
        size = got.outcome.bytes / 8 / MIB
        bench.add(
            Row(
                f"8 clients × {size:.0f} MiB, {'HTTP' if transport == 'http' else 'gRPC'}",
                _speed(got),
                _latency(got),
                f"{memory:.0f} MB at most, asked to retry {got.outcome.retried} times, "
                f"{got.outcome.failed} failed",
                "< 700 MB, none failed",
                memory < 700 and got.outcome.failed == 0,
            )
        )


def growth(bench: Bench) -> None:
    """1, 2 and 4 workers, 16 clients each, on local disk and on one S3 server with 50 ms latency."""
    with tempfile.TemporaryDirectory(prefix="frazil-bench-s3-") as folder:
        place = Path(folder)
        with (
            moto_server(place / "s3") as s3,
            FaultyProxy(s3.host, s3.port, folder=place / "proxy", latency_seconds=0.05) as proxy,
        ):
            s3.make_bucket("frazil-bench")
            near = s3.through(proxy)
            remote = {
                "wal": {
                    "type": "s3",
                    "s3": {
                        "bucket": "frazil-bench",
                        "endpoint": near.endpoint,
                        "allow_http": True,
                        "access_key_id": s3.access_key,
                        "secret_access_key": s3.secret_key,
                    },
                }
            }
            for store, settings in (("local", {}), ("S3 + 50 ms", remote)):
                speeds = [_grown(bench, store, settings, workers) for workers in (1, 2, 4)]
                spread = (max(speeds) - min(speeds)) / max(speeds)
                bench.add(
                    Row(
                        f"spread over workers, {store}",
                        f"{spread:.0%}",
                        "",
                        "",
                        "within 15 %",
                        spread <= 0.15,
                    )
                )


def _grown(bench: Bench, store: str, settings: dict[str, Any], workers: int) -> float:
    with warm_receiver({**settings, "receive": {"workers": workers}}) as receiver:
        load = _load(receiver, requests=bench.count(240 * workers), clients=16 * workers)
        got = measure(receiver, load)
    puts = got.segments / got.records * 1e6
    bench.add(
        Row(
            f"{workers} worker{'s' if workers > 1 else ''}, {store}",
            _speed(got),
            _latency(got),
            f"{puts:.0f} segments (PUTs) per million records, ${puts * PUT_DOLLARS:.4f}"
            if store != "local"
            else f"{puts:.0f} segments per million records",
        )
    )
    return got.records_per_cpu_second


def receiving(bench: Bench, only: str | None) -> None:
    if only in (None, "throughput", "latency"):
        latency(bench, throughput(bench, only_logs=only == "latency"))
    if only in (None, "small"):
        small_requests(bench)
    if only == "large" or (only is None and not bench.quick):
        large_requests(bench)
    if only == "growth" or (only is None and not bench.quick):
        growth(bench)


def landing(bench: Bench, only: str | None, records: int | None) -> None:
    """`land` runs all parts; each part can run alone."""
    from bench import cluster, commits, derive, derive_functions, derive_tenants, derive_up, idle, land, whole

    configure_logging(LogConfig(level="warning"))
    everything = only in (None, "land")
    if everything or only == "backlog":
        land.landing(bench, records)
    if everything or only == "commits":
        commits.commits(bench)
    if only == "cluster" or (everything and not bench.quick):
        cluster.cluster(bench)
    if everything or only == "derive":
        derive.derivation(bench, records)
    if everything or only == "derive_functions":
        derive_functions.functions(bench)
    if everything or only == "derive_tenants":
        derive_tenants.tenants(bench)
    if only == "derive_demo" or (everything and not bench.quick):
        derive_up.derive_demo(bench)
    if only == "derive_steady" or (everything and not bench.quick):
        derive_up.derive_steady(bench)
    if everything or only == "idle":
        idle.idle(bench)
    if only == "whole" or (everything and not bench.quick):
        whole.whole(bench)


def asking(bench: Bench, only: str | None) -> None:
    from bench import freshness, metric_steps, queries, tail

    configure_logging(LogConfig(level="warning"))
    if only in (None, "query", "queries"):
        queries.queries(bench)
    if only in (None, "query", "freshness"):
        freshness.freshness(bench)
    if only in (None, "query", "tail"):
        tail.tail(bench)
    if only in (None, "query", "metric_steps"):
        metric_steps.metric_steps(bench)


def maintaining(bench: Bench, compared: Bench, only: str | None) -> None:
    """The cost of maintenance, and the tables before and after it."""
    from bench import compact, day

    configure_logging(LogConfig(level="warning"))
    if only in (None, "maintain", "compact"):
        compact.compaction(bench, compared)
    if only in (None, "maintain", "day"):
        day.day(bench, compared)


def looking(bench: Bench) -> None:
    from bench import pages

    configure_logging(LogConfig(level="warning"))
    pages.pages(bench)


def attacked(bench: Bench) -> None:
    """One tenant's latency while another tenant attacks."""
    from bench.hostile import hostile
    from bench.hostile_queries import hostile_queries

    hostile(bench)
    hostile_queries(bench)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="the most important lines, with a quarter of the work"
    )
    parser.add_argument("--markdown", action="store_true", help="print the tables for the README")
    parser.add_argument("--only", choices=(*RECEIVING, *LANDING, *ASKING, *MAINTAINING, *LOOKING, *ATTACKED))
    parser.add_argument("--land-records", type=int, metavar="N", help="how many rows the backlog has")
    arguments = parser.parse_args()
    console, only = Console(stderr=arguments.markdown, width=180), arguments.only
    received = Bench(console, arguments.quick, "ack p50 / p99")
    landed = Bench(console, arguments.quick, "wall")
    if only in (None, *RECEIVING):
        receiving(received, only)
    if only in (None, *LANDING):
        landing(landed, only, arguments.land_records)
    asked = Bench(console, arguments.quick, "plain DuckDB", "frazil's API")
    if only in (None, *ASKING):
        asking(asked, only)
    maintained = Bench(console, arguments.quick, "wall")
    compared = Bench(console, arguments.quick, "before", "after")
    if only in (None, *MAINTAINING):
        maintaining(maintained, compared, only)
    looked = Bench(console, arguments.quick, "new browser", "first paint")
    if only in (None, *LOOKING):
        looking(looked)
    isolated = Bench(console, arguments.quick, "alone", "p50 / p99 / max of the other tenant")
    if only in (None, *ATTACKED):
        attacked(isolated)
    benches = (received, landed, asked, maintained, compared, looked, isolated)
    tables = [bench for bench in benches if bench.rows]
    for number, bench in enumerate(tables):
        if number and arguments.markdown:
            print()
        bench.show(arguments.markdown)
    return 1 if any(row.met is False for bench in tables for row in bench.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
