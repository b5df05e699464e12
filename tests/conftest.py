"""Fixtures for all tests. Components that cannot be had fail in CI and skip elsewhere."""

from __future__ import annotations

import functools
import logging
import os
import re
import signal
import sys
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import hypothesis
import pytest
import structlog
from xdist.scheduler import LoadFileScheduling

from tests.support.spark.quick_java import use_quick_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

pytest_plugins = ["tests.components.fixtures"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in what a shell starts with `&`. Programs that tests start would inherit it, and not hear Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

use_quick_java()

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("busy machine", deadline=None)
hypothesis.settings.load_profile("busy machine")

LONG = {
    "tests/spark/test_cluster_takeover.py": 700,
    "tests/integration/test_pipeline_kills.py": 560,
    "spark": 500,
    "tests/integration/test_pipeline_kafka.py": 340,
    "tests/fault/test_keep_kill.py": 200,
    "browser": 300,
    "tests/integration/test_up_troubles.py": 250,
    "tests/spark/test_session.py": 200,
    "tests/fault/test_tier_kill.py": 100,
    "tests/integration/test_earlier_release.py": 170,
    "tests/integration/test_query_isolation.py": 125,
    "tests/integration/test_telemetry.py": 110,
    "tests/spark/test_cluster.py": 90,
    "tests/integration/test_private_files.py": 90,
    "tests/spark/test_land_cluster.py": 80,
    "tests/fault/test_store_down.py": 80,
    "tests/integration/test_pipeline_up.py": 70,
    "tests/integration/test_iceberg_catalog.py": 60,
    "tests/integration/test_first_start.py": 60,
}
"""About how many seconds the longest scopes take. They are started first: one that is started last runs
alone in the end.
"""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark for all tests of it, started by the first that asks: local[2], 1 GiB of heap, every jar.

    For a catalog of your own: `spark_session(config)` gives a session beside.
    """
    from tests.support.spark.land_lake import spark_with_every_jar

    with spark_with_every_jar(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """A command that a test runs in this process configures logging, to a stream that ends with the test."""
    root = logging.getLogger()
    handlers, level, configured = root.handlers[:], root.level, structlog.is_configured()
    yield
    if structlog.is_configured() and not configured:
        root.handlers[:] = [*handlers]
        root.setLevel(level)
        logging.captureWarnings(False)
        structlog.reset_defaults()


@pytest.fixture(autouse=True)
def _no_views() -> Iterator[None]:
    """A process knows the views of the lake that it last looked at."""
    yield
    if (tables := sys.modules.get("frazil.tables")) is not None:
        tables.forget_views()


@pytest.fixture(autouse=True)
def _same_umask() -> Iterator[None]:
    """A role that runs in this process sets its umask, which would hold for later tests too."""
    before = os.umask(0)
    os.umask(before)
    yield
    os.umask(before)


class FilesAndSpark(LoadFileScheduling):
    """The tests of a file go to one worker, and so do all files that use the one Spark: each worker that is
    asked for it would start a JVM of its own. Likewise those that look at the one `frazil up` in a browser.
    """

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # by number of tests, which says nothing here
        self._root = config.rootpath
        self._is_sorted = False

    def _assign_work_unit(self, node: WorkerController) -> None:
        if not self._is_sorted:
            by_length = sorted(self.workqueue.items(), key=lambda unit: -LONG.get(unit[0], 0))
            self.workqueue = OrderedDict(by_length)
            self._is_sorted = True
        super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        """Gives a worker more only when it is at its last test: xdist would at its last but one. What waits
        behind a long test could run on another worker.
        """
        if self.workqueue and self._pending_of(self.assigned_work[node]) > 1:
            return
        super()._reschedule(node)

    def _split_scope(self, nodeid: str) -> str:
        return self._scope(super()._split_scope(nodeid))

    @functools.cache  # noqa: B019  one scheduler a run
    def _scope(self, file: str) -> str:
        if file.startswith("tests/browser/"):
            return "browser"
        text = (self._root / file).read_text(encoding="utf-8")
        return "spark" if re.search(r"\bspark: SparkSession\b", text) else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesAndSpark | None:
    """In place of the usual one; any other that is asked for with --dist is given."""
    return FilesAndSpark(config, log) if config.getoption("dist") == "load" else None
