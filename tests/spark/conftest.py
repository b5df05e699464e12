"""One Spark for all tests of it, started by the first that asks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from frazil.config import Config
from frazil.pipeline.session import spark_session, stop

from .driver import Driver

HERE = Path(__file__).parent
# PySpark leaves closing the sockets that results come through to the garbage collector.
UNCLOSED_SOCKETS = "ignore:unclosed <socket.socket .*127.0.0.1:ResourceWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(UNCLOSED_SOCKETS))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2], 1 GiB of heap. For a catalog of your own: `spark_session(config)` gives a session beside."""
    config = Config.model_validate(
        {
            "data_dir": tmp_path_factory.mktemp("spark"),
            "spark": {
                "master": "local[2]",
                "driver_memory_bytes": "1GiB",
                "settings": {"spark.frazil.tests.password": "swordfish"},
            },
        }
    )
    session = spark_session(config, app_name="frazil-tests")
    yield session
    stop(session)


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
