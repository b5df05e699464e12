"""Pipelines that die, freeze, take over and run at once: no acknowledged row is missing or duplicated."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from frazil.config import load_config
from tests.components.process import wait_until
from tests.components.s3 import S3Server
from tests.support.fault.traffic import Account, Steady, burst
from tests.support.integration.clients import post
from tests.support.integration.messages import logs, request
from tests.support.receiver import Receiver, running_receiver
from tests.support.spark.land_process import (
    PROMPT,
    SMALL_SPARK,
    PipelineProcess,
    landed_bodies,
    rows_in,
    running_pipeline,
    verified,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SETTINGS: dict[str, Any] = {
    "land": PROMPT | {"wal_grace_seconds": 2},
    "spark": SMALL_SPARK,
    "receive": {"workers": 1},
}
TAKE_OVER_SECONDS_MAX = 30
PAUSE_SECONDS = 0.2
"""Between a client's requests. Four clients give every landing something to do, and leave Spark the CPU."""


def settled(pipeline: PipelineProcess, config_path: Path, account: Account) -> None:
    """All that was acked is there, nothing more often than it was sent, and the ledger closes."""
    pipeline.until("all landed", lambda: account.acked <= landed_bodies(config_path).keys())
    account.check(landed_bodies(config_path))
    code, ledger = verified(config_path)
    assert (code, ledger["problems"]) == (0, [])
    assert sum(line["landed"] for line in ledger["lines"]) == landed_bodies(config_path).total()


def landed_rows(pipeline: PipelineProcess) -> float:
    return pipeline.metric("frazil_landed_rows_total", table="logs")


def jvm_is_up(pipeline: PipelineProcess) -> bool:
    return bool(pipeline.jvms())


def test_a_driver_killed_at_random_moments_lands_everything_once(tmp_path: Path) -> None:
    """Also while receivers come and go, so that there are several streams."""
    chance, account = random.Random(7), Account()
    with running_receiver(tmp_path, SETTINGS) as receiver:
        for kill in range(12 if os.environ.get("FRAZIL_SWEEP_ALL") else 3):
            with (
                running_pipeline(receiver.config_path) as pipeline,
                Steady(receiver, account, pause_seconds=PAUSE_SECONDS),
            ):
                if kill % 2:
                    pipeline.until("landed", lambda p=pipeline: landed_rows(p) > 0)
                else:
                    pipeline.until("Spark begins", lambda p=pipeline: jvm_is_up(p))
                time.sleep(chance.uniform(0, 3))  # the moment of death is what this test is about
                pipeline.kill()
            if kill == 2:
                receiver.kill()
                receiver.start()
        with running_pipeline(receiver.config_path) as pipeline:
            settled(pipeline, receiver.config_path, account)
            assert pipeline.stop() == 0


@pytest.mark.soak
def test_a_stop_in_mid_traffic_finishes_the_commit(tmp_path: Path) -> None:
    account = Account()
    with (
        running_receiver(tmp_path, SETTINGS) as receiver,
        Steady(receiver, account, pause_seconds=PAUSE_SECONDS) as steady,
    ):
        with running_pipeline(receiver.config_path) as pipeline:
            pipeline.until("landed", lambda: landed_rows(pipeline) > 0)
            assert pipeline.stop() == 0
        steady.stop()
        code, ledger = verified(receiver.config_path)
        assert (code, ledger["problems"]) == (0, [])
        with running_pipeline(receiver.config_path) as pipeline:
            settled(pipeline, receiver.config_path, account)


def test_a_jvm_that_dies_is_replaced(tmp_path: Path) -> None:
    account = Account()
    with running_receiver(tmp_path, SETTINGS) as receiver, running_pipeline(receiver.config_path) as pipeline:
        burst(receiver, account)
        settled(pipeline, receiver.config_path, account)
        (jvm,) = pipeline.jvms()
        jvm.kill()
        burst(receiver, account)
        settled(pipeline, receiver.config_path, account)
        pipeline.until("ready", pipeline.is_ready)
        assert [each.pid for each in pipeline.jvms()] != [jvm.pid]
        assert pipeline.stop() == 0


def took_over(receiver: Receiver, account: Account) -> None:
    """The second waits, is no problem to anyone, and works within half a minute of the first's death."""
    with (
        running_pipeline(receiver.config_path, "first") as first,
        running_pipeline(receiver.config_path, "second") as second,
    ):
        first.until("one leads", lambda: leaders(first, second) == 1)
        if second.metric("frazil_pipeline_leader"):
            first, second = second, first
        burst(receiver, account)
        settled(first, receiver.config_path, account)
        second.until("ready", second.is_ready)
        assert (second.metric("frazil_pipeline_leader"), second.jvms()) == (0, [])
        first.kill()
        begin = time.monotonic()
        burst(receiver, account)
        second.until("leads", lambda: second.metric("frazil_pipeline_leader") == 1)
        assert time.monotonic() - begin < TAKE_OVER_SECONDS_MAX
        settled(second, receiver.config_path, account)


def leaders(*pipelines: PipelineProcess) -> float:
    return sum(each.metric("frazil_pipeline_leader") for each in pipelines)


def test_a_second_pipeline_takes_over_from_one_that_was_killed(tmp_path: Path) -> None:
    with running_receiver(tmp_path, SETTINGS) as receiver:
        took_over(receiver, Account())


