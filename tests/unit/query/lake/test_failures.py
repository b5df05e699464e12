"""A catalog and a store that fail: the last known version is used, and errors say what is wrong."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

import frazil.query.lake
from frazil.config import Config
from frazil.errors import CatalogUnavailable, StoreUnavailable
from frazil.lake.catalog import metadata_location, open_catalog
from frazil.lake.commits.commit import Checkpoint
from frazil.query.lake import Lake
from frazil.query.model import AsOf
from tests.support.lake.http_stub import Request, http_stub
from tests.support.query.lake_table import LOGS, at, land, names, version
from tests.support.wal_stores import HandClock


def test_a_catalog_that_is_gone_leaves_what_was_last_known_and_is_used_again_when_it_is_back(
    lake: Lake, catalog: Catalog, logs: Checkpoint, clock: HandClock, config: Config, tmp_path: Path
) -> None:
    land(catalog, 1, "a")
    loaded_at = clock.seconds
    assert version(lake).stale is None
    config.catalog_file.rename(tmp_path / "away")
    clock.seconds += 2
    stale = version(lake)
    assert (names(stale), stale.position, stale.loaded_at) == (["a"], at(1), loaded_at)
    assert stale.stale is not None
    assert "has not responded since 20" in stale.stale
    assert "catalog.db is missing" in stale.stale
    assert version(lake, AsOf(tag="landed")).stale == stale.stale, "a tag may have moved"
    assert version(lake, AsOf(snapshot_id=stale.snapshot_id)).stale is None, "a snapshot never does"
    assert not config.catalog_file.exists()
    (tmp_path / "away").rename(config.catalog_file)
    land(catalog, 2, "b")
    assert version(lake).stale == stale.stale
    clock.seconds += 10
    found = version(lake)
    assert (found.stale, names(found)) == (None, ["a", "b"])


def test_a_catalog_in_another_file_of_the_same_name_is_opened_anew(
    lake: Lake, catalog: Catalog, logs: Checkpoint, clock: HandClock, config: Config, tmp_path: Path
) -> None:
    version(lake)
    copy = tmp_path / "copy"
    copy.write_bytes(config.catalog_file.read_bytes())
    copy.rename(config.catalog_file)
    with contextlib.closing(open_catalog(config)) as other:
        land(other, 1, "a")
    clock.seconds += 2
    assert names(version(lake)) == ["a"]


def test_a_catalog_that_hangs_is_not_waited_for_where_something_is_known(
    lake: Lake,
    catalog: Catalog,
    logs: Checkpoint,
    clock: HandClock,
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    land(catalog, 1, "a")
    version(lake)
    land(catalog, 2, "b")
    clock.seconds += 4
    with contextlib.closing(sqlite3.connect(config.catalog_file)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        with monkeypatch.context() as hurry:
            hurry.setattr(frazil.query.lake, "_WAIT_SECONDS", 0.01)
            stale = version(lake)
            assert stale.stale == "the catalog is slow to respond; its state of 4 s ago is used"
            assert names(stale) == ["a"]
        holder.rollback()
    found = version(lake)
    assert (found.stale, names(found)) == (None, ["a", "b"])


def test_a_catalog_that_never_answered_is_an_error_and_is_left_in_peace_for_a_while(
    config: Config, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def count(config: Config) -> Catalog:
        tries.append(clock.seconds)
        return open_catalog(config)

    monkeypatch.setattr(frazil.query.lake, "open_catalog", count)
    config.catalog_file.mkdir(parents=True)
    with contextlib.closing(Lake(config, clock=clock)) as lake:
        for _ in range(5):
            with pytest.raises(CatalogUnavailable, match="unable to open database"):
                lake.version("logs")
        assert len(tries) == 1
        clock.seconds += 10
        config.catalog_file.rmdir()
        assert lake.version("logs") is None


@pytest.mark.parametrize("what", ["*.metadata.json", "snap-*.avro", "*-m0.avro"])
@pytest.mark.parametrize("how", ["garbage", "gone"])
def test_metadata_that_cannot_be_read_is_the_stores_failure(
    lake: Lake, catalog: Catalog, logs: Checkpoint, clock: HandClock, what: str, how: str
) -> None:
    version(lake)
    land(catalog, 1, "a")
    clock.seconds += 2
    for file in Path(logs.table.location(), "metadata").glob(what):
        if how == "gone":
            file.unlink()
        else:
            file.write_bytes(b"garbage")
    with pytest.raises(StoreUnavailable, match=r"is missing|cannot be read"):
        version(lake)


def test_a_manifest_that_expired_on_the_way_is_looked_for_in_newer_metadata(
    lake: Lake, catalog: Catalog, logs: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(catalog, 1, "a")
    old = catalog.load_table(LOGS)
    land(catalog, 2, "b")
    snapshot = old.current_snapshot()
    assert snapshot is not None
    Path(snapshot.manifest_list).unlink()
    answers = [old.metadata_location]

    def ask(*args: Any) -> str | None:
        return answers.pop() if answers else metadata_location(*args)

    monkeypatch.setattr(frazil.query.lake, "metadata_location", ask)
    assert names(version(lake)) == ["a", "b"]


def test_a_rest_catalog_is_asked_for_the_table_and_may_fail_too(
    catalog: Catalog, logs: Checkpoint, clock: HandClock, tmp_path: Path
) -> None:
    down = False

    def answer(request: Request) -> tuple[int, Any]:
        if request.path.startswith("/v1/config"):
            return 200, {"defaults": {}, "overrides": {}}
        if down:
            return 503, {"error": {"message": "come again", "type": "Unavailable", "code": 503}}
        if not request.path.endswith("/namespaces/otel/tables/logs"):
            return 404, {"error": {"message": "none", "type": "NoSuchTableException", "code": 404}}
        table = catalog.load_table(LOGS)
        metadata = json.loads(Path(table.metadata_location).read_bytes())
        return 200, {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}

    land(catalog, 1, "a")
    with http_stub(answer) as server:
        settings = {"catalog": {"type": "rest", "rest": {"uri": server.url}}}
        config = Config.model_validate({"data_dir": tmp_path / "other", "lake": settings})
        with contextlib.closing(Lake(config, clock=clock)) as lake:
            first = version(lake)
            assert (names(first), first.position) == (["a"], at(1))
            assert lake.version("spans") is None
            clock.seconds += 2
            assert version(lake).index is first.index
            land(catalog, 2, "b")
            clock.seconds += 2
            assert names(version(lake)) == ["a", "b"]
            down = True
            clock.seconds += 2
            stale = version(lake)
            assert names(stale) == ["a", "b"]
            assert stale.stale is not None
            assert "come again" in stale.stale
