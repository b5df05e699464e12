"""Fixtures for all tests. Components that cannot be had fail in CI and skip elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["tests.components.fixtures"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark for all tests of it, started by the first that asks: local[2], 1 GiB of heap, every jar.

    For a catalog of your own: `spark_session(config)` gives a session beside.
    """
    from tests.spark.land_lake import spark_with_every_jar

    with spark_with_every_jar(tmp_path_factory.mktemp("spark")) as session:
        yield session
