"""Drivers of Spark as processes of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.spark.driver import Driver

HERE = Path(__file__).parent
# PySpark leaves closing the sockets that results come through to the garbage collector.
UNCLOSED_SOCKETS = "ignore:unclosed <socket.socket .*127.0.0.1:ResourceWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(UNCLOSED_SOCKETS))


@pytest.fixture
def start_driver(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """Starts drivers of Spark as processes of their own, in an empty folder; each ends with the test."""
    with contextlib.ExitStack() as stack:

        def start(environment: dict[str, str] | None = None, **sections: object) -> Driver:
            folder, data = tmp_path / "driver", tmp_path / "data"
            folder.mkdir()
            data.mkdir()
            config = {"data_dir": str(data), **sections}
            return stack.enter_context(Driver(config, folder, environment or {}))

        yield start
