"""Erasure with data files that are missing, cannot be read, or were left by dead writers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from frazil.errors import DataLost, Refused
from frazil.lake.commits.commit import Committer
from frazil.lake.live_files import live_files
from frazil.lake.tags import create_tag
from tests.support.erasing import OTHERS, WHERE, assert_erased, copy_of, file_of, refused, torn
from tests.support.known_lake import KnownLake


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