def on_s3(s3: S3Server) -> dict[str, Any]:
    bucket = s3.make_bucket(f"lake-{uuid.uuid4().hex}")
    keys = {"access_key_id": s3.access_key, "secret_access_key": s3.secret_key}
    section = {"endpoint": s3.endpoint, "allow_http": True, **keys}
    lake = {"warehouse": f"s3://{bucket}/warehouse", "s3": section}
    return SETTINGS | {"wal": {"type": "s3", "s3": {"bucket": bucket, **section}}, "lake": lake}


@pytest.mark.soak
def test_a_second_pipeline_takes_over_by_the_lease_in_the_store(tmp_path: Path, moto_s3: S3Server) -> None:
    with running_receiver(tmp_path, on_s3(moto_s3)) as receiver:
        took_over(receiver, Account())


def freeze(pipeline: PipelineProcess) -> None:
    """Not while it holds the lock of the SQLite catalog, which no other process could take."""
    catalog = load_config(pipeline.config_path, environ={}).catalog_file

    def frozen() -> bool:
        os.kill(pipeline.process.pid, signal.SIGSTOP)
        try:
            with closing(sqlite3.connect(catalog, timeout=0)) as connection:
                connection.execute("BEGIN EXCLUSIVE")
                connection.rollback()
        except sqlite3.OperationalError:
            os.kill(pipeline.process.pid, signal.SIGCONT)
            return False
        return True

    assert wait_until(frozen, seconds_max=60)


def test_a_frozen_pipeline_that_wakes_up_lands_nothing_twice(tmp_path: Path, moto_s3: S3Server) -> None:
    """Its lease in the store is taken meanwhile; what it then commits is refused."""
    account = Account()
    settings = on_s3(moto_s3) | {"pipeline": {"lease_seconds": 3}}
    with (
        running_receiver(tmp_path, settings) as receiver,
        running_pipeline(receiver.config_path, "first") as first,
    ):
        with Steady(receiver, account, pause_seconds=PAUSE_SECONDS):
            first.until("landed", lambda: landed_rows(first) > 0)
            freeze(first)
            with running_pipeline(receiver.config_path, "second") as second:
                second.until("landed", lambda: landed_rows(second) > 0)
                os.kill(first.process.pid, signal.SIGCONT)
                first.until("it has noticed", lambda: leaders(first) == 0)
                rows = landed_rows(second)
                second.until("the second goes on", lambda: landed_rows(second) > rows)
                second.kill()
            first.until("the first leads again", lambda: leaders(first) == 1)
        settled(first, receiver.config_path, account)


@pytest.mark.soak
def test_two_pipelines_at_once_land_nothing_twice(tmp_path: Path) -> None:
    """Forced: each has a lease of its own, and both have the same log and tables."""
    account = Account()
    data = tmp_path / "data"
    shared = SETTINGS | {
        "wal": {"local": {"path": str(data / "wal")}},
        "lake": {
            "warehouse": str(data / "warehouse"),
            "catalog": {"sqlite": {"path": str(data / "catalog.db")}},
        },
    }
    with running_receiver(tmp_path, shared) as receiver:
        path = receiver.config_path
        other = {"FRAZIL_DATA_DIR": str(tmp_path / "other")}
        with running_pipeline(path, "one") as one, running_pipeline(path, "two", other) as two:
            with Steady(receiver, account, pause_seconds=PAUSE_SECONDS):
                fenced = lambda: sum(p.metric("frazil_land_fenced_total") for p in (one, two))  # noqa: E731
                one.until("they met", lambda: fenced() >= 2)
            settled(one, path, account)
            assert leaders(one, two) == 2
            total = landed_rows(one) + landed_rows(two)
            assert total == landed_bodies(path).total()


def test_a_broken_clock_and_a_corrupt_segment_keep_nothing_else_from_landing(tmp_path: Path) -> None:
    account = Account()
    with running_receiver(tmp_path, SETTINGS) as receiver:
        broken = logs("clock", 300)
        for number, record in enumerate(broken.resource_logs[0].scope_logs[0].log_records):
            record.time_unix_nano = number * 100 * 86_400 * 1_000_000_000
        post(receiver, "logs", broken.SerializeToString()).raise_for_status()
        corrupt = request("logs", "corrupt", 2).SerializeToString()
        wal = tmp_path / "data" / "wal"
        before = set(wal.rglob("logs/**/*.parquet"))
        post(receiver, "logs", corrupt).raise_for_status()
        (segment,) = set(wal.rglob("logs/**/*.parquet")) - before
        spoiled = segment.read_bytes()[:-1] + b"?"
        segment.write_bytes(spoiled)
        burst(receiver, account)
        path = receiver.config_path
        with running_pipeline(path) as pipeline:
            pipeline.until("all landed", lambda: account.acked <= landed_bodies(path).keys())
            pipeline.until("cleaned up", lambda: not segment.exists())
            rows = rows_in(path, "logs", "service_name", "time")
            assert rows is not None
            of_clock = rows.filter(pa.compute.equal(rows["service_name"], "clock"))
            assert of_clock.num_rows == 300
            assert len({time.date() for time in of_clock["time"].to_pylist()}) <= 3
            assert pipeline.metric("frazil_landed_clamped_rows_total") > 290
            assert pipeline.metric("frazil_land_set_aside_total") == 1
            set_aside = rows_in(path, "set_aside")
            assert set_aside is not None
            (row,) = set_aside.to_pylist()
            assert row["source"] == f"{segment.parent.name}/{int(segment.stem)}"
            assert (wal / row["location"]).read_bytes() == spoiled
            code, ledger = verified(path)
            assert (code, ledger["problems"]) == (0, [])
            assert sum(line["set_aside"] for line in ledger["lines"]) == 1
            assert sum(line["durable"] - line["landed"] for line in ledger["lines"]) == 2
