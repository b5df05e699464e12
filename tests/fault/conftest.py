"""Fixtures of the fault tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.components.fullness import FaultControl


@pytest.fixture
def faults(tmp_path: Path, fault_shim: Path) -> Iterator[FaultControl]:
    """Over everything below `tmp_path / "disk"`."""
    with FaultControl(tmp_path / "faults", under=tmp_path / "disk", shim=fault_shim) as control:
        yield control
