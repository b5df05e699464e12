"""End to end in separate processes: an SDK, a receiver, a pipeline, the tables, the ledger."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from frazil import __version__
from frazil.config import Config
from frazil.tables import derived_specs
from tests.components.process import wait_until
from tests.support.integration.clients import SIGNALS, post
from tests.support.integration.messages import request
from tests.support.receiver import Receiver, running_receiver
from tests.support.spark.land_process import (
    PROMPT,
    SMALL_SPARK,
    PipelineProcess,
    rows_in,
    running_pipeline,
    verified,
)

SETTINGS = {
    "land": PROMPT | {"wal_grace_seconds": 1},
    "spark": SMALL_SPARK,
    "receive": {"workers": 1},
    "derive": {"interval_seconds": 1},
}


def told_by_an_sdk(receiver: Receiver) -> None:
    """Five spans, five logs, and a counter, flushed."""
    resource = Resource.create({"service.name": "sdk"})
    tracing = TracerProvider(resource=resource)
    tracing.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{receiver.http}/v1/traces")))
    logging = LoggerProvider(resource=resource)
    logging.add_log_record_processor(
        BatchLogRecordProcessor(OTLPLogExporter(endpoint=receiver.grpc, insecure=True))
    )
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{receiver.http}/v1/metrics"))
    metering = MeterProvider(resource=resource, metric_readers=[reader])
    counter = metering.get_meter("tests").create_counter("requests")
    for number in range(5):
        with tracing.get_tracer("tests").start_as_current_span(f"span {number}"):
            record = LogRecord(body=f"log {number}", severity_number=SeverityNumber.INFO)
            logging.get_logger("tests").emit(record)
            counter.add(2)
    for provider in (tracing, logging, metering):
        provider.shutdown()


def test_data_sent_by_an_sdk_lands_and_the_ledger_balances(tmp_path: Path) -> None:
    with running_receiver(tmp_path, SETTINGS) as receiver, running_pipeline(receiver.config_path) as pipeline:
        pipeline.until("ready", pipeline.is_ready)
        assert pipeline.metric("frazil_pipeline_leader") == 1
        assert (pipeline.jvms(), pipeline.metric("frazil_spark_jobs_total")) == ([], 0)

        told_by_an_sdk(receiver)
        pipeline.until("landed", lambda: pipeline.metric("frazil_landed_rows_total") == 11)
        landed = {signal: rows_in(receiver.config_path, signal) for signal in SIGNALS}
        logs, spans, metrics = landed.values()
        assert sorted(logs["body"].to_pylist()) == [f"log {number}" for number in range(5)]
        assert sorted(spans["name"].to_pylist()) == [f"span {number}" for number in range(5)]
        assert set(logs["trace_id"].to_pylist()) == set(spans["trace_id"].to_pylist())
        assert metrics["value_int"].to_pylist() == [10]
        assert set(logs["service_name"].to_pylist()) == {"sdk"}

        is_off = Config().derive.is_off
        read = sum(
            table.num_rows * sum(not is_off(spec.name) for spec in derived_specs(name))
            for name, table in landed.items()
        )
        pipeline.until("derived", lambda: pipeline.metric("frazil_derived_source_rows_total") == read)

        # The deletion of landed segments shows that the steps run. No Spark job runs: nothing is pending.
        jobs = pipeline.metric("frazil_spark_jobs_total")
        pipeline.until("cleaned", lambda: list((tmp_path / "data" / "wal").rglob("*.parquet")) == [])
        assert pipeline.metric("frazil_wal_cleaned_segments_total") >= 3
        assert pipeline.metric("frazil_spark_jobs_total") == jobs
        code, ledger = verified(receiver.config_path)
        assert (code, ledger["problems"]) == (0, [])
        assert sum(line["landed"] for line in ledger["lines"]) == 11
        assert sum(line["waiting"] for line in ledger["lines"]) == 0

        assert pipeline.get("/healthz")[0] == pipeline.get("/livez")[0] == 200
        assert json.loads(pipeline.get("/readyz")[1]) == {
            "ok": True,
            "role": "pipeline",
            "version": __version__,
            "problems": {},
        }
        assert pipeline.get("/elsewhere")[0] == 404

        (jvm,) = pipeline.jvms()
        post(receiver, "logs", request("logs", "late", 3).SerializeToString()).raise_for_status()
        assert pipeline.stop() == 0
        assert wait_until(
            lambda: not jvm.is_running() or jvm.status() == psutil.STATUS_ZOMBIE, seconds_max=20
        )
        code, ledger = verified(receiver.config_path)
        assert (code, ledger["problems"]) == (0, [])
        assert sum(line["landed"] + line["waiting"] for line in ledger["lines"]) == 14


@pytest.mark.slow
def test_commands_run_on_the_spark_of_the_pipeline(tmp_path: Path) -> None:
    with running_receiver(tmp_path, SETTINGS) as receiver, running_pipeline(receiver.config_path) as pipeline:
        pipeline.until("ready", pipeline.is_ready)
        told_by_an_sdk(receiver)
        pipeline.until("landed", lambda: pipeline.metric("frazil_landed_rows_total") == 11)

        def frazil(*arguments: str) -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "frazil", "--config", str(receiver.config_path), *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            assert "Spark" not in done.stderr
            return done

        tagged = frazil("tag", "create", "before", "--json")
        assert {each["table"] for each in json.loads(tagged.stdout)["tables"]} >= set(SIGNALS)
        erase = ("erase", "--tenant", "default", "--where", "body = 'log 3'", "--table", "logs")
        planned = frazil(*erase, "--dry-run")
        assert (planned.returncode, "the tags before" in planned.stdout) == (1, True)
        refused = frazil(*erase)
        assert (refused.returncode, "the tags before" in refused.stderr) == (2, True)
        erased = frazil(*erase, "--drop-tags")
        assert (erased.returncode, "proven" in erased.stdout) == (0, True), erased.stderr
        assert "erasing from logs" in erased.stderr
        bodies = sorted(rows_in(receiver.config_path, "logs")["body"].to_pylist())
        assert bodies == ["log 0", "log 1", "log 2", "log 4"]
        assert len(pipeline.jvms()) == 1


def starting(pipeline: PipelineProcess) -> list[psutil.Process]:
    """The oldest first. Not the JVM that makes up the command line of the other."""
    found = []
    for jvm in pipeline.jvms():
        with contextlib.suppress(psutil.NoSuchProcess):
            if any("SparkSubmit" in word for word in jvm.cmdline()):
                found.append(jvm)
    return sorted(found, key=psutil.Process.create_time)


@pytest.mark.slow
def test_a_pipeline_that_is_starting_spark_stops_without_waiting_for_it(tmp_path: Path) -> None:
    with running_receiver(tmp_path, SETTINGS) as receiver:
        post(receiver, "logs", request("logs", "early", 3).SerializeToString()).raise_for_status()
        with running_pipeline(receiver.config_path) as pipeline:
            pipeline.until("Spark's JVM", lambda: starting(pipeline))
            # A JVM that starts another program is there twice until the copy becomes that program.
            jvm, *_ = starting(pipeline)
            assert pipeline.stop() == 0
            assert wait_until(
                lambda: not jvm.is_running() or jvm.status() == psutil.STATUS_ZOMBIE, seconds_max=20
            )
        said = pipeline.log.read_text()
        assert "stopping" in said
        unwanted = ("Spark started", "landed", "failed", "Traceback", "[error", "[warn")
        assert [words for words in unwanted if words in said] == []
        code, ledger = verified(receiver.config_path)
        assert (code, ledger["problems"]) == (0, [])
        assert sum(line["waiting"] for line in ledger["lines"]) == 3


def test_a_port_in_use_is_reported_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        (tmp_path / "frazil.yaml").write_text(f"data_dir: {tmp_path}\npipeline: {{listen: '{address}'}}\n")
        ended = subprocess.run(
            [sys.executable, "-m", "frazil", "--config", tmp_path / "frazil.yaml", "pipeline"],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert address in ended.stderr
