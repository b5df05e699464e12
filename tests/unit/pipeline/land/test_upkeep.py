"""WAL upkeep during landing: it keeps up, its failures lose nothing, and it can be stopped."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from frazil.config import Config
from frazil.errors import StoreUnavailable
from frazil.lake.snapshots import POSITION
from frazil.pipeline import run as pipeline_run
from frazil.pipeline.land import upkeep
from frazil.pipeline.land.lander import Lander, LandStep
from frazil.pipeline.land.upkeep import CleanUpStep, TableWal, WatchStep
from frazil.pipeline.metrics import Metrics
from frazil.pipeline.steps import StepRunner, StepThread
from frazil.position import LandingPosition, StreamPosition, WalPosition, landing_position
from frazil.storage import Entry, Listing, Store
from frazil.storage.local import LocalStore
from frazil.wal import SegmentName, cleanup
from tests.components.process import wait_until
from tests.support.fault.land_wal import STREAMS, assert_landed, write_segments, write_tombstone
from tests.support.lake.commit_faults import move
from tests.support.local_runner import LocalRunner
from tests.support.wal_stores import HandClock, MemoryStore
from tests.unit.lake.upkeep.test_aging import EMPTY

GRACE_SECONDS = 600.0


def config_of(data_dir: Path, **land: Any) -> Config:
    return Config.model_validate(
        {
            "data_dir": data_dir,
            "land": {"wal_grace_seconds": 0, "age_max_seconds": 0, **land},
            "pipeline": {"listen": "127.0.0.1:0"},
        }
    )


def metadata_of(landings: Sequence[tuple[float, WalPosition]]) -> TableMetadata:
    """A table that landed at these seconds since 1970."""
    snapshots = [
        Snapshot(
            snapshot_id=number,
            parent_snapshot_id=number - 1 or None,
            sequence_number=number,
            timestamp_ms=int(at * 1000),
            manifest_list=f"file:///lake/t/metadata/snap-{number}.avro",
            summary=Summary(Operation.APPEND, **{POSITION: LandingPosition(position).to_text()}),
        )
        for number, (at, position) in enumerate(landings, 1)
    ]
    landed = SnapshotRef(snapshot_id=len(snapshots), snapshot_ref_type=SnapshotRefType.TAG)
    return EMPTY.model_copy(update={"snapshots": snapshots, "refs": {"landed": landed}})


def gauge(metrics: Metrics, name: str, table: str = "logs") -> float | None:
    return metrics.registry.get_sample_value(name, {"table": table})


class Turns:
    """Clean-up and watch of logs, each when it is due by a clock that is set."""

    def __init__(
        self,
        config: Config,
        store: Store,
        metadata_of: Callable[[], TableMetadata | None],
        metrics: Metrics,
        clock: HandClock,
    ) -> None:
        wal = TableWal(config, "logs", store, metadata_of, clock=clock, wall_clock=clock)
        self.clean_up, watch = CleanUpStep(wal, metrics), WatchStep(wal)
        self._runner = StepRunner([self.clean_up, watch], metrics)
        self._due = dict.fromkeys(self._runner.threads, 0.0)
        self._clock = clock

    @property
    def problems(self) -> dict[str, str]:
        return self._runner.problems

    def turn(self) -> None:
        for thread, due in self._due.items():
            if self._clock() >= due:
                self._due[thread] = thread.turn() + self._clock()


class Busy(MemoryStore):
    """A bucket that is only counted: each stream has the sequences from its first to its last. Requests take
    time, in which others write.
    """

    def __init__(self, clock: HandClock) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] = lambda: None
        self.streams: dict[str, list[int]] = {}
        self._clock = clock

    @property
    def count(self) -> int:
        return sum(last - first for first, last in self.streams.values())

    def children(self, prefix: str) -> Listing:
        self._clock.seconds += 0.02
        return Listing(tuple(sorted(self.streams)) if prefix == "logs/" else (), ())

    def list(self, prefix: str, after: str | None = None) -> Iterator[Entry]:
        self._clock.seconds += 0.02
        name = prefix.split("/")[1]
        first, last = self.streams[name]
        begin = first if after is None else max(first, int(after[-28:-8]) + 1)
        for number in range(begin, last):
            if number % 1000 == 999:
                self._clock.seconds += 0.02
            yield Entry(f"{prefix}{number:020d}.parquet", 5000, 0.0)

    def delete_all(self, paths: Sequence[str]) -> None:
        self._clock.seconds += 0.1 * -(-len(paths) // 1000)
        for path in paths:
            self.streams[path.split("/")[1]][0] += 1
        self.meanwhile()


@pytest.mark.parametrize(
    ("seconds", "grace_seconds"),
    [
        (90, 5.0),
        pytest.param(
            1500, GRACE_SECONDS, marks=[pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(1800)]
        ),
    ],
)
def test_the_backlog_at_5000_segments_per_second_is_bounded_by_the_grace_time(
    tmp_path: Path, seconds: int, grace_seconds: float
) -> None:
    rate, clock, metrics = 5000, HandClock(), Metrics()
    store = Busy(clock)
    names = [f"20261115T0818{number:05d}-9f86d081884c7d65" for number in range(50)]
    landings: list[tuple[float, WalPosition]] = []
    turns = Turns(
        config_of(tmp_path, wal_grace_seconds=grace_seconds),
        store,
        lambda: metadata_of(landings),
        metrics,
        clock,
    )
    begin, written, most = clock.seconds, -1.0, 0

    def write_and_land() -> None:
        nonlocal written, most
        if clock.seconds - begin < written + 1:
            return
        for name in names:
            store.streams.setdefault(name, [0, 0])[1] += int(
                (clock.seconds - begin - max(written, 0)) * rate / 50
            )
        written = clock.seconds - begin
        if not landings or clock.seconds >= landings[-1][0] + 5:
            landed = {name: StreamPosition(last) for name, (_, last) in store.streams.items()}
            landings[:] = [*landings[-200:], (clock.seconds, WalPosition(landed))]
        most = max(most, store.count)

    store.meanwhile = write_and_land
    while clock.seconds < begin + seconds:
        write_and_land()
        turns.turn()
        clock.seconds += 5
    store.meanwhile = lambda: None
    clock.seconds += 5
    write_and_land()
    clock.seconds += 60
    turns.turn()
    assert turns.problems == {}
    assert most <= rate * (grace_seconds + min(30, grace_seconds) + 20)  # a round, a pass and a landing
    assert most < rate * seconds / 2
    assert gauge(metrics, "frazil_wal_landed_segments") == pytest.approx(store.count, rel=0.2)


class Whole:
    """The pipeline with its steps, of which tests run rounds."""

    def __init__(self, data_dir: Path) -> None:
        self.pipeline = pipeline_run.Pipeline(config_of(data_dir), threading.Event())
        self.pipeline._make_runner = lambda *_: LocalRunner()
        steps = self.pipeline._steps()
        self.runner = self.pipeline._runner = StepRunner(steps, self.pipeline._metrics)
        self.pipeline._problem = ""
        logs = [thread for thread in self.runner.threads if thread.step.table == "logs"]
        self.landing, self.clean_up, self.watch = logs

    @property
    def lander(self) -> Lander:
        assert isinstance(self.landing.step, LandStep)
        return self.landing.step.lander

    def land(self) -> bool:
        """Whether a batch landed, or more may wait."""
        return self.landing.turn() == 0.0 and not self.landing.problem

    def problems(self) -> dict[str, str]:
        return self.pipeline._problems()

    def close(self) -> None:
        self.runner.stop()
        self.pipeline._close_catalog()
        self.pipeline._health.start()
        self.pipeline._health.stop()


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Whole]:
    with contextlib.closing(Whole(tmp_path)) as made:
        yield made


def test_segments_that_have_landed_are_cleaned_up_also_while_landing_fails(
    tmp_path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk they may be the room that landing lacks."""
    content = write_segments(tmp_path, STREAMS[0], [0])
    assert whole.lander.step(now_due=True) == "landed"

    def full(**_: Any) -> str:
        raise StoreUnavailable("no space left on device")

    monkeypatch.setattr(whole.lander, "step", full)
    assert not whole.land()
    assert whole.problems() == {"logs": "no space left on device"}
    whole.clean_up.start()
    store = LocalStore(tmp_path / "wal")
    assert wait_until(lambda: not list(store.list("logs/")), seconds_max=60)
    assert_landed(tmp_path, content)


