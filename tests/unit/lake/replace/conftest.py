"""Fixtures of the tests of replaced files."""

from __future__ import annotations

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from frazil.lake.commits.commit import Checkpoint
from tests.support.lake.commit_faults import IDENTIFIER
from tests.support.lake.replacing import land


@pytest.fixture
def landed(catalog: Catalog, checkpoint: Checkpoint) -> Table:
    """`zero`, and then `a` and `b` in one landing and `c` in another."""
    land(catalog, "a", "b")
    land(catalog, "c")
    return catalog.load_table(IDENTIFIER)
