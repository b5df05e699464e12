"""Fixtures of the fault tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.components.fullness import FaultControl
from tests.components.memory import memory_folder


@pytest.fixture
def disk() -> Iterator[Path]:
    """What `faults` strikes. SIGKILL leaves the page cache standing, so memory serves a sweep as well as a
    disk, and spares it minutes of syncs.
    """
    with memory_folder() as folder:
        yield folder


@pytest.fixture
def faults(tmp_path: Path, disk: Path, fault_shim: Path) -> Iterator[FaultControl]:
    """Over everything below `disk`."""
    with FaultControl(tmp_path / "faults", under=disk, shim=fault_shim) as control:
        yield control