def test_landing_waits_for_no_disk_and_no_deletion(
    tmp_path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    called_by: list[threading.Thread] = []

    def sync() -> None:
        called_by.append(threading.current_thread())
        begun.set()
        go_on.wait()

    monkeypatch.setattr(upkeep.os, "sync", sync)
    content = write_segments(tmp_path, STREAMS[0], [0])
    assert whole.land()
    whole.clean_up.start()
    assert begun.wait(60)
    content += write_segments(tmp_path, STREAMS[0], [1])
    assert whole.land()
    go_on.set()
    assert_landed(tmp_path, content)
    assert {thread.name for thread in called_by} == {"WAL clean-up logs"}


def test_streams_of_which_nothing_is_left_leave_the_position_with_a_later_landing(
    tmp_path: Path, whole: Whole
) -> None:
    content = write_segments(tmp_path, STREAMS[0], [0])
    write_tombstone(tmp_path, STREAMS[0], 1)
    assert whole.land()
    whole.clean_up.turn()
    content += write_segments(tmp_path, STREAMS[1], [0])
    whole.land()  # lands, and takes over what is gone
    content += write_segments(tmp_path, STREAMS[1], [1])
    whole.land()
    position = landing_position(whole.lander.checkpoint().position).wal
    assert set(position.streams) == {STREAMS[1]}
    assert position.left.streams == 1
    assert_landed(tmp_path, content)


def test_a_missing_segment_stops_the_table_in_health_and_metrics_while_its_other_streams_land(
    tmp_path: Path, whole: Whole
) -> None:
    metrics = whole.pipeline._metrics
    content = write_segments(tmp_path, STREAMS[0], [0])
    write_segments(tmp_path, STREAMS[1], range(4))
    missing = LocalStore(tmp_path / "wal").root / SegmentName("logs", STREAMS[1], 1).path
    away = missing.rename(tmp_path / "away")
    assert whole.land()
    for _ in range(3):
        assert whole.problems() == {}
        whole.watch.turn()
    assert "restore it" in whole.problems()["logs"]
    assert gauge(metrics, "frazil_land_stopped") == 1
    content += write_segments(tmp_path, STREAMS[0], [1])
    assert whole.land()
    assert gauge(metrics, "frazil_land_stopped") == 1
    away.rename(missing)
    assert whole.land()
    whole.watch.turn()
    assert whole.problems() == {}
    assert gauge(metrics, "frazil_land_stopped") == 0


def test_nothing_is_deleted_for_a_table_that_was_rolled_back(tmp_path: Path, whole: Whole) -> None:
    """Its segments may be needed: one remedy is to land them again."""
    content = write_segments(tmp_path, STREAMS[0], [0])
    assert whole.land()
    table = whole.lander.checkpoint().table
    landed = table.current_snapshot()
    assert landed is not None
    move(table, "main", landed.parent_snapshot_id or 0)
    whole.clean_up.turn()
    assert "rolled back" in whole.problems()["logs"]
    assert list(LocalStore(tmp_path / "wal").list("logs/"))
    move(table, "main", landed.snapshot_id)
    assert_landed(tmp_path, content)


class Failing(MemoryStore):
    """The n-th call fails. Deletes of many stop halfway. `check` is called after each deletion."""

    def __init__(self, fail_at: int, check: Callable[[MemoryStore], None]) -> None:
        super().__init__()
        self._check = check
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

    def children(self, prefix: str) -> Listing:
        self._call()
        return super().children(prefix)

    def delete(self, path: str) -> None:
        self._call()
        super().delete(path)
        self._check(self)

    def remove_folder(self, path: str) -> None:
        self._call()


def test_any_failed_call_deletes_nothing_unlanded_and_tombstones_last_and_the_rest_is_done_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "SEGMENTS_AT_ONCE_MAX", 2)
    monkeypatch.setattr(upkeep.os, "sync", lambda: None)
    closed, live, new = STREAMS
    position = WalPosition({closed: StreamPosition(5, closed=True), live: StreamPosition(3)})

    def check(store: MemoryStore) -> None:
        left = there(store, closed)
        assert left == [] or left[-1] == 4
        assert there(store, live)[-2:] == [3, 4]
        assert there(store, new) == [0, 1, 2, 3, 4]

    for fail_at in itertools.count(1):
        store, clock, metrics = Failing(fail_at, check), HandClock(), Metrics()
        for stream in STREAMS:
            for sequence in range(5):
                store.create(SegmentName("logs", stream, sequence).path, b"x")
        metadata = metadata_of([(clock.seconds, position)])
        turns = Turns(config_of(tmp_path), store, lambda found=metadata: found, metrics, clock)  # type: ignore[misc]
        store.is_armed = True
        gone: frozenset[str] = frozenset()
        while not gone or turns.problems:
            turns.turn()
            check(store)
            gone |= turns.clean_up.take_deleted_streams()
            assert not gone or not there(store, closed)
            clock.seconds += 60
        assert (there(store, closed), there(store, live), gone) == ([], [3, 4], {closed})
        errors = metrics.registry.get_sample_value("frazil_land_errors_total", {"table": "logs"})
        assert errors == store.has_failed
        if not store.has_failed:
            break
    assert fail_at >= 30


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
    metadata = metadata_of([(0.0, WalPosition({STREAMS[0]: StreamPosition(10)}))])
    metrics = Metrics()
    step = CleanUpStep(TableWal(config_of(tmp_path), "logs", store, lambda: metadata), metrics)
    thread = StepThread(step, metrics)
    deleting = threading.Event()

    def stop_meanwhile(path: str) -> None:
        thread.cancel()
        deleting.set()

    store.before_delete = stop_meanwhile
    thread.start()
    assert deleting.wait(60)
    assert thread.join(60)
    assert there(store, STREAMS[0]) == list(range(2, 10))
    assert thread.problem == ""


