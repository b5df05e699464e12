"""Tags on a real catalog: made once, kept apart by name, and safe beside landings and other makers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from frazil.config import Config
from frazil.errors import Conflict, Refused
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.tags import create_tag, delete_tag, hour_of, hour_tag, is_incident, kind_of, list_tags
from frazil.lake.upkeep.expire import expire
from tests.support.lake.history import History
from tests.unit.lake.upkeep.test_expire import applied_and_lost, first, inject, lost_on_the_way


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with contextlib.closing(open_catalog(Config.model_validate({"data_dir": tmp_path}))) as catalog:
        ensure_namespace(catalog, "otel")
        yield History(catalog)


@pytest.fixture
def other(tmp_path: Path, history: History) -> Iterator[Catalog]:
    with contextlib.closing(open_catalog(Config.model_validate({"data_dir": tmp_path}))) as catalog:
        yield catalog


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("main", "reserved"),
        ("landed", "reserved"),
        ("hour-20261115T10", "hour"),
        ("hour-20261115T24", "incident"),
        ("hour-long-outage", "incident"),
        ("reader-rollup", "reader"),
        ("incident-42", "incident"),
    ],
)
def test_the_name_says_what_a_tag_is_for(name: str, kind: str) -> None:
    assert kind_of(name) == kind
    assert is_incident(name) == (kind == "incident")


def test_an_hour_is_named_by_its_beginning_in_utc() -> None:
    hour = datetime(2026, 11, 15, 10, tzinfo=UTC)
    assert hour_tag(hour.astimezone()) == "hour-20261115T10"
    assert hour_of("hour-20261115T10") == hour


def test_a_tag_is_made_listed_and_deleted(history: History) -> None:
    at = history.land()
    history.land()
    made = create_tag(history.catalog, history.table, "incident-1", at)
    assert (made.name, made.table, made.snapshot_id, made.position) == (
        "incident-1",
        "set_aside",
        at,
        "at 1",
    )
    assert made.committed_at_ms == history.table.snapshot_by_id(at).timestamp_ms  # type: ignore[union-attr]
    assert list_tags(history.table) == [made]
    assert create_tag(history.catalog, history.table, "incident-1", at) == made
    assert delete_tag(history.catalog, history.table, "incident-1")
    assert not delete_tag(history.catalog, history.table, "incident-1")
    assert list_tags(history.table) == []


def test_names_that_are_taken_or_not_to_be_had_are_refused(history: History) -> None:
    at, newer = history.land(), history.land()
    create_tag(history.catalog, history.table, "x", at)
    version = history.table.metadata_location
    for name in ("x", "main", "landed", "hour-20261115T10", "a b", "", "-x", "é", "a/b", "x" * 101):
        with pytest.raises(Refused):
            create_tag(history.catalog, history.table, name, newer)
    with pytest.raises(Refused, match="no snapshot 12"):
        create_tag(history.catalog, history.table, "y", 12)
    for name in ("main", "landed"):
        with pytest.raises(Refused):
            delete_tag(history.catalog, history.table, name)
    assert history.table.metadata_location == version


@pytest.mark.parametrize("outcome", [applied_and_lost, lost_on_the_way])
def test_answers_that_were_lost_do_no_harm(
    outcome: object, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = history.land()
    inject(history.catalog, monkeypatch, outcome, outcome)  # type: ignore[arg-type]
    create_tag(history.catalog, history.table, "x", at)
    assert [tag.name for tag in list_tags(history.table)] == ["x"]
    inject(history.catalog, monkeypatch, outcome)  # type: ignore[arg-type]
    assert delete_tag(history.catalog, history.table, "x")
    assert list_tags(history.table) == []


def test_a_snapshot_that_expires_at_that_moment_cannot_be_tagged(
    history: History, other: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = history.land()
    history.land()
    inject(history.catalog, monkeypatch, first(lambda: expire(other, history.table, [at])))
    with pytest.raises(Refused, match="it may have expired"):
        create_tag(history.catalog, history.table, "x", at)
    assert list_tags(history.table) == []


def test_a_table_that_is_dropped_and_made_anew_gets_no_tag(
    history: History, other: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, table = history.land(), history.table

    def replace() -> None:
        other.drop_table(table.name())

    inject(history.catalog, monkeypatch, first(replace))
    with pytest.raises(Conflict):
        create_tag(history.catalog, table, "x", at)
