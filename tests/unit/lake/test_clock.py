"""A clock that was ahead and is set back: no version of a table may be older than the one before it by more
than Java bears, which is a minute, or Spark refuses to read the table.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.types import StringType

from frazil.config.maintain import ExpireConfig
from frazil.lake.commits import staging
from frazil.lake.commits.metadata_commit import set_properties
from frazil.lake.live_files import all_facts, live_files
from frazil.lake.pyiceberg_compat import catalogs
from frazil.lake.snapshots import COMMITTED_AT
from frazil.lake.state.health import oldest_snapshot_seconds
from frazil.lake.tags import create_tag, delete_tag, list_tags
from frazil.lake.upkeep.expire import expire_old
from tests.support.lake.history import History

_BORNE_MS = 60_000


@pytest.fixture
def history(catalog: Catalog) -> History:
    made = History(catalog)
    made.land()
    create_tag(catalog, made.table, "before", made.main)
    return made


def landed_ahead(history: History, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    real = time.time
    with monkeypatch.context() as patched:
        patched.setattr(staging.time, "time", lambda: real() + seconds)
        history.land()


def assert_java_would_read(history: History) -> None:
    metadata = history.table.metadata
    for log in (metadata.metadata_log, metadata.snapshot_log):
        times = [*(entry.timestamp_ms for entry in log), metadata.last_updated_ms]
        assert all(later - before >= -_BORNE_MS for before, later in itertools.pairwise(times))


CHANGES: dict[str, Callable[[History], object]] = {
    "a tag": lambda history: create_tag(history.catalog, history.table, "incident-1", history.main),
    "no tag": lambda history: delete_tag(history.catalog, history.table, "before"),
    "a property": lambda history: set_properties(history.catalog, history.table, {"a": "b"}),
    "an expiry": lambda history: expire_old(
        history.catalog,
        history.table,
        ExpireConfig(snapshots_kept=1, kept_seconds=0),
        clock=lambda: time.time() + 10_000,
    ),
}


@pytest.mark.parametrize("seconds", [20, 600, 400 * 86_400])
@pytest.mark.parametrize("change", CHANGES)
def test_what_makes_no_snapshot_does_not_take_the_table_back_in_time(
    history: History, monkeypatch: pytest.MonkeyPatch, change: str, seconds: float
) -> None:
    landed_ahead(history, monkeypatch, seconds)
    location, updated = history.table.metadata_location, history.table.metadata.last_updated_ms
    CHANGES[change](history)
    assert history.table.metadata_location != location
    assert history.table.metadata.last_updated_ms >= updated
    assert_java_would_read(history)
    history.land()
    history.rewrite()
    assert_java_would_read(history)
    history.assert_kept_are_whole()


def test_a_column_that_a_table_gains_does_not_take_it_back_in_time(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    landed_ahead(history, monkeypatch, 400 * 86_400)
    with history.table.transaction() as transaction, transaction.update_schema() as update:
        update.add_column("more", StringType())
    assert "more" in history.table.schema().column_names
    assert_java_would_read(history)


def test_a_commit_that_a_change_by_a_clock_ahead_has_overtaken_does_not_either(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was staged before: its snapshot is of the time that it was."""
    real, commit = time.time, history.catalog.commit_table

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(history.catalog, "commit_table", commit)
        with monkeypatch.context() as patched:
            patched.setattr(catalogs, "time", _Ahead)
            set_properties(history.catalog, history.table, {"a": "b"})
        return commit(*arguments)

    monkeypatch.setattr(history.catalog, "commit_table", overtaken)
    history.land()
    assert history.table.metadata.last_updated_ms / 1000 > real() + 300 * 86_400
    assert_java_would_read(history)


class _Ahead:
    @staticmethod
    def time_ns() -> int:
        return time.time_ns() + 400 * 86_400 * 10**9


def test_each_snapshot_says_what_time_it_was_for_its_committer(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    landed_ahead(history, monkeypatch, 400 * 86_400)
    before = int(time.time() * 1000)
    history.land()
    history.rewrite()
    history.lose_rows()
    for snapshot in history.table.metadata.snapshots[-3:]:
        assert snapshot.summary is not None
        assert (
            before <= int(snapshot.summary[COMMITTED_AT] or 0) <= time.time() * 1000 < snapshot.timestamp_ms
        )


def test_tags_show_when_their_snapshots_were_committed(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    landed_ahead(history, monkeypatch, 400 * 86_400)
    history.land()
    made = create_tag(history.catalog, history.table, "incident-1", history.main)
    assert time.time() * 1000 - 60_000 < made.committed_at_ms <= time.time() * 1000
    assert made in list_tags(history.table)


def test_the_files_of_a_commit_are_not_from_a_time_to_come(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their day would not be closed, and so not merged, until then."""
    landed_ahead(history, monkeypatch, 400 * 86_400)
    history.land()
    commits = [fact.committed_seconds for fact in all_facts(live_files(history.table), history.table)]
    assert all(at is not None and at <= time.time() for at in commits)
    assert (oldest_snapshot_seconds(history.table.metadata) or 0) <= time.time()
