"""Landing with failures from practice: competing landers, broken clocks, broken files, restarts, clean-up."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from pyspark.sql import SparkSession

from frazil.errors import DataLost, Fenced
from frazil.pipeline.metrics import Metrics
from frazil.storage.local import LocalStore
from frazil.tables import SIGNALS, landed_spec
from frazil.wal.names import SegmentName
from tests.support.spark.land_lake import Lake, Sent, Stream, opened
from tests.support.upkeep import Upkeep

pytestmark = pytest.mark.slow

RECEIVED = 1_790_000_000_123_456_789
DAY = 86_400_000_000_000


def logs(*texts: str, unix_nanos: list[int] | None = None) -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    for number, text in enumerate(texts):
        at = RECEIVED if unix_nanos is None else unix_nanos[number]
        scope.log_records.add(time_unix_nano=at, body={"string_value": text})
    return request


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Iterator[Lake]:
    settings = {
        "data_dir": tmp_path,
        "wal": {"local": {"free_bytes_min": 0}},
        "land": {"wal_grace_seconds": 0},
    }
    with opened(settings) as made:
        yield made


def path_of(lake: Lake, name: SegmentName) -> Path:
    return lake.config.wal_dir / name.path


def test_of_two_landers_at_the_same_position_one_wins_each_round(lake: Lake) -> None:
    stream, bodies = Stream(lake.store, "logs"), []
    with opened(lake.config.model_dump()) as rival, ThreadPoolExecutor(2) as pool:
        landers = [lake.lander("logs"), rival.lander("logs")]
        for number in range(3):
            stream.write([Sent(logs(f"a{number}", f"b{number}"))])
            bodies += [f"a{number}", f"b{number}"]
            both = threading.Barrier(2)
            # A lander that asks for Spark has its position and its work: there, each waits for the other.
            for lander in landers:
                lander.reset()
                lander._runner._start_spark = lambda both=both: (both.wait(60), lake.spark())[1]
            outcomes = [pool.submit(lander.step, now_due=True) for lander in landers]
            errors = [outcome.exception(60) for outcome in outcomes]
            assert sorted(type(error) for error in errors if error is not None) == [Fenced]
        assert lake.bodies() == dict.fromkeys(bodies, 1)
        assert lake.ledger().problems == []
    assert len(lake.table("logs").snapshots()) == 1 + 3


def test_a_client_with_a_broken_clock_makes_few_files_and_loses_nothing(lake: Lake) -> None:
    days = [RECEIVED - day * DAY for day in range(-2000, 15_000, 10)]
    Stream(lake.store, "logs").write([Sent(logs(*map(str, days), unix_nanos=days))])
    lake.land("logs")
    rows = lake.by_spark("logs")
    received = datetime.datetime.fromtimestamp(RECEIVED // 1000 / 1e6, datetime.UTC)
    assert sorted(rows["time_unix_nano"].to_pylist()) == sorted(days)
    for time_, nanos in zip(rows["time"].to_pylist(), rows["time_unix_nano"].to_pylist(), strict=True):
        within = -DAY <= RECEIVED - nanos <= 30 * DAY
        assert abs(time_.timestamp() - (nanos / 1e9 if within else received.timestamp())) < 1e-3
    assert len(list(lake.table("logs").scan().plan_files())) <= 5


def test_rows_keep_their_days_when_one_task_needs_more_files_than_a_commit_should_add(
    tmp_path: Path, spark: SparkSession
) -> None:
    settings = {
        "data_dir": tmp_path,
        "wal": {"local": {"free_bytes_min": 0}},
        "land": {"files_per_commit_max": 5},
    }
    with opened(settings) as lake:
        days = [RECEIVED - day * DAY for day in range(25)]
        Stream(lake.store, "logs").write([Sent(logs(*map(str, days), unix_nanos=days))])
        lake.land("logs")
        assert len(list(lake.table("logs").scan().plan_files())) == 25
        assert lake.bodies() == dict.fromkeys(map(str, days), 1)
        times = lake.by_spark("logs")["time"].to_pylist()
        assert sorted(round(time.timestamp() * 1e6) for time in times) == sorted(day // 1000 for day in days)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def of_another_version(path: Path) -> None:
    from frazil.wal import segment

    known, segment.FORMAT = segment.FORMAT, "99"
    try:
        writer = segment.SegmentWriter(1)
        writer.write(pq.read_table(path))
        name = SegmentName("logs", path.parent.name, int(path.stem))
        path.write_bytes(writer.finish(name, stream_rows=0, received=(1, 1)))
    finally:
        segment.FORMAT = known


@pytest.mark.parametrize("harm", [cut_short, flipped, emptied, of_another_version])
def test_a_corrupt_segment_is_set_aside_and_landing_continues(lake: Lake, harm: object) -> None:
    stream = Stream(lake.store, "logs")
    names = [stream.write([Sent(logs(f"{number}-a", f"{number}-b"))]) for number in range(3)]
    harm(path_of(lake, names[1]))  # type: ignore[operator]
    broken = path_of(lake, names[1]).read_bytes()
    lake.land("logs")
    good = [f"{number}-{letter}" for number in (0, 2) for letter in "ab"]
    assert lake.bodies() == dict.fromkeys(good, 1)
    (row,) = lake.by_spark("set_aside").to_pylist()
    assert (row["table_name"], row["source"]) == ("logs", f"{stream.name}/1")
    assert row["reason"]
    assert "is corrupt" not in row["reason"]  # the source says which
    assert (row["bytes"], row["payload"]) == (len(broken), None)
    assert lake.store.read(row["location"]) == broken
    ledger = lake.ledger()
    assert ledger.problems == []
    assert [(line.durable, line.landed, line.set_aside) for line in ledger.lines] == [(6, 4, 1)]


def test_a_corrupt_segment_at_the_end_leaves_the_ledger_whole_before_and_after_the_next(lake: Lake) -> None:
    stream = Stream(lake.store, "logs")
    stream.write([Sent(logs("first"))])
    last = stream.write([Sent(logs("lost"))])
    flipped(path_of(lake, last))
    lake.land("logs")
    assert lake.ledger().problems == []
    stream.write([Sent(logs("next"))])
    assert lake.ledger().problems == []
    assert [line.waiting for line in lake.ledger().lines] == [1]
    lake.land("logs")
    assert lake.ledger().problems == []
    assert lake.bodies() == {"first": 1, "next": 1}


def test_an_empty_file_alone_in_the_log_is_set_aside_too(lake: Lake) -> None:
    emptied(path_of(lake, Stream(lake.store, "logs").write([Sent(logs("lost"))])))
    lake.land("logs")
    assert lake.by_pyiceberg("set_aside").num_rows == 1
    assert lake.ledger().problems == []


def test_the_same_stream_number_in_two_tables_is_set_aside_for_each(lake: Lake) -> None:
    """Names of segments are unique in a table's folder only."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    one = Stream(lake.store, "logs")
    metrics = ExportMetricsServiceRequest()
    metric = metrics.resource_metrics.add().scope_metrics.add().metrics.add(name="m")
    metric.gauge.data_points.add(time_unix_nano=RECEIVED, as_int=1)
    two = Stream(lake.store, "metrics", name=one.name)
    for name in (one.write([Sent(logs("a"))]), two.write([Sent(metrics)])):
        flipped(path_of(lake, name))
    lake.land()
    assert sorted(lake.by_pyiceberg("set_aside")["table_name"].to_pylist()) == ["logs", "metrics"]
    assert lake.ledger().problems == []


