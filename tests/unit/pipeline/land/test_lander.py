"""Landing with other processes: segments that vanish, segments that are lost, and what tasks must report."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from frazil.config import Config
from frazil.errors import DataLost, Fenced
from frazil.ledger import balance
from frazil.otlp.decode import Decoder
from frazil.pipeline import run as pipeline_run
from frazil.pipeline.land.lander import LandStep
from frazil.pipeline.land.segments import advance
from frazil.pipeline.land.source import TaskResult
from frazil.pipeline.steps import StepRunner
from frazil.position import StreamPosition, WalPosition, landing_position
from frazil.storage.local import LocalStore
from frazil.wal.names import SegmentName
from frazil.wal.reader import Segment, WalReader
from frazil.wal.segment import Facts, SegmentWriter
from tests.support.fault.land_process import Pipeline
from tests.support.fault.land_wal import (
    STREAMS,
    Content,
    assert_landed,
    segment_bytes,
    table_content,
    write_segments,
)
from tests.support.local_runner import LocalRunner


def pipeline(data_dir: Path, **settings: Any) -> Pipeline:
    land = {"wal_grace_seconds": 0, "stream_idle_seconds": 10, **settings}
    return Pipeline(Config.model_validate({"data_dir": data_dir, "land": land}))


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Pipeline]:
    made = pipeline(tmp_path)
    with contextlib.closing(made.catalog):
        yield made


@pytest.fixture
def theirs(tmp_path: Path, mine: Pipeline) -> Iterator[Pipeline]:
    """Another pipeline on the same data, as if the lease did not hold."""
    made = pipeline(tmp_path)
    with contextlib.closing(made.catalog):
        yield made


def keep_up(pipeline: Pipeline) -> None:
    gone = pipeline.upkeep.round("logs", pipeline.lander.checkpoint().table.metadata)
    pipeline.lander.drop_streams(gone)


def path_of(data_dir: Path, sequence: int, stream: str = STREAMS[0]) -> Path:
    return LocalStore(data_dir / "wal").root / SegmentName("logs", stream, sequence).path


def just_before_tasks(monkeypatch: pytest.MonkeyPatch, once: Any) -> None:
    """Between the listing and the reading."""
    waiting, run_job = [once], LocalRunner.run_job

    def run(self: LocalRunner, *given: Any) -> list[TaskResult]:
        if waiting:
            waiting.pop()()
        return run_job(self, *given)

    monkeypatch.setattr(LocalRunner, "run_job", run)


def test_segments_that_another_lander_landed_and_cleaned_up_meanwhile_are_passed_over(
    tmp_path: Path, mine: Pipeline, theirs: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = write_segments(tmp_path, STREAMS[0], range(3))

    def overtake() -> None:
        assert theirs.land()[0] == "landed"
        keep_up(theirs)
        assert not path_of(tmp_path, 0).exists()

    just_before_tasks(monkeypatch, overtake)
    assert mine.lander.step(now_due=True) == "again"
    content += write_segments(tmp_path, STREAMS[0], [3])
    assert mine.land() == ["landed", "idle"]
    assert_landed(tmp_path, content)


def test_a_lander_that_was_overtaken_after_it_had_read_is_fenced_and_continues(
    tmp_path: Path, mine: Pipeline, theirs: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = write_segments(tmp_path, STREAMS[0], range(3))
    run_job = LocalRunner.run_job

    def run(self: LocalRunner, *given: Any) -> list[TaskResult]:
        results = run_job(self, *given)
        monkeypatch.setattr(LocalRunner, "run_job", run_job)
        theirs.land()
        keep_up(theirs)
        return results

    monkeypatch.setattr(LocalRunner, "run_job", run)
    with pytest.raises(Fenced):
        mine.lander.step(now_due=True)
    mine.lander.reset()
    content += write_segments(tmp_path, STREAMS[0], [3])
    assert mine.land() == ["landed", "idle"]
    assert_landed(tmp_path, content)


def test_an_idle_lander_reads_the_position_that_another_has_landed(
    tmp_path: Path, mine: Pipeline, theirs: Pipeline
) -> None:
    content = write_segments(tmp_path, STREAMS[0], [0])
    assert mine.land() == ["landed", "idle"]
    content += write_segments(tmp_path, STREAMS[0], [1])
    theirs.land()
    keep_up(theirs)
    assert not path_of(tmp_path, 1).exists()
    content += write_segments(tmp_path, STREAMS[0], [2])
    keep_up(mine)
    assert mine.land() == ["landed", "idle"]
    assert_landed(tmp_path, content)


@pytest.mark.parametrize("listed_before", range(4))
def test_a_reader_that_is_overtaken_by_clean_up_finds_segments_gone_and_never_corrupt(
    tmp_path: Path, mine: Pipeline, theirs: Pipeline, listed_before: int
) -> None:
    content = write_segments(tmp_path, STREAMS[0], range(3))
    content += write_segments(tmp_path, STREAMS[1], range(3))
    reader = WalReader(mine.store)
    listing = reader.pending("logs")
    names = [next(listing).name for _ in range(listed_before)]
    theirs.land()
    keep_up(theirs)
    names += [segment.name for segment in listing]
    for name in names:
        with pytest.raises(FileNotFoundError):
            reader.facts(name)
    assert list(reader.pending("logs", landing_position(mine.lander.checkpoint().position).wal)) == []
    assert_landed(tmp_path, content)


def test_segments_that_are_listed_but_never_there_are_lost_data_after_some_rounds(
    tmp_path: Path, mine: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = write_segments(tmp_path, STREAMS[0], range(2))
    hidden, run_job = tmp_path / "hidden", LocalRunner.run_job

    def hide() -> None:
        path_of(tmp_path, 1).rename(hidden)

    def hiding(self: LocalRunner, *given: Any) -> list[TaskResult]:
        hide()
        try:
            return run_job(self, *given)
        finally:
            hidden.rename(path_of(tmp_path, 1))

    with monkeypatch.context() as lossy:
        lossy.setattr(LocalRunner, "run_job", hiding)
        assert mine.lander.step(now_due=True) == "again"
        assert mine.lander.step(now_due=True) == "again"
        for _ in range(2):
            with pytest.raises(DataLost, match=r"1 segments were deleted.*00001\.parquet.*restore them"):
                mine.lander.step(now_due=True)
    assert table_content(tmp_path) == Content()
    assert mine.land() == ["landed", "idle"]
    assert_landed(tmp_path, content)


def test_a_segment_that_is_missing_before_others_is_lost_data_and_its_stream_is_not_closed_over_it(
    tmp_path: Path, mine: Pipeline
) -> None:
    """As after a careless `rm`, or a bucket's rule that expires objects. What lies behind the gap was acked:
    a tombstone in its place would shut it out for good.
    """
    content = write_segments(tmp_path, STREAMS[0], [0])
    assert mine.land() == ["landed", "idle"]
    write_segments(tmp_path, STREAMS[0], [1])
    path_of(tmp_path, 1).unlink()
    behind = write_segments(tmp_path, STREAMS[0], [2, 3])
    content += write_segments(tmp_path, STREAMS[1], [0])
    assert mine.land() == ["landed", "idle"]  # the other stream does not wait for it
    keep_up(mine)
    mine.clock.seconds += 20
    keep_up(mine)
    for _ in range(2):
        mine.clock.seconds += 20
        with pytest.raises(DataLost, match=r"00001\.parquet.*missing.*restore it"):
            keep_up(mine)
    assert not path_of(tmp_path, 1).exists()
    assert path_of(tmp_path, 1, STREAMS[1]).exists()  # a tombstone: that one has fallen silent
    assert any("sequence 1 is missing" in problem for problem in balance(mine.config).problems)

    content += behind + write_segments(tmp_path, STREAMS[0], [1])
    assert mine.land() == ["landed", "idle"]
    keep_up(mine)
    assert_landed(tmp_path, content)


def test_a_stream_that_the_position_does_not_name_and_that_lacks_its_beginning_is_lost_data(
    tmp_path: Path, mine: Pipeline
) -> None:
    """As after a table was recreated while receivers kept running. A single segment is a late writer's."""
    mine.land()
    write_segments(tmp_path, STREAMS[0], [0, 1, 2])
    path_of(tmp_path, 0).unlink()
    path_of(tmp_path, 1).unlink()
    for _ in range(4):
        keep_up(mine)
    write_segments(tmp_path, STREAMS[0], [3])
    keep_up(mine)
    keep_up(mine)
    with pytest.raises(DataLost, match=r"00000\.parquet is missing"):
        keep_up(mine)