def test_gauges_show_how_many_landed_segments_are_left_and_how_long_they_are_overdue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep.os, "sync", lambda: None)
    clock, metrics, store = HandClock(), Metrics(), MemoryStore()
    monkeypatch.setattr("frazil.pipeline.metrics.time.time", clock)
    for sequence in range(3, 12):  # an earlier pipeline has deleted some
        store.create(SegmentName("logs", STREAMS[0], sequence).path, b"x")

    def at(sequence: int) -> WalPosition:
        return WalPosition({STREAMS[0]: StreamPosition(sequence)})

    begin = clock.seconds
    landings = [(begin - 1000, at(5)), (begin - 100, at(8))]
    turns = Turns(
        config_of(tmp_path, wal_grace_seconds=GRACE_SECONDS),
        store,
        lambda: metadata_of(landings),
        metrics,
        clock,
    )

    def gauges() -> tuple[float | None, float | None]:
        return (
            gauge(metrics, "frazil_wal_landed_segments"),
            gauge(metrics, "frazil_wal_cleanup_lag_seconds"),
        )

    def broken(path: str) -> None:
        raise StoreUnavailable("no answer")

    store.before_delete = broken
    turns.turn()
    assert gauges() == (5, 0)
    clock.seconds += 40
    assert gauges() == (5, 40)  # grows also while nothing is tried
    store.before_delete = lambda path: None
    turns.turn()
    assert gauges() == (3, 0)
    clock.seconds = begin + 700
    assert gauges() == (3, 200)  # the second landing's segments were due 500 s after the begin
    turns.turn()
    assert gauges() == (0, 0)
    metrics.stand_down()
    assert gauges() == (None, None)
