"""Fixtures of the tests of tables as queries see them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog

import frazil.query.lake
from frazil.config import Config
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.commits.commit import Checkpoint
from frazil.lake.tables import open_table
from frazil.position import LandingPosition
from frazil.query.lake import Lake
from frazil.tables import landed_spec
from tests.support.query.lake_table import at
from tests.support.wal_stores import HandClock


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config.model_validate({"data_dir": tmp_path, "query": {"metadata_age_max_seconds": 1}})


@pytest.fixture
def catalog(config: Config) -> Iterator[Catalog]:
    with contextlib.closing(open_catalog(config)) as catalog:
        ensure_namespace(catalog, "otel")
        yield catalog


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine must not look like a slow catalog."""
    monkeypatch.setattr(frazil.query.lake, "_WAIT_SECONDS", 60)


@pytest.fixture
def lake(config: Config, catalog: Catalog, clock: HandClock) -> Iterator[Lake]:
    with contextlib.closing(Lake(config, clock=clock)) as lake:
        yield lake


@pytest.fixture
def logs(catalog: Catalog) -> Checkpoint:
    return open_table(catalog, "otel", landed_spec("logs"), LandingPosition(at(0)).to_text())
