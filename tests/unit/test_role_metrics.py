"""What every role tells of itself: stores, objectives, processes."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry

from frazil.config import Config
from frazil.errors import StoreUnavailable
from frazil.objectives import Objectives, targets
from frazil.pipeline.metrics import Metrics
from frazil.pipeline.runner import packed, unpacked
from frazil.process import process_tree
from frazil.role_metrics import RoleCollector, StoreMetrics
from frazil.storage import metrics as store_metrics
from frazil.storage.local import LocalStore
from tests.components.s3 import S3Server
from tests.support.wal_stores import s3_store


@pytest.fixture(autouse=True)
def nobody_listens_afterwards() -> Iterator[None]:
    yield
    store_metrics.listen(None)


class Heard:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        StoreMetrics(self.registry)

    def calls(self, store: str, operation: str) -> float:
        return self._value("frazil_store_seconds_count", store, operation)

    def failures(self, store: str, operation: str) -> float:
        return self._value("frazil_store_failures_total", store, operation)

    def seconds(self, store: str, operation: str) -> float:
        return self._value("frazil_store_seconds_sum", store, operation)

    def _value(self, name: str, store: str, operation: str) -> float:
        return self.registry.get_sample_value(name, {"store": store, "operation": operation}) or 0.0


def test_calls_of_the_log_are_counted_by_operation(tmp_path: Path) -> None:
    heard, store = Heard(), LocalStore(tmp_path)
    for number in range(3):
        store.create(f"logs/stream/{number}", b"rows")
    store.read("logs/stream/0")
    assert len(list(store.list("logs/"))) == 3
    store.delete_all(["logs/stream/0", "logs/stream/1"])
    assert heard.calls("wal", "put") == 3
    assert heard.calls("wal", "get") == 1
    assert heard.calls("wal", "list") == 1, "one for a listing, however many folders it goes through"
    assert heard.calls("wal", "delete") == 1
    assert heard.failures("wal", "put") == 0


def test_calls_of_the_lake_are_counted_by_operation(tmp_path: Path) -> None:
    heard, disk = Heard(), LocalStore(None, name="lake")
    disk.create(str(tmp_path / "data.parquet"), memoryview(b"rows"))
    disk.open(str(tmp_path / "data.parquet")).close()
    assert disk.size(str(tmp_path / "data.parquet")) == 4
    assert [file.size for file in disk.list(str(tmp_path))] == [4]
    disk.delete(str(tmp_path / "data.parquet"))
    assert [heard.calls("lake", each) for each in ("put", "get", "head", "list", "delete")] == [1] * 5


def test_calls_of_buckets_are_counted_as_those_of_disks_are(moto_s3: S3Server) -> None:
    bucket = f"metrics{secrets.token_hex(4)}"
    moto_s3.make_bucket(bucket)
    heard, store = Heard(), s3_store(moto_s3, bucket)
    store.create("logs/stream/0", b"rows")
    store.read("logs/stream/0")
    (found,) = store.list("logs/")
    assert found.modified_seconds is not None
    assert abs(time.time() - found.modified_seconds) < 60, "by which the age of a backlog is known"
    store.delete_all(["logs/stream/0"])
    assert [heard.calls("wal", each) for each in ("put", "get", "list", "delete")] == [1] * 4


def test_a_store_that_fails_is_counted_as_failing_and_a_missing_name_is_not(tmp_path: Path) -> None:
    heard, store = Heard(), LocalStore(tmp_path / "wal")
    with pytest.raises(FileNotFoundError):
        store.read("logs/stream/0")
    assert (heard.calls("wal", "get"), heard.failures("wal", "get")) == (1, 0)
    (tmp_path / "wal").write_text("a file in the folder's place")
    with pytest.raises(StoreUnavailable):
        store.create("logs/stream/0", b"rows")
    assert (heard.calls("wal", "put"), heard.failures("wal", "put")) == (1, 1)


def test_a_listing_is_not_charged_for_the_time_of_its_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, store, now = Heard(), LocalStore(tmp_path), [0.0]
    for number in range(3):
        store.create(f"logs/stream/{number}", b"rows")
    monkeypatch.setattr(store_metrics.time, "perf_counter", lambda: now[0])
    for _ in store.list("logs/"):
        now[0] += 100
    assert heard.seconds("wal", "list") == 0


def test_a_listing_that_is_not_read_to_its_end_is_no_failure(tmp_path: Path) -> None:
    heard, store = Heard(), LocalStore(tmp_path)
    for number in range(3):
        store.create(f"logs/stream/{number}", b"rows")
    listing: Any = store.list("logs/")
    next(listing)
    listing.close()
    assert (heard.calls("wal", "list"), heard.failures("wal", "list")) == (1, 0)


def test_calls_made_in_a_task_travel_with_its_result_and_are_counted_where_it_arrives(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create("logs/stream/0", b"rows")
    parcel = packed(lambda: store.read("logs/stream/0"))  # nobody listens where tasks run
    heard = Heard()
    assert unpacked(pa.Table.from_batches([parcel])) == [b"rows"]
    assert heard.calls("wal", "get") == 1


def test_calls_of_a_task_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(store_metrics, "CALLS_GATHERED_MAX", 2)
    store = LocalStore(tmp_path)
    with store_metrics.gathering() as calls:
        for number in range(5):
            store.create(f"logs/stream/{number}", b"rows")
    assert len(calls) == 2


def test_objectives_are_counted_as_kept_up_to_their_limit_and_missed_beyond_it() -> None:
    registry = CollectorRegistry()
    config = Config.model_validate({"status": {"ack_seconds": "250ms"}})
    objectives = Objectives(registry, config, ["ack", "freshness"])
    for seconds in (0.1, 0.25, 0.26):
        objectives.observe("ack", seconds)
    assert registry.get_sample_value("frazil_objective_events_total", {"objective": "ack"}) == 3
    assert registry.get_sample_value("frazil_objective_missed_total", {"objective": "ack"}) == 1
    assert registry.get_sample_value("frazil_objective_missed_total", {"objective": "freshness"}) == 0


def test_with_kafka_what_is_fresh_is_what_has_landed() -> None:
    kafka = {"type": "kafka", "kafka": {"brokers": ["127.0.0.1:9092"]}}
    found = targets(Config.model_validate({"wal": kafka}))
    assert found["freshness"] == found["landing_lag"] == 10
    assert targets(Config())["freshness"] < 1


def test_the_age_of_a_backlog_grows_while_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, now = Metrics(), [1_000.0]
    monkeypatch.setattr("frazil.pipeline.metrics.time.time", lambda: now[0])
    metrics.pending("logs", 100, 2, since=990.0)
    age = "frazil_land_pending_age_seconds"
    assert metrics.registry.get_sample_value(age, {"table": "logs"}) == 10
    now[0] += 60
    assert metrics.registry.get_sample_value(age, {"table": "logs"}) == 70
    metrics.stand_down()
    assert metrics.registry.get_sample_value(age, {"table": "logs"}) is None, "the new leader knows better"


def test_a_role_shows_its_version_its_objectives_and_the_room_of_its_disks(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    config = Config.model_validate({"data_dir": tmp_path / "not" / "made" / "yet"})
    registry.register(RoleCollector("pipeline", config))
    free = registry.get_sample_value("frazil_store_free_bytes", {"store": "wal"})
    assert free is not None
    assert 0 < free <= os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    assert registry.get_sample_value("frazil_objective_seconds", {"objective": "landing_lag"}) == 120


def test_what_processes_use_includes_their_descendants_and_those_that_have_ended() -> None:
    """A child with a child of its own, which holds 50 MB; then both end, and their CPU stays counted."""
    before = process_tree(os.getpid())
    assert before is not None
    grandchild = "held = bytearray(b'x' * 50_000_000); print(1, flush=True); input()"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        during = process_tree(os.getpid())
        process.communicate("\n")
    after = process_tree(os.getpid())
    assert during is not None
    assert after is not None
    assert during.processes == before.processes + 2
    assert during.memory_bytes > before.memory_bytes + 50_000_000
    assert after.processes == before.processes
    assert after.cpu_seconds >= during.cpu_seconds


def test_there_is_no_use_of_a_process_that_is_not_there() -> None:
    assert process_tree(2**22 + 1) is None
