"""Two `frazil up` with the same traffic at the same time, one of them without derivation: the CPU of
derivation, the time from landing to derived, and how much later rows land because of derivation.

Commit times come from the snapshots of the tables, after the run.
"""

from __future__ import annotations

import contextlib
import http.client
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from tests.components.process import dies_with_parent, end, wait_until

from bench.app_traffic import AppMetrics, AppSpans
from bench.applogs import PODS, RECORDS_PER_REQUEST
from bench.backlog import AppLogs, Source
from bench.load import PATHS
from bench.table import Bench, Row
from bench.up import CpuByRole, Up, running_up
from frazil.config import load_config
from frazil.config.derive import CARDINALITY_TABLE
from frazil.lake.catalog import open_catalog
from frazil.lake.snapshots import commit_times, position_text
from frazil.position import source_position
from frazil.tables import SIGNALS, derived_specs

SECONDS, QUICK_SECONDS = 360.0, 40.0
QUICK_SECTIONS = {"land": {"age_max_seconds": 5}}
QUICK_INTERVAL_SECONDS = 5
RECORDS_PER_SECOND = 2_000
"""Of each signal, in requests of 512 or 1,000 records."""
CORE_SHARE_MAX = 0.05
DERIVED_SECONDS_MAX = (10.0, 75.0)
LATER_SECONDS_MAX = 2.0
_WARM_SECONDS_MAX = 300.0
_ENDED_SECONDS_MAX = 90.0
_RETRY_SECONDS = 0.5
Doubles = npt.NDArray[np.float64]


def derive_demo(bench: Bench) -> None:
    """With what `frazil demo` sends by default."""
    with tempfile.TemporaryDirectory(prefix="frazil-bench-derive-demo-") as place:
        found = _both(bench, Path(place), _demo)
    share = found.extra_cpu_seconds / found.seconds
    bench.add(
        Row(
            "derivation at the rate of `frazil demo`",
            "",
            f"{found.seconds:.0f} s",
            f"{share:.1%} of a core: {found.cpu_text}; {found.work_text}",
            f"≤ {CORE_SHARE_MAX:.0%} of a core",
            None if bench.quick else share <= CORE_SHARE_MAX,
        )
    )
    _add_lags(bench, found, "the rate of `frazil demo`")


def derive_steady(bench: Bench) -> None:
    """With a shop's logs, spans and metrics at a steady rate."""
    with tempfile.TemporaryDirectory(prefix="frazil-bench-derive-steady-") as place:
        found = _both(bench, Path(place), _steady)
    points = f"{_metrics_per_second():,.0f} points"
    rate = f"{RECORDS_PER_SECOND:,} logs, {RECORDS_PER_SECOND:,} spans and {points} per second"
    bench.add(
        Row(
            f"derivation of {rate}",
            "",
            f"{found.seconds:.0f} s",
            f"{found.extra_cpu_seconds / found.seconds:.0%} of a core: {found.cpu_text}; {found.work_text}",
        )
    )
    _add_lags(bench, found, rate)


@dataclass(frozen=True)
class _Found:
    seconds: float
    cpu_seconds: tuple[dict[str, float], dict[str, float]]
    """By role, with and without derivation."""
    worker_seconds: float
    rows: int
    """Landed with derivation."""
    rounds: int
    landings: tuple[int, int]
    derived_after: Doubles
    """Seconds from the landing of each row to its commit in each derived table."""
    landed_after: tuple[Doubles, Doubles]
    """Seconds from receiving each row to its landing, with and without derivation."""

    @property
    def extra_cpu_seconds(self) -> float:
        return sum(self.cpu_seconds[0].values()) - sum(self.cpu_seconds[1].values())

    @property
    def cpu_text(self) -> str:
        totals = [
            f"{sum(roles.values()):.1f} s ("
            + ", ".join(f"{name} {seconds:.1f}" for name, seconds in sorted(roles.items()) if seconds >= 0.05)
            + ")"
            for roles in self.cpu_seconds
        ]
        return f"all processes of `frazil up` used {totals[0]} with derivation and {totals[1]} without"

    @property
    def work_text(self) -> str:
        return (
            f"{self.rounds} rounds with {self.worker_seconds:.1f} CPU-seconds of Spark's Python workers; "
            f"{self.landings[0]} and {self.landings[1]} landings, {self.rows:,} rows"
        )


