"""frazil's own traces and logs, from real processes: into itself, elsewhere, and nowhere."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from frazil.keys import new_key
from frazil.telemetry import SELF_HEADER
from tests.components.process import free_port, wait_until
from tests.support.integration.api import running_api
from tests.support.integration.clients import channel, export, post
from tests.support.integration.messages import logs
from tests.support.receiver import Receiver, running_receiver
from tests.support.spark.land_process import PROMPT, SMALL_SPARK, rows_in, running_pipeline

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ON = {"enabled": True, "interval_seconds": 0.2, "receive_ratio": 1.0}
DOCS = Path(__file__).parents[2] / "docs" / "self-observability.md"
COMMITS = 16
ONE_LOG = logs("shop", 1).SerializeToString()


def own_spans(receiver: Receiver, service: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = receiver.rows("spans").to_pylist(maps_as_pydicts="strict")
    return [row for row in rows if row["service_name"] == service]


def events(log: Path, name: str) -> list[dict[str, Any]]:
    """What `name` printed of itself."""
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["logger"] == name]


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_what_carries_frazils_own_telemetry_makes_none(tmp_path: Path, protocol: str) -> None:
    with running_receiver(tmp_path, {"telemetry": ON | {"protocol": protocol}}) as receiver:
        marked = {SELF_HEADER: "1"}
        with channel(receiver) as opened:
            for _ in range(3):
                assert post(receiver, "logs", ONE_LOG, headers=marked).status_code == 200
                export(opened, "logs", ONE_LOG, metadata=marked)
            assert post(receiver, "logs", b"nonsense", headers=marked).status_code == 400
            export(opened, "logs", ONE_LOG)
        assert post(receiver, "logs", ONE_LOG).status_code == 200
        assert post(receiver, "logs", b"nonsense").status_code == 400
        # Each: the request, its wait for company, and the write.
        assert wait_until(lambda: len(own_spans(receiver, "frazil-receiver")) >= 9, seconds_max=20)
        requests_before = receiver.metric("frazil_receive_requests_total", signal="spans")
        time.sleep(3)  # fifteen intervals: that nothing comes cannot be waited for
        spans = own_spans(receiver, "frazil-receiver")
        assert Counter(span["name"] for span in spans) == {"receive": 3, "wal.wait": 3, "wal.write": 3}
        assert receiver.metric("frazil_receive_requests_total", signal="spans") == requests_before
        assert len(receiver.rows("logs")) == 8, "a mark costs a client its data"

        roots = {str(span["span_id"]): span for span in spans if span["name"] == "receive"}
        told = Counter(
            (str(root["attributes"]["frazil.transport"]), str(root["attributes"]["frazil.outcome"]))
            for root in roots.values()
        )
        assert told == {("http", "ok"): 1, ("grpc", "ok"): 1, ("http", "invalid"): 1}
        assert {str(span["parent_span_id"]) for span in spans if span["name"] != "receive"} == roots.keys()
        assert receiver.metric("frazil_telemetry_records_total", kind="spans", outcome="sent") == 9


def test_a_query_is_found_as_a_trace_in_frazil_itself(tmp_path: Path) -> None:
    key, hash = new_key("ops")
    auth = {"keys": [{"name": "own", "tenant": "ops", "hash": hash}]}
    with running_api(tmp_path, {"auth": auth, "telemetry": ON | {"api_key": key}}) as (api, receiver):
        allowed = {"authorization": f"Bearer {key}"}
        trace_id = secrets.token_hex(16)
        traced = allowed | {"traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-01"}
        secret = "hunter" + "2"
        assert api.rows(f"SELECT count(*), '{secret}', ? FROM logs", secret, headers=traced)

        def found() -> list[dict[str, Any]]:
            answer = api.get("/api/v1/spans?service=frazil-api", headers=allowed)
            assert answer.status_code == 200, answer.text
            return [span for span in answer.json()["records"] if span["trace_id"] == trace_id]

        steps = {"wait", "parse", "constrain", "plan", "run"}
        names = {"POST /api/v1/sql", "query", *(f"query.{step}" for step in steps)}
        assert wait_until(lambda: {span["name"] for span in found()} == names, seconds_max=20), found()
        by_name = {span["name"]: span for span in found()}
        query = by_name["query"]
        assert query["attributes"]["frazil.outcome"] == "ok"
        assert query["attributes"]["frazil.rows"] == 1
        assert query["parent_span_id"] == by_name["POST /api/v1/sql"]["span_id"]
        assert by_name["query.run"]["parent_span_id"] == query["span_id"]
        asked = DOCS.read_text().partition("```sql\n")[2].partition("```")[0]
        assert {row[0] for row in api.rows(asked, headers=allowed)} >= names
        assert secret not in json.dumps(found())
        assert key not in json.dumps(found())
        assert "frazil_telemetry_records_total" in api.get("/metrics").text
        assert api.stop() == 0
        assert receiver.stop() == 0
        assert events(api.log_path, "frazil.telemetry") == []


def test_a_trace_and_its_log_go_to_another_receiver(tmp_path: Path) -> None:
    with running_receiver(tmp_path / "other") as other:
        settings = {"telemetry": ON | {"endpoint": other.http, "logs_level": "info"}}
        with running_receiver(tmp_path / "this", settings) as this:
            assert post(this, "logs", ONE_LOG).status_code == 200
            assert wait_until(lambda: len(own_spans(other, "frazil-receiver")) == 3, seconds_max=20)
            assert this.stop() == 0
            assert len(this.rows("spans")) == 0
        said = other.rows("logs").to_pylist()
        assert {row["service_name"] for row in said} == {"frazil-receiver"}
        assert "store probed" in {row["body"] for row in said}


def test_an_endpoint_that_is_down_costs_one_warning_and_no_time(tmp_path: Path) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    with running_api(tmp_path, {"telemetry": ON | {"endpoint": nowhere}}) as (api, receiver):
        deadline = time.monotonic() + 12
        while time.monotonic() < deadline:
            assert post(receiver, "logs", ONE_LOG).status_code == 200
            assert api.rows("SELECT count(*) FROM logs")
        begin = time.monotonic()
        assert api.stop() == 0
        assert receiver.stop() == 0
        assert time.monotonic() - begin < 12
        for log in (api.log_path, tmp_path / "receiver.log"):
            (warning,) = events(log, "frazil.telemetry")
            assert (warning["level"], warning["endpoint"]) == ("warning", nowhere)
            assert "Traceback" not in log.read_text()


def test_without_other_traffic_frazils_own_telemetry_does_not_grow(tmp_path: Path) -> None:
    """Landing what tells of landing is told of again: a constant, however long it goes on."""
    settings = {
        "land": PROMPT | {"age_max_seconds": 1},
        "spark": SMALL_SPARK,
        "telemetry": ON | {"logs_level": "info"},
    }
    with running_receiver(tmp_path, settings) as receiver, running_pipeline(receiver.config_path) as pipeline:
        assert post(receiver, "spans", b"").status_code == 200
        assert post(receiver, "logs", ONE_LOG).status_code == 200

        def landed() -> float:
            return pipeline.metric("frazil_landed_rows_total")

        def commits() -> float:
            return pipeline.metric("frazil_land_commits_total")

        pipeline.until("what tells of landing has landed", lambda: landed() > 20)
        rows_per_commit = []
        for _ in range(3):
            rows_before, commits_before = landed(), commits()
            pipeline.until("a few commits", lambda at=commits_before: commits() >= at + COMMITS)
            rows_per_commit.append((landed() - rows_before) / (commits() - commits_before))
        # A commit adds one trace of 4 spans and a log record. Commits a second depend on the machine's load.
        assert all(4 < rows < 7 for rows in rows_per_commit), rows_per_commit
        assert pipeline.metric("frazil_telemetry_records_total") > 0
    spans = rows_in(receiver.config_path, "spans").to_pylist(maps_as_pydicts="strict")
    names = Counter(span["name"] for span in spans if span["service_name"] == "frazil-pipeline")
    assert {"land", "land.look", "land.write", "land.commit"} <= names.keys()
    commit = next(span for span in spans if span["name"] == "land.commit")
    assert {"frazil.table", "frazil.files", "frazil.snapshot"} <= commit["attributes"].keys()
    assert [span for span in spans if span["service_name"] == "frazil-receiver" and span["name"] == "receive"]
