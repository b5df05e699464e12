"""Upkeep of the WAL beside landing: it keeps up, it harms nothing when it fails, and it can be stopped."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from frazil.config import Config
from frazil.errors import StoreUnavailable
from frazil.lake.commit import POSITION
from frazil.pipeline import run as pipeline_run
from frazil.pipeline.land import upkeep
from frazil.pipeline.land.upkeep import UpkeepThread
from frazil.pipeline.metrics import Metrics
from frazil.wal import Entry, SegmentName, cleanup
from frazil.wal.local import LocalStore
from frazil.wal.position import Position, StreamPosition
from tests.components.process import wait_until
from tests.fault.land_wal import STREAMS, assert_landed, write_segments, write_tombstone
from tests.run_here import RunHere
from tests.unit.lake.meddling import move
from tests.unit.lake.test_aging import EMPTY
from tests.wal_stores import HandClock, MemoryStore

GRACE_SECONDS = 600.0


def config_of(data_dir: Path, **land: Any) -> Config:
    return Config.model_validate(
        {
            "data_dir": data_dir,
            "land": {"wal_grace_seconds": 0, "age_max_seconds": 0, **land},
            "pipeline": {"listen": "127.0.0.1:0"},
        }
    )


def metadata_of(landings: Sequence[tuple[float, Position]]) -> TableMetadata:
    """A table that landed at these seconds since 1970."""
    snapshots = [
        Snapshot(
            snapshot_id=number,
            parent_snapshot_id=number - 1 or None,
            sequence_number=number,
            timestamp_ms=int(at * 1000),
            manifest_list=f"file:///lake/t/metadata/snap-{number}.avro",
            summary=Summary(Operation.APPEND, **{POSITION: position.to_text()}),
        )
        for number, (at, position) in enumerate(landings, 1)
    ]
    landed = SnapshotRef(snapshot_id=len(snapshots), snapshot_ref_type=SnapshotRefType.TAG)
    return EMPTY.model_copy(update={"snapshots": snapshots, "refs": {"landed": landed}})


def gauge(metrics: Metrics, name: str, table: str = "logs") -> float | None:
    return metrics.registry.get_sample_value(name, {"table": table})


class Busy(MemoryStore):
    """A bucket that is only counted: each stream has the sequences from its first to its last. Requests take
    time.
    """

    def __init__(self, clock: HandClock) -> None:
        super().__init__()
        self.streams: dict[str, list[int]] = {}
        self._clock = clock

    @property
    def count(self) -> int:
        return sum(last - first for first, last in self.streams.values())

    def children(self, prefix: str) -> Sequence[str]:
        self._clock.seconds += 0.02
        return sorted(self.streams) if prefix == "logs/" else []

    def list(self, prefix: str, after: str | None = None) -> Iterator[Entry]:
        self._clock.seconds += 0.02
        name = prefix.split("/")[1]
        first, last = self.streams[name]
        begin = first if after is None else max(first, int(after[-28:-8]) + 1)
        for number in range(begin, last):
            if number % 1000 == 999:
                self._clock.seconds += 0.02
            yield Entry(f"{prefix}{number:020d}.parquet", 5000)

    def delete_all(self, paths: Sequence[str]) -> None:
        self._clock.seconds += 0.1 * -(-len(paths) // 1000)
        for path in paths:
            self.streams[path.split("/")[1]][0] += 1


@pytest.mark.parametrize(
    ("seconds", "grace_seconds"),
    [(90, 5.0), pytest.param(3600, GRACE_SECONDS, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
)
def test_the_backlog_at_5000_segments_a_second_is_bounded_by_the_grace_time(
    tmp_path: Path, seconds: int, grace_seconds: float
) -> None:
    rate, clock, metrics = 5000, HandClock(), Metrics()
    store = Busy(clock)
    names = [f"20261115T0818{number:05d}-9f86d081884c7d65" for number in range(50)]
    landings: list[tuple[float, Position]] = []
    thread = UpkeepThread(
        config_of(tmp_path, wal_grace_seconds=grace_seconds),
        store,
        lambda signal: metadata_of(landings) if signal == "logs" else None,
        metrics,
        clock=clock,
        wall_clock=clock,
    )
    begin, written, most = clock.seconds, 0.0, 0
    while clock.seconds < begin + seconds:
        for name in names:
            store.streams.setdefault(name, [0, 0])[1] += int((clock.seconds - begin - written) * rate / 50)
        written = clock.seconds - begin
        landed = {name: StreamPosition(last) for name, (_, last) in store.streams.items()}
        landings = [*landings[-200:], (clock.seconds, Position(landed))]
        most = max(most, store.count)
        thread.turn()
        clock.seconds += 5
    assert thread.problems == {}
    assert most <= rate * (grace_seconds + min(30, grace_seconds) + 20)  # a round, a pass and a landing
    assert most < rate * seconds / 2
    assert gauge(metrics, "frazil_wal_landed_segments") == pytest.approx(store.count, rel=0.2)


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[pipeline_run.Pipeline]:
    """The pipeline with its tables, but without its loop: tests call `_step`."""
    made = pipeline_run.Pipeline(config_of(tmp_path), threading.Event())
    made._runner = RunHere()
    made._tables, made._problem = made._open(), ""
    try:
        yield made
    finally:
        thread_of(made).stop()
        made._close_catalog()
        made._health.start()
        made._health.stop()


def thread_of(pipeline: pipeline_run.Pipeline) -> UpkeepThread:
    assert pipeline._upkeep is not None
    return pipeline._upkeep


def test_segments_that_have_landed_are_cleaned_up_also_while_landing_fails(
    tmp_path: Path, whole: pipeline_run.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk they may be the room that landing lacks."""
    content = write_segments(tmp_path, STREAMS[0], [0])
    logs, *_ = whole._tables
    assert logs.lander.step(now_due=True) == "landed"

    def full(**_: Any) -> str:
        raise StoreUnavailable("no space left on device")

    monkeypatch.setattr(logs.lander, "step", full)
    assert not whole._step(logs)
    assert whole._problems() == {"logs": "no space left on device"}
    thread_of(whole).start()
    store = LocalStore(tmp_path / "wal")
    assert wait_until(lambda: not list(store.list("logs/")), seconds_max=60)
    assert_landed(tmp_path, content)


