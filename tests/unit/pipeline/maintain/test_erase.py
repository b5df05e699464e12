"""Erasure: no file holds matching rows, all other rows exist once, and invalid requests are refused."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pyiceberg.manifest import DataFile

from frazil.errors import Conflict, DataLost, Fenced, QueryInvalid, QueryRefused, Refused
from frazil.lake.commits.commit import Committer
from frazil.lake.live_files import live_files
from frazil.lake.tags import create_tag, list_tags
from frazil.lake.upkeep.expire import expire
from frazil.ledger import balance
from frazil.otlp.decode import Decoder
from frazil.pipeline.maintain.erase import erase as erase_module
from frazil.pipeline.maintain.erase.erase import QUERY_SECONDS_MAX, erase
from frazil.pipeline.maintain.erase.report import Proof
from frazil.pipeline.maintain.erase.request import EraseRequest, EverythingMatches
from frazil.pipeline.maintain.erase.table import TableEraser
from frazil.pipeline.metrics import Metrics
from frazil.storage.local import LocalStore
from frazil.tables import derived_specs
from frazil.wal.names import SegmentName
from frazil.wal.reader import WalReader
from frazil.wal.segment import SegmentWriter
from tests.support.known_lake import STREAM, KnownLake, holding
from tests.support.local_runner import LocalRunner
from tests.support.upkeep import Upkeep

WHERE = "attributes['user.id'] = 'u42'"
MARKER = "zanzibar"
"""A text that is in every row to erase, and in no other."""
GONE = [("acme", f"u42 {MARKER} {number}", 9, float(number % 2)) for number in range(6)]
STAY = [("acme", f"u{number} stays", 9, float(number % 2)) for number in range(6)]
OTHERS = [("globex", f"u42 of globex {number}", 9, float(number % 2)) for number in range(4)]
LEFT = Counter(body for _, body, _, _ in (*STAY, *OTHERS))


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[KnownLake]:
    lake = KnownLake(tmp_path / "data")
    with contextlib.closing(lake):
        yield lake


@pytest.fixture
def filled(lake: KnownLake) -> KnownLake:
    """Landed in two commits, and some not yet."""
    lake.fill([*GONE[:2], *STAY[:3], *OTHERS[:2]], [*GONE[2:4], *STAY[3:5], *OTHERS[2:]])
    lake.write([*GONE[4:], *STAY[5:]])
    return lake


def data_dir(lake: KnownLake) -> Path:
    return lake.config.data_dir


def assert_erased(lake: KnownLake) -> None:
    assert holding(data_dir(lake), MARKER) == []
    assert lake.bodies() == LEFT
    assert balance(lake.config).problems == []


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


# What is refused


def refused(lake: KnownLake, error: type[Exception], match: str, where: str = WHERE, **options: Any) -> None:
    location, wal = lake.table().metadata_location, sorted(data_dir(lake).glob("wal/**/*"))
    with pytest.raises(error, match=match):
        lake.erase(where, **options)
    assert lake.table().metadata_location == location
    assert sorted(data_dir(lake).glob("wal/**/*")) == wal


def test_a_dry_run_names_all_that_would_stop_the_erasure(filled: KnownLake) -> None:
    name = filled.write([("acme", "broken", 9, 0.0)])
    path = data_dir(filled) / "wal" / name.path
    path.write_bytes(path.read_bytes()[:-20])
    filled.land()
    table = filled.table()
    create_tag(filled.catalog, table, "incident-42", table.current_snapshot().snapshot_id)
    report = filled.erase("severity_number = 9", dry_run=True)
    set_aside, tags, everything = report.blockers
    assert "--drop-set-aside" in set_aside
    assert "incident-42" in tags
    assert "--yes" in everything
    assert "would be refused" in report.text()
    assert all(why in report.text() for why in report.blockers)
    allowed = {"drop_set_aside": True, "drop_tags": True, "yes": True}
    report = filled.erase("severity_number = 9", dry_run=True, **allowed)
    assert report.blockers == []
    assert report.tables[0].tags_dropped == ["incident-42"]
    assert "tags that would be dropped: incident-42" in report.text()
    assert "would not be refused" in report.text()
    assert filled.erase("severity_number = 9", **allowed).is_proven


def test_the_text_of_the_report_is_short_and_the_json_has_all_paths(filled: KnownLake) -> None:
    report = filled.erase(WHERE)
    assert len(report.text().splitlines()) <= 12 + 2 * len(report.tables)
    paths = report.tables[0].files_deleted
    assert paths
    assert not any(path in report.text() for path in paths)
    assert report.as_dict()["tables"][0]["files_deleted"] == paths


def test_an_unknown_tenant_is_refused_with_the_names_of_those_that_there_are(filled: KnownLake) -> None:
    refused(filled, Refused, r"no tenant acne.*acme.*globex.*did you mean acme", tenant="acne")
    refused(filled, Refused, "not a valid tenant id", tenant="../etc")


@pytest.mark.slow
def test_a_tenant_whose_rows_are_all_gone_is_still_known(filled: KnownLake) -> None:
    filled.erase("true", yes=True)
    assert filled.bodies("acme") == Counter()
    assert filled.erase("true", yes=True).found_nothing


def test_an_unknown_table_is_refused(filled: KnownLake) -> None:
    refused(filled, Refused, r"no table log;.*did you mean logs", tables=("log",))


def test_a_condition_that_is_not_valid_for_every_table_is_refused_with_the_tables_it_is_valid_for(
    filled: KnownLake,
) -> None:
    refused(filled, Refused, r"spans.*--table logs", "body = 'x'", tables=())


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("no_such_column = 1", QueryInvalid),
        ("body = ", QueryInvalid),
        ("body", QueryInvalid),
        ("body IN (SELECT body FROM logs)", (QueryInvalid, QueryRefused)),
        ("", QueryInvalid),
        ("time < now()", (QueryInvalid, QueryRefused)),
    ],
)
def test_an_invalid_condition_is_refused(filled: KnownLake, where: str, error: Any) -> None:
    refused(filled, error, r"\S", where)
    refused(filled, error, r"\S", where, tables=())


def test_a_condition_that_matches_everything_needs_confirmation(filled: KnownLake) -> None:
    refused(filled, EverythingMatches, "--yes", "1 = 1")
    filled.land()
    refused(filled, EverythingMatches, rf"all {len(GONE) + len(STAY)} rows", "severity_number = 9")
    report = filled.erase("severity_number = 9", yes=True)
    assert report.is_proven
    assert filled.bodies() == Counter(body for _, body, _, _ in OTHERS)
    assert balance(filled.config).problems == []


def test_tags_that_keep_such_rows_are_named_and_dropped_on_request(filled: KnownLake) -> None:
    filled.land()
    table = filled.table()
    create_tag(filled.catalog, table, "incident-42", table.current_snapshot().snapshot_id)
    refused(filled, Refused, r"incident-42.*--drop-tags")
    report = filled.erase(WHERE, drop_tags=True)
    assert report.tables[0].tags_dropped == ["incident-42"]
    assert list_tags(filled.table()) == []
    assert_erased(filled)


@pytest.mark.slow
def test_a_tag_that_reaches_such_rows_through_files_that_were_merged_since_is_named_too(
    filled: KnownLake,
) -> None:
    filled.land()
    table = filled.table()
    create_tag(filled.catalog, table, "before-the-merge", table.current_snapshot().snapshot_id)
    removed = [each.file for each in live_files(table)]
    added = [copy_of(file, "-merged") for file in removed]
    Committer(filled.catalog, deadline_seconds=20).replace(table, removed, added)
    refused(filled, Refused, "before-the-merge")
    filled.erase(WHERE, drop_tags=True)
    assert_erased(filled)


@pytest.mark.slow
def test_a_tag_without_such_rows_is_kept(filled: KnownLake) -> None:
    first = filled.table().metadata.snapshots[0]  # empty: the table was just made
    create_tag(filled.catalog, filled.table(), "beginning", first.snapshot_id)
    filled.erase(WHERE)
    assert [tag.name for tag in list_tags(filled.table())] == ["beginning"]
    assert_erased(filled)


@pytest.mark.slow
def test_hourly_tags_are_dropped_without_confirmation(filled: KnownLake) -> None:
    filled.land()
    table = filled.table()
    expire(filled.catalog, table, [], create_tags={"hour-20261115T08": table.current_snapshot().snapshot_id})
    report = filled.erase(WHERE)
    assert report.tables[0].tags_dropped == ["hour-20261115T08"]
    assert_erased(filled)


def test_data_set_aside_is_refused_unless_dropped(filled: KnownLake) -> None:
    name = filled.write([("acme", f"u42 {MARKER} broken", 9, 0.0)])
    path = data_dir(filled) / "wal" / name.path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    filled.land()
    refused(filled, Refused, r"set aside.*--drop-set-aside")
    report = filled.erase(WHERE, drop_set_aside=True)
    assert report.set_aside_dropped == 1
    assert report.is_proven
    assert list((data_dir(filled) / "wal" / "set-aside").rglob("*.parquet")) == []
    assert filled.table("set_aside").scan().to_arrow().num_rows == 0
    assert_erased(filled)


@pytest.mark.slow
def test_segments_that_cannot_land_are_refused_unless_dropped(filled: KnownLake) -> None:
    stray = SegmentName("logs", STREAM.replace("120", "999"), 3)
    filled.store.create(stray.path, filled._segment(stray, [("acme", f"u42 {MARKER} stray", 9, 0.0)], 0))
    refused(filled, Refused, "--drop-set-aside")
    filled.erase(WHERE, drop_set_aside=True)
    assert_erased(filled)


@pytest.mark.slow
def test_tags_that_pin_what_is_set_aside_are_named_before_anything_is_changed(filled: KnownLake) -> None:
    name = filled.write([("acme", "broken", 9, 0.0)])
    path = data_dir(filled) / "wal" / name.path
    path.write_bytes(path.read_bytes()[:-20])
    filled.land()
    table = filled.table("set_aside")
    create_tag(filled.catalog, table, "incident-7", table.current_snapshot().snapshot_id)
    refused(filled, Refused, r"incident-7 keep snapshots of set_aside", drop_set_aside=True)
    assert filled.erase(WHERE, drop_set_aside=True, drop_tags=True).is_proven
    assert list_tags(filled.table("set_aside")) == []
    assert_erased(filled)


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


# Unreferenced files


def test_files_that_dead_writers_left_go_if_they_hold_it(filled: KnownLake) -> None:
    filled.land()
    matching = next(path for path in filled.data_files() if "tenant_id=acme" in path)
    left = [
        matching.replace(".parquet", "-left.parquet"),
        f"{matching}.0123456789abcdef.tmp",
    ]
    for path in left:
        shutil.copy(matching, path)
    half = Path(f"{matching}.fedcba9876543210.tmp")
    half.write_bytes(Path(matching).read_bytes()[:2000])
    metadata = Path(filled.table().metadata_location).parent
    manifest = next(metadata.glob("*-m0.avro"))
    shutil.copy(manifest, metadata / "left-m0.avro")
    shutil.copy(manifest, metadata / "left-m0.avro.0123456789abcdef.tmp")
    filled.erase(WHERE)
    assert not any(Path(path).exists() for path in left)
    assert_erased(filled)


@pytest.mark.slow
def test_files_that_others_are_writing_and_that_do_not_hold_it_stay(filled: KnownLake) -> None:
    filled.erase(WHERE)
    clean = next(path for path in filled.data_files() if "tenant_id=acme" in path)
    merged = clean.replace(".parquet", "-being-merged.parquet")
    shutil.copy(clean, merged)
    filled.erase(WHERE)
    assert Path(merged).exists()


# What is gone, or cannot be read


def torn(path: str) -> bytes:
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[: len(data) // 2])
    return data


def file_of(lake: KnownLake, tenant: str) -> str:
    return min(path for path in lake.data_files() if f"tenant_id={tenant}" in path)


def test_a_file_that_cannot_be_read_is_named_and_nothing_is_changed(filled: KnownLake) -> None:
    filled.land()
    path = file_of(filled, "acme")
    data = torn(path)
    refused(filled, DataLost, rf"^otel.logs: {path} cannot be read.*backup[^\n]*$")
    assert filled.erase(WHERE, tenant="globex", dry_run=True).rows_removed == len(OTHERS)
    Path(path).write_bytes(data)
    assert filled.erase(WHERE).is_proven
    assert_erased(filled)


def test_a_file_that_cannot_be_read_and_cannot_match_leaves_it_unproven(filled: KnownLake) -> None:
    filled.land()
    path = file_of(filled, "acme")
    torn(path)
    report = filled.erase("service_name = 'nobody'")
    assert not report.is_proven
    assert f"unreadable: {path}: " in report.text()


def test_a_file_that_is_gone_is_named(filled: KnownLake) -> None:
    filled.land()
    path = file_of(filled, "acme")
    data = Path(path).read_bytes()
    Path(path).unlink()
    report = filled.erase(WHERE)
    assert not report.is_proven
    assert report.tables[0].proof.files_not_there == 1
    assert f"missing: {path}" in report.text()
    assert "NOT PROVEN: restore the missing" in report.text()
    Path(path).write_bytes(data)
    assert filled.erase(WHERE).is_proven
    assert_erased(filled)


@pytest.mark.parametrize(("is_torn", "where"), [(False, WHERE), (True, "service_name = 'nobody'")])
def test_snapshots_of_the_past_that_need_such_a_file_go(filled: KnownLake, is_torn: bool, where: str) -> None:
    filled.land()
    table = filled.table()
    removed = [each.file for each in live_files(table)]
    Committer(filled.catalog, deadline_seconds=20).replace(
        table, removed, [copy_of(file, "-merged") for file in removed]
    )
    path = min(file.file_path for file in removed if file.partition[0] == "acme")
    torn(path) if is_torn else Path(path).unlink()
    report = filled.erase(where)
    assert report.is_proven, report.text()
    assert not Path(path).exists()
    if where == WHERE:
        assert_erased(filled)


def test_a_tag_on_a_snapshot_with_a_file_that_is_gone_is_named_before_anything_is_changed(
    filled: KnownLake,
) -> None:
    filled.land()
    table = filled.table()
    removed = [each.file for each in live_files(table)]
    create_tag(filled.catalog, table, "incident-9", table.current_snapshot().snapshot_id)
    Committer(filled.catalog, deadline_seconds=20).replace(
        table, removed, [copy_of(file, "-merged") for file in removed]
    )
    for file in removed:
        Path(file.file_path).unlink()
    refused(filled, Refused, r"incident-9 keep.*--drop-tags", "attributes['user.id'] = 'nobody'")
    assert filled.erase(WHERE, drop_tags=True).is_proven
    assert_erased(filled)


# Beside others


def test_a_landing_that_was_on_its_way_is_fenced_and_leaves_nothing_behind(
    filled: KnownLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_job = LocalRunner.run_job

    def run(self: LocalRunner, *given: Any) -> list[Any]:
        results = run_job(self, *given)
        monkeypatch.setattr(LocalRunner, "run_job", run_job)
        filled.erase(WHERE)  # after its files were written, and before they are committed
        return results

    monkeypatch.setattr(LocalRunner, "run_job", run)
    with pytest.raises(Fenced):
        filled.land()
    filled.land()
    assert_erased(filled)


def erased_after_reading(lake: KnownLake, monkeypatch: pytest.MonkeyPatch, segments_read: int) -> None:
    """A landing that has read so many segments when it is erased and proven, and writes after that."""
    read, run_job = LocalStore.read, LocalRunner.run_job

    def run(self: LocalRunner, *given: Any) -> list[Any]:
        monkeypatch.setattr(LocalRunner, "run_job", run_job)
        waiting = sorted(data_dir(lake).glob("wal/logs/**/*.parquet"))[-2:][:segments_read]
        had = {str(path.relative_to(data_dir(lake) / "wal")): path.read_bytes() for path in waiting}
        assert lake.erase(WHERE).is_proven
        monkeypatch.setattr(LocalStore, "read", lambda self, path: had.get(path) or read(self, path))
        return run_job(self, *given)

    monkeypatch.setattr(LocalRunner, "run_job", run)


@pytest.mark.parametrize("segments_read", [1, 2])
def test_a_landing_that_writes_after_the_proof_deletes_its_files(
    filled: KnownLake, monkeypatch: pytest.MonkeyPatch, segments_read: int
) -> None:
    filled.write([("acme", "u7 stays", 9, 0.0)])
    erased_after_reading(filled, monkeypatch, segments_read)
    # Of what it has not read by then, it learns that it is gone; else it is fenced.
    with contextlib.nullcontext() if segments_read == 1 else pytest.raises(Fenced):
        filled.land()
    assert holding(data_dir(filled), MARKER) == []
    assert filled.bodies() == LEFT + Counter({"u7 stays": 1})
    assert balance(filled.config).problems == []


def test_a_merge_that_was_on_its_way_cannot_bring_anything_back(filled: KnownLake) -> None:
    filled.land()
    table = filled.table()
    file = next(each.file for each in live_files(table) if each.file.partition[0] == "acme")
    merged = copy_of(file, "-merged")
    filled.erase(WHERE)
    with pytest.raises(Conflict):
        Committer(filled.catalog, deadline_seconds=20).replace(table, [file], [merged])
    # What it wrote for that last attempt names only what it wrote, and that is gone.
    filled.erase(WHERE)
    assert_erased(filled)


@pytest.mark.slow
def test_the_replacement_of_a_file_is_searched(filled: KnownLake, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.land()
    overwrite, committer = Committer.overwrite, Committer(filled.catalog, deadline_seconds=20)
    waiting = [True]

    def overtaken(self: Committer, table: Any, *given: Any, **facts: Any) -> Any:
        if waiting:
            waiting.pop()
            file = next(each.file for each in live_files(table) if each.file.partition[0] == "acme")
            committer.replace(table, [file], [copy_of(file, "-compacted")])
        return overwrite(self, table, *given, **facts)

    monkeypatch.setattr(Committer, "overwrite", overtaken)
    assert filled.erase(WHERE).is_proven
    assert_erased(filled)


def copy_of(file: DataFile, suffix: str) -> DataFile:
    """The same rows under another name, as a merge of one file would write them."""
    path = file.file_path.replace(".parquet", f"{suffix}.parquet")
    shutil.copy(file.file_path, path)
    copy = DataFile(*file._data)
    copy._data[1] = path
    copy.spec_id = file.spec_id
    return copy


@pytest.mark.slow
def test_a_tenant_that_keeps_sending_such_rows_does_not_prevent_the_end(
    filled: KnownLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    prove = TableEraser.prove

    def meanwhile(self: TableEraser, segments_left: int) -> Proof:
        if self.report.table == "logs":
            filled.now = time.time() + 60
            filled.fill([("acme", f"u42 {MARKER} later", 9, 0.0)])
        return prove(self, segments_left)

    monkeypatch.setattr(TableEraser, "prove", meanwhile)
    report = filled.erase(WHERE)
    assert report.is_proven
    assert filled.bodies() - LEFT == Counter({f"u42 {MARKER} later": 1})


@pytest.mark.slow
def test_rows_from_before_the_cut_that_are_still_there_are_not_proven_away(
    filled: KnownLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    prove = TableEraser.prove

    def meanwhile(self: TableEraser, segments_left: int) -> Proof:
        filled.now = time.time() - 3600
        filled.fill([("acme", f"u42 {MARKER} late", 9, 0.0)])
        return prove(self, segments_left)

    monkeypatch.setattr(TableEraser, "prove", meanwhile)
    report = filled.erase(WHERE)
    assert not report.is_proven
    assert report.tables[0].proof.matches == 1
    assert "NOT PROVEN" in report.text()


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
