"""Requests for an erasure that are refused, and what the operator must confirm."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from frazil.errors import QueryInvalid, QueryRefused, Refused
from frazil.lake.commits.commit import Committer
from frazil.lake.live_files import live_files
from frazil.lake.tags import create_tag, list_tags
from frazil.lake.upkeep.expire import expire
from frazil.ledger import balance
from frazil.pipeline.maintain.erase.request import EverythingMatches
from frazil.wal.names import SegmentName
from tests.support.erasing import GONE, MARKER, OTHERS, STAY, WHERE, assert_erased, copy_of, data_dir, refused
from tests.support.known_lake import STREAM, KnownLake


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


def test_an_unknown_tenant_is_refused_with_the_names_of_those_that_there_are(filled: KnownLake) -> None:
    refused(filled, Refused, r"no tenant acne.*acme.*globex.*did you mean acme", tenant="acne")
    refused(filled, Refused, "not a valid tenant id", tenant="../etc")


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
