"""What queries keep of a catalog: each fact is read once, and renewed on demand."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import structlog
from pyiceberg.catalog import Catalog

import frazil.query.lake
from frazil.config import Config
from frazil.lake.catalog import metadata_location
from frazil.lake.commits.commit import Checkpoint
from frazil.lake.files import LakeFileIO
from frazil.lake.tables import open_table
from frazil.query.lake import Lake, Manifests, TableVersion
from frazil.query.model import AsOf
from frazil.tables import SET_ASIDE
from tests.support.query.lake_table import LOGS, land, names, version
from tests.support.wal_stores import HandClock


class Opened(list[str]):
    """Names of files of the lake that were opened."""

    def count_of(self, ending: str) -> int:
        return sum(name.endswith(ending) for name in self)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    seen, real = Opened(), LakeFileIO.new_input

    def new_input(self: LakeFileIO, location: str) -> Any:
        seen.append(location)
        return real(self, location)

    monkeypatch.setattr(LakeFileIO, "new_input", new_input)
    return seen


def test_within_its_age_metadata_is_not_asked_for_again(
    lake: Lake, catalog: Catalog, logs: Checkpoint, clock: HandClock
) -> None:
    before = version(lake)
    land(catalog, 1, "a")
    clock.seconds += 1
    assert version(lake) == before
    clock.seconds += 0.5
    assert names(version(lake)) == ["a"]


def test_who_wants_it_renewed_gets_what_the_catalog_says_after_that(
    lake: Lake, catalog: Catalog, logs: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    version(lake)
    answered, answer = threading.Event(), threading.Event()

    def ask(*args: Any) -> str | None:
        found = metadata_location(*args)
        answered.set()
        assert answer.wait(60)
        return found

    monkeypatch.setattr(frazil.query.lake, "metadata_location", ask)
    with ThreadPoolExecutor(2) as threads:
        early = threads.submit(lake.version, "logs", renew=True)
        assert answered.wait(60)
        land(catalog, 1, "a")
        # This one comes while an answer is on its way that does not know of the file.
        late = threads.submit(lake.version, "logs", renew=True)
        while not late.running():
            threading.Event().wait(0.001)
        answer.set()
        assert early.result() is not None
        found = late.result()
    assert found is not None
    assert (names(found), found.stale) == (["a"], None)


def test_metadata_that_has_not_changed_is_not_read_again(
    lake: Lake, catalog: Catalog, logs: Checkpoint, clock: HandClock, opened: Opened
) -> None:
    land(catalog, 1, "a")
    opened.clear()
    for _ in range(5):
        assert version(lake).loaded_at == clock.seconds
        clock.seconds += 2
    assert opened.count_of(".metadata.json") == 1
    assert opened.count_of("-m0.avro") == 1


def test_each_manifest_is_read_once_however_many_snapshots_have_it(
    lake: Lake, catalog: Catalog, logs: Checkpoint, clock: HandClock, opened: Opened
) -> None:
    for number in range(4):
        land(catalog, number + 1, f"f{number}")
        opened.clear()
        assert len(names(version(lake))) == number + 1
        assert opened.count_of("-m0.avro") == 1
        clock.seconds += 2
    opened.clear()
    assert names(version(lake, AsOf(tag="landed"))) == ["f0", "f1", "f2", "f3"]
    assert opened == []


def test_manifests_are_forgotten_beyond_their_bound_but_never_those_in_use(
    catalog: Catalog, logs: Checkpoint, opened: Opened
) -> None:
    for number in range(4):
        land(catalog, number + 1, f"f{number}")
    table = catalog.load_table(LOGS)
    with contextlib.closing(Manifests(files_max=2, indexes_max=1)) as manifests:
        assert len(manifests.index(table, table.current_snapshot())) == 4
        opened.clear()
        older, *_ = (each for each in table.snapshots() if each.sequence_number == 3)
        assert len(manifests.index(table, older)) == 2
        assert opened.count_of("-m0.avro") == 0
        assert len(manifests.index(table, table.current_snapshot())) == 4
        assert opened.count_of("-m0.avro") == 2


def test_many_queries_at_once_ask_the_catalog_once(
    lake: Lake, logs: Checkpoint, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, together = [], threading.Barrier(8)

    def ask(*args: Any) -> str | None:
        asked.append(args)
        return metadata_location(*args)

    monkeypatch.setattr(frazil.query.lake, "metadata_location", ask)

    def query(_: int) -> TableVersion:
        together.wait()
        return version(lake)

    with ThreadPoolExecutor(8) as threads:
        for number in range(3):
            found = list(threads.map(query, range(8)))
            assert len(asked) == number + 1
            assert {each.loaded_at for each in found} == {clock.seconds}
            clock.seconds += 2


def test_what_is_warm_needs_no_file_to_be_read(
    lake: Lake, catalog: Catalog, logs: Checkpoint, opened: Opened
) -> None:
    open_table(catalog, "otel", SET_ASIDE, "no position")
    land(catalog, 1, "a")
    lake.warm()
    opened.clear()
    assert names(version(lake)) == ["a"]
    assert opened == []


def test_warming_up_without_a_catalog_is_quiet(config: Config) -> None:
    config.catalog_file.mkdir(parents=True)
    with contextlib.closing(Lake(config)) as lake:
        lake.warm()


@pytest.mark.parametrize("when", ["before", "during"])
def test_warming_up_a_lake_that_is_closed_is_quiet(
    lake: Lake, catalog: Catalog, logs: Checkpoint, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """`frazil query` closes it as soon as it has its result."""
    open_table(catalog, "otel", SET_ASIDE, "no position")
    land(catalog, 1, "a")
    real = lake.version

    def version_of_closed(*arguments: Any) -> TableVersion | None:
        lake.close()
        return real(*arguments)

    if when == "before":
        lake.close()
    else:
        monkeypatch.setattr(lake, "version", version_of_closed)
    with structlog.testing.capture_logs() as logged:
        lake.warm()
    assert logged == []


def test_names_that_mean_nothing_are_not_kept_without_end(lake: Lake) -> None:
    for number in range(300):
        assert lake.version(f"nobody{number}") is None
    assert len(lake._entries) <= 257