def _both(
    bench: Bench, folder: Path, sending: Callable[[Sequence[Up]], contextlib.AbstractContextManager[None]]
) -> _Found:
    sections = QUICK_SECTIONS if bench.quick else {}
    interval = {"interval_seconds": QUICK_INTERVAL_SECONDS} if bench.quick else {}
    for name in ("with", "without"):
        (folder / name).mkdir()
    with (
        running_up(folder / "with", **sections, derive=interval) as derived,
        running_up(folder / "without", **sections, derive={"enabled": False}) as plain,
    ):
        with sending((derived, plain)):
            warm = wait_until(lambda: _has_begun(derived, plain), seconds_max=_WARM_SECONDS_MAX)
            assert warm, (folder / "with" / "up.log").read_text()[-2000:]
            begin, rounds, worker = time.time(), _rounds(derived), _worker_seconds(derived)
            with CpuByRole(derived) as of_derived, CpuByRole(plain) as of_plain:
                time.sleep(QUICK_SECONDS if bench.quick else SECONDS)
            stop = time.time()
            cpu = dict(of_derived.look()), dict(of_plain.look())
            rounds, worker = _rounds(derived) - rounds, _worker_seconds(derived) - worker
        with _catalog(derived) as one, _catalog(plain) as other:
            landings = [_landings(catalog, begin, stop) for catalog in (one, other)]
            # The last landings in the time that is measured are derived after it.
            wait_until(lambda: _is_derived(one, landings[0]), seconds_max=_ENDED_SECONDS_MAX)
            return _Found(
                stop - begin,
                cpu,
                worker,
                sum(each.rows for each in landings[0]),
                int(rounds),
                (len(landings[0]), len(landings[1])),
                _derived_after(one, landings[0]),
                (
                    np.concatenate([each.lags for each in landings[0]]),
                    np.concatenate([each.lags for each in landings[1]]),
                ),
            )


def _has_begun(derived: Up, plain: Up) -> bool:
    """Whether both have landed and derived once: the JVMs have started, the tables exist."""
    has_derived = all(_count(derived, "derive_seconds_count", "source", signal) >= 1 for signal in SIGNALS)
    return has_derived and all(
        _count(plain, "land_commits_total", "table", signal) >= 1 for signal in SIGNALS
    )


def _count(up: Up, name: str, label: str, value: str) -> float:
    return up.metric("pipeline", f'frazil_{name}{{{label}="{value}"}}')


def _rounds(up: Up) -> float:
    return sum(_count(up, "derive_seconds_count", "source", signal) for signal in SIGNALS)


def _worker_seconds(up: Up) -> float:
    return sum(_count(up, "derive_worker_cpu_seconds_total", "source", signal) for signal in SIGNALS)


@contextlib.contextmanager
def _catalog(up: Up) -> Iterator[Catalog]:
    with contextlib.closing(open_catalog(load_config(up.config))) as catalog:
        yield catalog


@dataclass(frozen=True)
class _Landing:
    signal: str
    sequence: int
    committed: float
    """In seconds since 1970."""
    lags: Doubles
    """Seconds from receiving each row to the commit."""

    @property
    def rows(self) -> int:
        return len(self.lags)


def _landings(catalog: Catalog, begin: float, stop: float) -> list[_Landing]:
    """Returns the landings that were committed in that time, with the rows that were received in it: earlier
    ones may have waited for the start of Spark.
    """
    found = []
    for signal in SIGNALS:
        table = _table(catalog, signal)
        times = commit_times(table.metadata, int(time.time() * 1000))
        for snapshot in table.metadata.snapshots:
            is_landing = snapshot.summary is not None and snapshot.summary.operation == Operation.APPEND
            committed = times[snapshot.snapshot_id] / 1000
            if is_landing and position_text(snapshot) is not None and begin <= committed < stop:
                received = _received(table, snapshot)
                lags = committed - received[received >= begin]
                if len(lags):
                    found.append(_Landing(signal, snapshot.sequence_number or 0, committed, lags))
    return found


