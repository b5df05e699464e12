"""Erasure: no file holds matching rows, and all other rows exist once."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from frazil.ledger import balance
from frazil.otlp.decode import Decoder
from frazil.pipeline.maintain.erase import erase as erase_module
from frazil.pipeline.maintain.erase.erase import QUERY_SECONDS_MAX, erase
from frazil.pipeline.maintain.erase.request import EraseRequest
from frazil.pipeline.maintain.erase.table import TableEraser
from frazil.pipeline.metrics import Metrics
from frazil.tables import derived_specs
from frazil.wal.names import SegmentName
from frazil.wal.reader import WalReader
from frazil.wal.segment import SegmentWriter
from tests.support.erasing import GONE, LEFT, MARKER, OTHERS, STAY, WHERE, assert_erased, data_dir
from tests.support.known_lake import STREAM, KnownLake, holding
from tests.support.upkeep import Upkeep


def test_the_search_of_these_tests_finds_the_marker_wherever_it_is(filled: KnownLake) -> None:
    found = holding(data_dir(filled), MARKER)
    for part in ("wal/", "/data/tenant_id=acme/", "/metadata/"):
        assert any(part in path for path in found), found


def test_no_file_holds_what_was_erased_and_all_else_is_there_once(filled: KnownLake) -> None:
    report = filled.erase(WHERE)
    assert_erased(filled)
    assert report.is_proven
    assert report.rows_removed == len(GONE)
    logs = report.tables[0]
    assert logs.rows_of_tenant == len(GONE) + len(STAY)
    assert logs.files_rewritten + logs.files_dropped > 0
    assert logs.files_deleted
    assert logs.snapshots_expired
    assert logs.wal_segments_deleted == 3
    assert logs.proof.matches == 0
    assert logs.proof.unreferenced_files == 0
    assert logs.proof.rows_searched == len(STAY)
    (waited,) = filled.slept
    assert 0 < waited < QUERY_SECONDS_MAX, "the wait begins before the tables are changed"


def test_segments_are_deleted_half_a_minute_after_their_mark_whatever_the_tables_take(
    filled: KnownLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, marked, deleted = [0.0], list[float](), list[float]()

    def note(times: list[float], name: str) -> None:
        original = getattr(erase_module, name)

        def noted(*given: Any) -> Any:
            times.append(now[0])
            return original(*given)

        monkeypatch.setattr(erase_module, name, noted)

    note(marked, "write_mark")
    note(deleted, "delete_landed_segments")
    remove = TableEraser.remove

    def removing(self: TableEraser) -> None:
        now[0] += 12
        remove(self)

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(TableEraser, "remove", removing)
    request = EraseRequest("acme", WHERE, ("logs",))
    erase(
        filled.config,
        filled.catalog,
        request,
        filled.runner,
        sleep=sleep,
        timer=lambda: now[0],
        sync=lambda: None,
    )
    assert marked == [0.0]
    assert deleted == [QUERY_SECONDS_MAX]
    assert_erased(filled)


def test_the_report_never_contains_the_erased_data(filled: KnownLake) -> None:
    report = filled.erase(WHERE)
    text = report.text() + json.dumps(report.as_dict())
    assert "u42" not in text
    assert MARKER not in text
    assert "proven" in report.text()
    assert "backups" in report.text()
    assert str(len(GONE)) in report.text()
    summary = filled.table().current_snapshot().summary
    assert report.id == filled.table().properties["frazil.erased"]
    assert "u42" not in str(summary)


def test_a_second_erasure_finds_nothing_and_says_so(filled: KnownLake) -> None:
    filled.erase(WHERE)
    location = filled.table().metadata_location
    report = filled.erase(WHERE)
    assert report.found_nothing
    assert "no matching rows found" in report.text()
    assert report.is_proven
    assert filled.table().metadata_location == location
    assert_erased(filled)


def test_rows_of_another_tenant_that_match_stay(filled: KnownLake) -> None:
    filled.erase(WHERE)
    assert filled.bodies("globex") == Counter(body for _, body, _, _ in OTHERS)


def test_a_dry_run_counts_and_changes_nothing(filled: KnownLake) -> None:
    location = filled.table().metadata_location
    report = filled.erase(WHERE, dry_run=True)
    assert report.rows_removed == 4, "what has not landed is not counted"
    assert not report.is_proven
    assert filled.table().metadata_location == location
    assert "would be removed" in report.text()


def test_landing_continues_afterwards(filled: KnownLake) -> None:
    filled.erase(WHERE)
    filled.fill([("acme", "later", 9, 0.0)])
    assert filled.bodies() == LEFT + Counter({"later": 1})
    assert balance(filled.config).problems == []


def test_the_text_of_the_report_is_short_and_the_json_has_all_paths(filled: KnownLake) -> None:
    report = filled.erase(WHERE)
    assert len(report.text().splitlines()) <= 12 + 2 * len(report.tables)
    paths = report.tables[0].files_deleted
    assert paths
    assert not any(path in report.text() for path in paths)
    assert report.as_dict()["tables"][0]["files_deleted"] == paths


@pytest.mark.slow
def test_without_a_table_all_are_searched(filled: KnownLake) -> None:
    report = filled.erase(WHERE, tables=())
    assert [table.table for table in report.tables if not table.is_derived] == ["logs", "spans", "metrics"]
    assert {table.table for table in report.tables} >= {spec.name for spec in derived_specs("logs")}
    assert report.is_proven
    assert_erased(filled)


@pytest.mark.slow
def test_the_mark_in_the_log_is_deleted_when_it_is_no_longer_needed(filled: KnownLake) -> None:
    filled.erase(WHERE)
    reader = WalReader(filled.store)
    assert reader.streams_and_swept_rows("logs")[1] > 0
    for hours, is_there in ((0.5, True), (2, False)):
        later = time.time() + hours * 3600
        Upkeep(filled.config, filled.store, Metrics(), wall_clock=lambda at=later: at).round(  # type: ignore[misc]
            "logs", filled.table().metadata
        )
        assert (reader.streams_and_swept_rows("logs")[1] > 0) == is_there


@pytest.mark.slow
def test_a_tenant_whose_rows_are_all_gone_is_still_known(filled: KnownLake) -> None:
    filled.erase("true", yes=True)
    assert filled.bodies("acme") == Counter()
    assert filled.erase("true", yes=True).found_nothing


def test_spans_are_erased_with_their_events_and_links(tmp_path: Path) -> None:
    lake = KnownLake(tmp_path / "data")
    with contextlib.closing(lake):
        request = ExportTraceServiceRequest()
        scope = request.resource_spans.add().scope_spans.add()
        for number, user in enumerate(["u42", "u1", "u42", "u2"]):
            text = f"{MARKER} {number}" if user == "u42" else f"stays {number}"
            at = int(lake.now * 1e9)
            span = scope.spans.add(name=text, start_time_unix_nano=at, end_time_unix_nano=at + number)
            span.trace_id, span.span_id = bytes([number + 1]) * 16, bytes([number + 1]) * 8
            span.attributes.add(key="user.id").value.string_value = user
            span.status.message = text
            event = span.events.add(name=text, time_unix_nano=at)
            event.attributes.add(key=text).value.string_value = text
            span.links.add(trace_id=b"\1" * 16, span_id=b"\2" * 8, trace_state=text)
        nanos = int(lake.now * 1e9)
        writer = SegmentWriter(1)
        writer.write(Decoder("spans").decode([request.SerializeToString()], ["acme"], [nanos]).table)
        name = SegmentName("spans", STREAM, 0)
        lake.store.create(name.path, writer.finish(name, stream_rows=0, received=(nanos, nanos)))
        report = lake.erase(WHERE, tables=())
        assert report.is_proven
        assert report.rows_removed == 2
        assert holding(lake.config.data_dir, MARKER) == []
        rows = lake.table("spans").scan().to_arrow().to_pylist()
        assert sorted(row["name"] for row in rows) == ["stays 1", "stays 3"]
        assert all(row["events"][0]["name"] == row["name"] for row in rows)
        assert balance(lake.config).problems == []
