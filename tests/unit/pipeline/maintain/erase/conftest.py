"""A lake with rows to erase."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.erasing import GONE, OTHERS, STAY
from tests.support.known_lake import KnownLake


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[KnownLake]:
    lake = KnownLake(tmp_path / "data")
    with contextlib.closing(lake):
        yield lake


@pytest.fixture
def filled(lake: KnownLake) -> KnownLake:
    """Landed in two commits, and some not yet."""
    lake.fill([*GONE[:2], *STAY[:3], *OTHERS[:2]], [*GONE[2:4], *STAY[3:5], *OTHERS[2:]])
    lake.write([*GONE[4:], *STAY[5:]])
    return lake