def _received(table: Table, snapshot: Snapshot) -> Doubles:
    """Returns when each of the rows was received that the snapshot added, in seconds since 1970."""
    paths = [
        entry.data_file.file_path
        for manifest in snapshot.manifests(table.io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.status == ManifestEntryStatus.ADDED
    ]
    columns = [
        pq.read_table(path.removeprefix("file://"), columns=["received_time"]).column(0) for path in paths
    ]
    micros = [column.cast(pa.int64()).to_numpy() for column in columns]
    return np.concatenate([np.zeros(0), *micros]) / 1e6


def _is_derived(catalog: Catalog, landings: Sequence[_Landing]) -> bool:
    return bool(np.isfinite(_derived_after(catalog, landings)).all())


def _derived_after(catalog: Catalog, landings: Sequence[_Landing]) -> Doubles:
    """Returns infinity for rows that are not derived yet."""
    lags: list[Doubles] = []
    for spec in derived_specs():
        assert spec.derived is not None
        if spec.name == CARDINALITY_TABLE:  # off
            continue
        table = _table(catalog, spec.name)
        times = commit_times(table.metadata, int(time.time() * 1000))
        commits = [
            (source_position(text).sequence, times[snapshot.snapshot_id] / 1000)
            for snapshot in table.metadata.snapshots
            if (text := position_text(snapshot)) is not None
        ]
        for landing in (each for each in landings if each.signal == spec.derived.source):
            first = min((at for sequence, at in commits if sequence >= landing.sequence), default=np.inf)
            lags.append(np.full(landing.rows, first - landing.committed))
    return np.concatenate(lags)


def _table(catalog: Catalog, name: str) -> Table:
    (namespace,) = catalog.list_namespaces()
    return catalog.load_table((*namespace, name))


def _add_lags(bench: Bench, found: _Found, rate: str) -> None:
    p50, p99 = np.percentile(found.derived_after, (50, 99))
    bench.add(
        Row(
            f"from landing to derived, at {rate}",
            "",
            f"{found.seconds:.0f} s",
            f"p50 {p50:.1f} / p99 {p99:.1f} s, of each row in each derived table; {found.rounds} rounds",
            f"p50 ≤ {DERIVED_SECONDS_MAX[0]:g}, p99 ≤ {DERIVED_SECONDS_MAX[1]:g} s",
            bool(p50 <= DERIVED_SECONDS_MAX[0] and p99 <= DERIVED_SECONDS_MAX[1]),
        )
    )
    (with50, with99), (without50, without99) = (np.percentile(lags, (50, 99)) for lags in found.landed_after)
    later = max(with50 - without50, with99 - without99)
    bench.add(
        Row(
            f"from receiving to landed, at {rate}",
            "",
            f"{found.seconds:.0f} s",
            f"p50 {with50:.1f} / p99 {with99:.1f} s with derivation, "
            f"{without50:.1f} / {without99:.1f} s without; of each row",
            f"≤ {LATER_SECONDS_MAX:g} s later with derivation",
            bool(later <= LATER_SECONDS_MAX),
        )
    )


@contextlib.contextmanager
def _demo(ups: Sequence[Up]) -> Iterator[None]:
    """The same content for each: the demo's seed is fixed."""
    with contextlib.ExitStack() as stack:
        for up in ups:
            words = [sys.executable, "-m", "frazil", "demo", "--protocol", "http", "--seed", "1"]
            words += ["--endpoint", f"http://127.0.0.1:{up.ports['http']}"]
            log = stack.enter_context((up.config.parent / "demo.log").open("wb"))
            process = subprocess.Popen(dies_with_parent(words), stdout=log, stderr=log)
            stack.callback(end, process)
        yield


def _metrics_per_second() -> float:
    one = AppMetrics()
    return one.pods * one.records_per_request / one.interval_seconds


@contextlib.contextmanager
def _steady(ups: Sequence[Up]) -> Iterator[None]:
    now = time.time_ns()
    turn = PODS * RECORDS_PER_REQUEST * 10**9 // RECORDS_PER_SECOND
    sources: list[tuple[Source, float]] = [
        (AppLogs(now - turn, turn), RECORDS_PER_SECOND / RECORDS_PER_REQUEST),
        (AppSpans(now, RECORDS_PER_SECOND), RECORDS_PER_SECOND / AppSpans.records_per_request),
        (AppMetrics(now), _metrics_per_second() / AppMetrics.records_per_request),
    ]
    stop = threading.Event()
    ports = [up.ports["http"] for up in ups]
    threads = [
        threading.Thread(target=_send, args=(source, requests_per_second, ports, stop))
        for source, requests_per_second in sources
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _send(source: Source, requests_per_second: float, ports: Sequence[int], stop: threading.Event) -> None:
    """Sends each request to all ports."""
    connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=60) for port in ports]
    begin, seed = time.monotonic(), 0
    while not stop.wait(max(0.0, begin + seed / requests_per_second - time.monotonic())):
        body = source.body(seed)
        for connection in connections:
            while not _is_accepted(connection, PATHS[source.signal], body) and not stop.wait(_RETRY_SECONDS):
                pass
        seed += 1


def _is_accepted(connection: http.client.HTTPConnection, path: str, body: bytes) -> bool:
    connection.request("POST", path, body, {"content-type": "application/x-protobuf"})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status in (429, 503):
        return False
    assert answer.status == 200, text
    return True
