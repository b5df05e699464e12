"""A clock that was ahead and is set back: no version of a table may be older than the one before it by more
than Java bears, which is a minute, or Spark refuses to read the table.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from frazil.config import Config
from frazil.config.maintain import ExpireConfig
from frazil.errors import CatalogUnavailable
from frazil.lake import staging
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.expire import expire_old
from frazil.lake.properties import set_properties
from frazil.lake.tags import create_tag, delete_tag
from tests.unit.lake.history import History

_BORNE_MS = 60_000


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with contextlib.closing(open_catalog(Config.model_validate({"data_dir": tmp_path}))) as catalog:
        ensure_namespace(catalog, "otel")
        yield catalog


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


@pytest.mark.parametrize("change", CHANGES)
def test_what_makes_no_snapshot_waits_until_the_clock_has_caught_up(
    history: History, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    landed_ahead(history, monkeypatch, 600)
    location = history.table.metadata_location
    with pytest.raises(CatalogUnavailable, match=r"(5\d\d|600) s ahead"):
        CHANGES[change](history)
    assert history.table.metadata_location == location
    history.land()
    history.rewrite()
    assert_java_would_read(history)
    history.assert_kept_are_whole()


@pytest.mark.parametrize("change", CHANGES)
def test_clocks_that_differ_by_a_little_are_no_reason_to_wait(
    history: History, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    landed_ahead(history, monkeypatch, 20)
    CHANGES[change](history)
    history.land()
    assert_java_would_read(history)
