"""Fixtures of the tests of the tail."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.query.tail_wal import Wal


@pytest.fixture
def make_wal(tmp_path: Path) -> Iterator[Callable[..., Wal]]:
    with contextlib.ExitStack() as stack:

        def make(**settings: Any) -> Wal:
            made = Wal(tmp_path, **settings)
            stack.callback(made.tail.close)
            return made

        yield make


@pytest.fixture
def wal(make_wal: Callable[..., Wal]) -> Wal:
    return make_wal()