def test_a_worker_without_memory_does_not_call_a_segment_corrupt(
    tmp_path: Path, mine: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = write_segments(tmp_path, STREAMS[0], [0])

    def no_memory(*_: Any, **__: Any) -> None:
        raise pa.ArrowMemoryError("malloc of size 1 failed")

    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetFile, "read_row_group", no_memory)
        with pytest.raises(MemoryError):
            mine.lander.step(now_due=True)
    assert mine.land() == ["landed", "idle"]
    assert_landed(tmp_path, content)


def test_lost_data_of_one_table_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Config.model_validate(
        {
            "data_dir": tmp_path,
            "land": {"wal_grace_seconds": 0, "age_max_seconds": 0},
            "pipeline": {"listen": "127.0.0.1:0"},
        }
    )
    content = write_segments(tmp_path, STREAMS[0], [0])
    whole = pipeline_run.Pipeline(config, threading.Event())
    try:
        whole._make_runner = lambda *_: LocalRunner()
        steps = [step for step in whole._steps() if isinstance(step, LandStep)]

        def lost(**_: Any) -> str:
            raise DataLost("otel.spans", "gone")

        monkeypatch.setattr(steps[1].lander, "step", lost)
        runner = StepRunner(steps, whole._metrics)
        seconds = {str(thread.step.table): [thread.turn(), thread.turn()] for thread in runner.threads}
        assert seconds == {"logs": [0, 1], "spans": [60, 60], "metrics": [1, 1]}
        assert runner.problems == {"spans": "otel.spans: gone"}
    finally:
        whole._close_catalog()
        whole._health.start()
        whole._health.stop()
    assert_landed(tmp_path, content)