def test_a_gap_in_a_stream_is_waited_for(lake: Lake) -> None:
    stream = Stream(lake.store, "logs")
    names = [stream.write([Sent(logs(str(number)))]) for number in range(4)]
    away = path_of(lake, names[2]).rename(lake.config.data_dir / "away")
    lake.land("logs")
    assert lake.bodies() == {"0": 1, "1": 1}
    away.rename(path_of(lake, names[2]))
    lake.land("logs")
    assert lake.bodies() == {str(number): 1 for number in range(4)}


def test_segments_gone_before_they_landed_stop_the_table_loudly(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing still names them, as it may for a moment after another lander's clean-up."""
    stream = Stream(lake.store, "logs")
    gone = stream.write([Sent(logs("gone"))])
    listed = list(lake.store.list("logs/"))
    path_of(lake, gone).unlink()
    monkeypatch.setattr(LocalStore, "list", lambda self, prefix, after=None: iter(listed))
    lander = lake.lander("logs")
    assert [lander.step(now_due=True) for _ in range(2)] == ["again", "again"]
    with pytest.raises(DataLost, match=gone.path):
        lander.step(now_due=True)


def test_landed_segments_are_deleted_and_the_ledger_still_balances(lake: Lake) -> None:
    metrics = Metrics()
    first, second = Stream(lake.store, "logs"), Stream(lake.store, "logs")
    first.write([Sent(logs("a", "b"))])
    second.write([Sent(logs("c"))])
    lander = lake.lander("logs")
    assert lander.step(now_due=True) == "landed"
    clock = [time.monotonic()]
    upkeep = Upkeep(lake.config, lake.store, metrics, clock=lambda: clock[0])

    def look() -> None:
        lander.drop_streams(upkeep.round("logs", lander.checkpoint().table.metadata))

    look()
    assert list(lake.store.list("logs/")) == []
    assert lake.ledger().problems == []
    second.write([Sent(logs("d"))])
    clock[0] += lake.config.land.stream_idle_seconds + 1
    look()  # closes the first; the second has gone on, so its end cannot be written
    assert lander.step(now_due=True) == "landed"
    look()
    second.write([Sent(logs("e"))])
    assert lander.step(now_due=True) == "landed"
    look()
    ledger = lake.ledger()
    assert ledger.problems == []
    assert [(line.stream, line.landed) for line in ledger.lines] == [(second.name, 3)]
    assert lake.bodies() == dict.fromkeys("abcde", 1)


def test_rows_deleted_or_added_by_others_are_found_by_the_ledger(lake: Lake) -> None:
    stream = Stream(lake.store, "logs")
    stream.write([Sent(logs("a", "b"))])
    lake.land("logs")
    name = lake.spark_name("logs")
    lake.spark().sql(f"INSERT INTO {name} SELECT * FROM {name} WHERE body = 'a'")
    assert any("duplicated" in problem for problem in lake.ledger().problems)
    lake.spark().sql(f"DELETE FROM {name} WHERE body = 'a'")
    assert any("missing" in problem for problem in lake.ledger().problems)


def test_landing_continues_after_other_engines_rewrote_the_table(lake: Lake) -> None:
    """Compaction by Spark's own procedure moves main alone; what lands next is built upon it."""
    stream, lander = Stream(lake.store, "logs"), lake.lander("logs")
    for text in "abc":
        stream.write([Sent(logs(text))])
        assert lander.step(now_due=True) == "landed"
    namespace = lake.config.lake.namespace
    call = "CALL {}.system.rewrite_data_files(table => '{}.logs', options => map('rewrite-all', 'true'))"
    lake.spark().sql(call.format(lake.config.lake.catalog.name, namespace)).collect()
    stream.write([Sent(logs("d"))])
    assert lander.step(now_due=True) == "landed"
    assert lake.bodies() == dict.fromkeys("abcd", 1)
    assert lake.ledger().problems == []
    assert pa.compute.count_distinct(lake.by_spark("logs")["_segment"]).as_py() == 4


def test_spark_shows_what_each_column_means_and_how_the_table_is_cut(
    tmp_path: Path, spark: SparkSession
) -> None:
    with opened({"data_dir": tmp_path, "wal": {"local": {"free_bytes_min": 0}}}) as lake:
        for signal in SIGNALS:
            lake.lander(signal).checkpoint()
            described = lake.spark().sql(f"DESCRIBE EXTENDED {lake.spark_name(signal)}").collect()
            comments = {row.col_name: row.comment for row in reversed(described)}
            for column in landed_spec(signal).columns:
                assert comments[column.name] == f"{column.doc}. From: {column.source}"
            facts = {row.col_name: row.data_type for row in described}
            assert facts["Comment"] == landed_spec(signal).doc
            assert (facts["Part 0"], facts["Part 1"]) == ("tenant_id", "days(time)")


def test_a_landing_that_failed_is_tried_again_without_waiting_for_more(lake: Lake) -> None:
    def no_spark() -> SparkSession:
        raise ConnectionError("no Spark now")

    Stream(lake.store, "logs").write([Sent(logs("a"))])
    lander = lake.lander("logs", no_spark)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            lander.step()
        lander.reset()
    lander._runner._start_spark = lake.spark
    assert lander.step() == "landed"