def test_landing_waits_for_no_disk_and_no_deletion(
    tmp_path: Path, whole: pipeline_run.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    called_by: list[threading.Thread] = []

    def sync() -> None:
        called_by.append(threading.current_thread())
        begun.set()
        go_on.wait()

    monkeypatch.setattr(upkeep.os, "sync", sync)
    content = write_segments(tmp_path, STREAMS[0], [0])
    logs, *_ = whole._tables
    assert whole._step(logs)
    thread_of(whole).start()
    assert begun.wait(60)
    content += write_segments(tmp_path, STREAMS[0], [1])
    assert whole._step(logs)
    go_on.set()
    assert_landed(tmp_path, content)
    assert {thread.name for thread in called_by} == {"upkeep"}


def test_upkeep_begins_with_the_lease_and_ends_before_it_is_given_back(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    config = config.model_copy(update={"maintain": config.maintain.model_copy(update={"enabled": False})})
    stopping = threading.Event()
    made = pipeline_run.Pipeline(config, stopping)
    assert made._lease.acquire()
    working = threading.Thread(target=made._work)
    working.start()
    upkeep_threads: list[threading.Thread] = []

    def has_begun() -> bool:
        if made._upkeep is not None:
            upkeep_threads[:] = [made._upkeep._thread]
        return any(thread.is_alive() for thread in upkeep_threads)

    try:
        assert wait_until(has_begun, seconds_max=60)
    finally:
        stopping.set()
        working.join(60)
        made._lease.release()
        made._close_catalog()
        made._health.start()
        made._health.stop()
    assert not working.is_alive()
    assert not any(thread.is_alive() for thread in upkeep_threads)
    assert made._upkeep is None


def test_streams_of_which_nothing_is_left_leave_the_position_with_a_later_landing(
    tmp_path: Path, whole: pipeline_run.Pipeline
) -> None:
    content = write_segments(tmp_path, STREAMS[0], [0])
    write_tombstone(tmp_path, STREAMS[0], 1)
    logs, *_ = whole._tables
    assert whole._step(logs)
    thread_of(whole).turn()
    content += write_segments(tmp_path, STREAMS[1], [0])
    whole._step(logs)  # lands, and takes over what is gone
    content += write_segments(tmp_path, STREAMS[1], [1])
    whole._step(logs)
    position = Position.from_text(logs.lander.checkpoint().position)
    assert set(position.streams) == {STREAMS[1]}
    assert position.left.streams == 1
    assert_landed(tmp_path, content)


def test_a_missing_segment_stops_the_table_in_health_and_metrics_while_its_other_streams_land(
    tmp_path: Path, whole: pipeline_run.Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HandClock(0.0)
    thread = thread_of(whole)
    monkeypatch.setattr(thread, "_clock", clock)
    content = write_segments(tmp_path, STREAMS[0], [0])
    write_segments(tmp_path, STREAMS[1], range(4))
    missing = LocalStore(tmp_path / "wal").root / SegmentName("logs", STREAMS[1], 1).path
    away = missing.rename(tmp_path / "away")
    logs, *_ = whole._tables
    assert whole._step(logs)
    for _ in range(3):
        assert thread.problems == {}
        clock.seconds += 60
        thread.turn()
    assert "bring it back" in whole._problems()["logs"]
    assert gauge(whole._metrics, "frazil_land_stopped") == 1
    content += write_segments(tmp_path, STREAMS[0], [1])
    assert whole._step(logs)
    assert gauge(whole._metrics, "frazil_land_stopped") == 1
    away.rename(missing)
    assert whole._step(logs)
    clock.seconds += 60
    thread.turn()
    assert whole._problems() == {}
    assert gauge(whole._metrics, "frazil_land_stopped") == 0


def test_nothing_is_deleted_for_a_table_that_was_rolled_back(
    tmp_path: Path, whole: pipeline_run.Pipeline
) -> None:
    """Its segments may be needed: one remedy is to land them again."""
    content = write_segments(tmp_path, STREAMS[0], [0])
    logs, *_ = whole._tables
    assert whole._step(logs)
    table = logs.lander.checkpoint().table
    landed = table.current_snapshot()
    assert landed is not None
    move(table, "main", landed.parent_snapshot_id or 0)
    thread_of(whole).turn()
    assert "rolled back" in whole._problems()["logs"]
    assert list(LocalStore(tmp_path / "wal").list("logs/"))
    move(table, "main", landed.snapshot_id)
    assert_landed(tmp_path, content)


class Failing(MemoryStore):
    """The n-th call fails. Deletes of many stop halfway."""

    def __init__(self, fail_at: int) -> None:
        super().__init__()
        self._countdown = fail_at
        self.has_failed = False
        self.is_armed = False

    def _call(self) -> None:
        self._countdown -= self.is_armed
        if self._countdown == 0 and not self.has_failed:
            self.has_failed = True
            raise StoreUnavailable("no answer")

    def list(self, prefix: str, after: str | None = None) -> Iterator[Entry]:
        self._call()
        for entry in super().list(prefix, after):
            yield entry
            self._call()

    def children(self, prefix: str) -> Sequence[str]:
        self._call()
        return super().children(prefix)

    def delete(self, path: str) -> None:
        self._call()
        super().delete(path)

    def remove_folder(self, path: str) -> None:
        self._call()


def test_whichever_call_fails_nothing_unlanded_goes_tombstones_go_last_and_the_rest_is_done_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "SEGMENTS_AT_ONCE_MAX", 2)
    monkeypatch.setattr(upkeep, "_BATCHES_PER_TURN", 1)
    monkeypatch.setattr(upkeep.os, "sync", lambda: None)
    closed, live, new = STREAMS
    position = Position({closed: StreamPosition(5, closed=True), live: StreamPosition(3)})
    for fail_at in itertools.count(1):
        store, clock, metrics = Failing(fail_at), HandClock(), Metrics()
        for stream in STREAMS:
            for sequence in range(5):
                store.create(SegmentName("logs", stream, sequence).path, b"x")
        metadata = metadata_of([(clock.seconds, position)])
        thread = UpkeepThread(
            config_of(tmp_path),
            store,
            lambda signal, found=metadata: found if signal == "logs" else None,  # type: ignore[misc]
            metrics,
            clock=clock,
            wall_clock=clock,
        )
        store.is_armed = True
        gone: frozenset[str] = frozenset()
        while not gone or thread.problems:
            thread.turn()
            left = there(store, closed)
            assert left == [] or left[-1] == 4
            assert there(store, live)[-2:] == [3, 4]
            assert there(store, new) == [0, 1, 2, 3, 4]
            gone |= thread.take_gone("logs")
            assert not gone or not left
            clock.seconds += 60
        assert (there(store, closed), there(store, live), gone) == ([], [3, 4], {closed})
        errors = metrics.registry.get_sample_value("frazil_land_errors_total", {"table": "logs"})
        assert errors == store.has_failed
        if not store.has_failed:
            break
    assert fail_at > 30


def there(store: MemoryStore, stream: str) -> list[int]:
    prefix = f"logs/{stream}/"
    return [int(path[-28:-8]) for path in sorted(store.objects) if path.startswith(prefix)]


def test_it_stops_after_the_batch_that_is_being_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "SEGMENTS_AT_ONCE_MAX", 2)
    monkeypatch.setattr(upkeep.os, "sync", lambda: None)
    store = MemoryStore()
    for sequence in range(10):
        store.create(SegmentName("logs", STREAMS[0], sequence).path, b"x")
    metadata = metadata_of([(0.0, Position({STREAMS[0]: StreamPosition(10)}))])
    thread = UpkeepThread(
        config_of(tmp_path), store, lambda signal: metadata if signal == "logs" else None, Metrics()
    )
    deleting = threading.Event()

    def stop_meanwhile(path: str) -> None:
        thread._stopping.set()
        deleting.set()

    store.before_delete = stop_meanwhile
    thread.start()
    assert deleting.wait(60)
    thread.stop()
    assert not thread._thread.is_alive()
    assert there(store, STREAMS[0]) == list(range(2, 10))
    assert thread.problems == {}


def test_a_pipeline_that_was_never_started_or_is_stopped_twice_stops(tmp_path: Path) -> None:
    thread = UpkeepThread(config_of(tmp_path), MemoryStore(), lambda signal: None, Metrics())
    thread.stop()
    thread = UpkeepThread(config_of(tmp_path), MemoryStore(), lambda signal: None, Metrics())
    thread.start()
    thread.stop()
    thread.stop()
    assert not thread._thread.is_alive()


def test_gauges_tell_how_many_landed_segments_are_left_and_how_long_they_are_overdue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep.os, "sync", lambda: None)
    clock, metrics, store = HandClock(), Metrics(), MemoryStore()
    monkeypatch.setattr("frazil.pipeline.metrics.time.time", clock)
    for sequence in range(3, 12):  # an earlier pipeline has deleted some
        store.create(SegmentName("logs", STREAMS[0], sequence).path, b"x")

    def at(sequence: int) -> Position:
        return Position({STREAMS[0]: StreamPosition(sequence)})

    begin = clock.seconds
    landings = [(begin - 1000, at(5)), (begin - 100, at(8))]
    thread = UpkeepThread(
        config_of(tmp_path, wal_grace_seconds=GRACE_SECONDS),
        store,
        lambda signal: metadata_of(landings) if signal == "logs" else None,
        metrics,
        clock=clock,
        wall_clock=clock,
    )

    def gauges() -> tuple[float | None, float | None]:
        return (
            gauge(metrics, "frazil_wal_landed_segments"),
            gauge(metrics, "frazil_wal_cleanup_lag_seconds"),
        )

    def broken(path: str) -> None:
        raise StoreUnavailable("no answer")

    store.before_delete = broken
    thread.turn()
    assert gauges() == (5, 0)
    clock.seconds += 40
    assert gauges() == (5, 40)  # grows also while nothing is tried
    store.before_delete = lambda path: None
    thread.turn()
    assert gauges() == (3, 0)
    clock.seconds = begin + 700
    assert gauges() == (3, 200)  # the second landing's segments were due 500 s after the begin
    thread.turn()
    assert gauges() == (0, 0)
    metrics.stand_down()
    assert gauges() == (None, None)