NAMES = [SegmentName("logs", STREAMS[0], sequence) for sequence in range(3)]
FACTS = [Facts(name, 3, 3 * name.sequence + 3, 1, 2, "") for name in NAMES]
LISTED = [Segment(name, 100) for name in NAMES]


def test_a_position_is_moved_behind_what_tasks_have_landed() -> None:
    at = advance(WalPosition(), LISTED, [TaskResult(facts=FACTS[:2]), TaskResult(facts=FACTS[2:])])
    assert at.streams == {STREAMS[0]: StreamPosition(3, 9, 9)}


def test_a_position_is_never_moved_over_a_segment_that_no_task_reported() -> None:
    with pytest.raises(AssertionError, match=r"00001\.parquet"):
        advance(WalPosition(), LISTED, [TaskResult(facts=[FACTS[0], FACTS[2]])])


def test_a_segment_that_two_tasks_have_landed_is_not_committed() -> None:
    with pytest.raises(AssertionError, match="twice"):
        advance(WalPosition(), LISTED, [TaskResult(facts=FACTS), TaskResult(facts=FACTS[:1])])


def test_a_position_is_never_moved_over_a_gap() -> None:
    with pytest.raises(AssertionError, match="does not follow"):
        advance(WalPosition(), LISTED[1:], [TaskResult(facts=FACTS)])


def test_a_segment_that_comes_back_after_it_was_cleaned_up_is_not_landed_again(
    tmp_path: Path, mine: Pipeline
) -> None:
    """As after a power loss on a disk that forgot the deletion."""
    content = write_segments(tmp_path, STREAMS[0], range(2))
    mine.land()
    keep_up(mine)
    name = SegmentName("logs", STREAMS[0], 1)
    LocalStore(tmp_path / "wal").create(name.path, segment_bytes(name))
    assert mine.land() == ["idle"]
    assert_landed(tmp_path, content)


