"""A table on a real SQL catalog, a committer to it, and somebody else who commits too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

from frazil.config import Config
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.commits.commit import Checkpoint, Committer, read_checkpoint
from frazil.lake.tables import open_table
from frazil.tables import SET_ASIDE
from tests.support.lake.commit_faults import IDENTIFIER, Sleep, data_file
from tests.support.wal_stores import HandClock


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.model_validate({"data_dir": tmp_path})


@pytest.fixture
def catalog(config: Config) -> Iterator[Catalog]:
    with contextlib.closing(open_catalog(config)) as catalog:
        ensure_namespace(catalog, "otel")
        yield catalog


@pytest.fixture
def other(config: Config, catalog: Catalog) -> Iterator[Catalog]:
    """Somebody else's connection, which no test tampers with."""
    with contextlib.closing(open_catalog(config)) as catalog:
        yield catalog


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def sleep(clock: HandClock) -> Sleep:
    return Sleep(clock)


@pytest.fixture
def committer(catalog: Catalog, clock: HandClock, sleep: Sleep) -> Committer:
    return Committer(catalog, deadline_seconds=600, clock=clock, sleep=sleep)


@pytest.fixture
def checkpoint(catalog: Catalog) -> Checkpoint:
    """Of a table in which one batch has landed."""
    made = open_table(catalog, "otel", SET_ASIDE, "at 0")
    Committer(catalog, deadline_seconds=600).append(made, [data_file(made, "zero")], "at 1")
    return read_checkpoint(catalog, IDENTIFIER)
