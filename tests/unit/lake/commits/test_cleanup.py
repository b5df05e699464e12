"""What was written for a commit that lost goes at once; what any snapshot needs stays."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile

from frazil.config import Config
from frazil.errors import Fenced
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.commits.cleanup import discard
from frazil.lake.commits.commit import Checkpoint, Committer, read_checkpoint
from frazil.lake.live_files import live_files
from frazil.lake.upkeep.expire import expire
from frazil.pipeline.datafile import Layout, write_part
from frazil.pipeline.partition_sort import Part
from frazil.tables import SET_ASIDE
from tests.support.lake.history import IDENTIFIER, History, rows_of


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with contextlib.closing(open_catalog(Config.model_validate({"data_dir": tmp_path}))) as catalog:
        ensure_namespace(catalog, "otel")
        yield History(catalog)


def written(catalog: Catalog) -> tuple[Checkpoint, DataFile]:
    checkpoint = read_checkpoint(catalog, IDENTIFIER)
    layout = Layout.of(checkpoint.table, SET_ASIDE, 1)
    return checkpoint, write_part(layout, Part(None, None, rows_of("mine")), layout.batch)


def manifests(history: History) -> set[str]:
    return {name for name in history.names() if name.endswith("-m0.avro")}


def test_files_and_manifests_of_a_commit_that_was_fenced_go_and_no_others(history: History) -> None:
    history.land()
    checkpoint, file = written(history.catalog)
    history.land()
    before = manifests(history)
    with pytest.raises(Fenced):
        Committer(history.catalog, deadline_seconds=60).append(checkpoint, [file], "mine")
    assert manifests(history) > before
    discard(checkpoint.table, [file])
    assert not Path(file.file_path).exists()
    assert manifests(history) == before
    history.assert_kept_are_whole()


def test_what_was_committed_after_all_stays_even_if_its_snapshot_has_expired(history: History) -> None:
    checkpoint, file = written(history.catalog)
    Committer(history.catalog, deadline_seconds=60).append(checkpoint, [file], "mine")  # the answer is lost
    history.shown[history.main] = history.read(history.main)
    history.land()
    expire(history.catalog, history.table, history.ids[:-1])
    discard(checkpoint.table, [file])
    assert file.file_path in {each.file.file_path for each in live_files(history.table)}
    history.assert_kept_are_whole()


def test_what_only_an_old_snapshot_needs_stays(history: History) -> None:
    history.land()
    (live,) = live_files(history.table)
    history.rewrite()
    discard(history.table, [live.file])
    history.assert_kept_are_whole()


def test_nothing_goes_while_a_snapshot_cannot_be_read_or_another_table_has_the_name(history: History) -> None:
    checkpoint, file = written(history.catalog)
    lost = Path(history.table.metadata.snapshots[0].manifest_list)
    content = lost.read_bytes()
    lost.unlink()
    discard(checkpoint.table, [file])
    assert Path(file.file_path).exists()
    lost.write_bytes(content)
    history.catalog.drop_table(IDENTIFIER)
    discard(checkpoint.table, [file])
    History(history.catalog)
    discard(checkpoint.table, [file])
    assert Path(file.file_path).exists()