def test_a_column_that_is_promoted_later_is_filled_for_what_waits_and_null_for_what_has_landed(
    tmp_path: Path, mine: Pipeline
) -> None:
    """Segments were written without it, before and after the configuration changed."""
    settings = {"data_dir": tmp_path, "tables": {"promoted": [{"attribute": "cart.id", "type": "int"}]}}
    store = LocalStore(tmp_path / "wal")
    for sequence in range(2):
        name = SegmentName("logs", STREAMS[0], sequence)
        request = ExportLogsServiceRequest()
        record = request.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=time.time_ns())
        record.attributes.add(key="cart.id", value=AnyValue(int_value=sequence + 7))
        writer = SegmentWriter(1)
        writer.write(
            Decoder("logs").decode([bytes(request.SerializeToString())], ["acme"], [time.time_ns()]).table
        )
        store.create(name.path, writer.finish(name, stream_rows=sequence, received=(1, 2)))
        if sequence == 0:
            assert mine.land() == ["landed", "idle"]
    changed = Pipeline(Config.model_validate(settings))
    with contextlib.closing(changed.catalog):
        assert changed.land() == ["landed", "idle"]
        rows = (
            changed.catalog.load_table("otel.logs").scan(selected_fields=("cart_id", "_segment")).to_arrow()
        )
    found = dict(zip(rows["_segment"].to_pylist(), rows["cart_id"].to_pylist(), strict=True))
    assert found == {f"{STREAMS[0]}/0": None, f"{STREAMS[0]}/1": 8}
    assert balance(mine.config).problems == []


def test_pending_data_is_reported_with_its_age_and_landed_data_with_its_lag(
    tmp_path: Path, mine: Pipeline
) -> None:
    def value(name: str) -> float | None:
        return mine.metrics.registry.get_sample_value(f"frazil_land_{name}", {"table": "logs"})

    assert mine.lander.step() == "idle"
    assert (value("pending_segments"), value("pending_age_seconds")) == (0, 0)
    write_segments(tmp_path, STREAMS[0], range(3))
    long_ago = time.time() - 100
    os.utime(path_of(tmp_path, 1), (long_ago, long_ago))
    assert mine.lander.step() == "waiting"
    sizes = [path_of(tmp_path, sequence).stat().st_size for sequence in range(3)]
    assert (value("pending_segments"), value("pending_bytes")) == (3, sum(sizes))
    age = value("pending_age_seconds")
    assert age is not None
    assert 100 <= age < 160, "of the oldest, and not of what was noticed first"
    assert mine.land() == ["landed", "idle"]
    assert (value("pending_segments"), value("pending_age_seconds")) == (0, 0)
    assert (value("lag_seconds_count"), value("commits_total"), value("commit_attempts_total")) == (1, 1, 1)
    lag = value("lag_seconds_sum")
    assert lag is not None
    received = WalReader(mine.store).facts(SegmentName("logs", STREAMS[0], 0)).received_min_unix_nano
    assert abs(lag - (time.time() - received / 1e9)) < 60, "since its oldest record was received"


def test_data_that_arrived_during_a_slow_landing_counts_its_age_from_then(
    tmp_path: Path, mine: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(mine.lander, "_clock", lambda: now[0])
    mine.lander._listed_at = now[0]
    assert mine.lander.step() == "idle"
    write_segments(tmp_path, STREAMS[0], [0])

    def a_slow_landing() -> None:
        write_segments(tmp_path, STREAMS[0], [1])
        now[0] += 100

    just_before_tasks(monkeypatch, a_slow_landing)
    assert mine.lander.step(now_due=True) == "landed"
    assert mine.lander.step() == "landed", "it has waited for 100 s, and land.age_max_seconds is 60"
    write_segments(tmp_path, STREAMS[0], [2])
    assert mine.lander.step() == "waiting"
