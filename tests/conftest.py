"""Fixtures for all tests. Components that cannot be had fail in CI and skip elsewhere."""

from __future__ import annotations

import functools
import os
import re
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer

pytest_plugins = ["tests.components.fixtures"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in what a shell starts with `&`. Programs that tests start would inherit it, and not hear Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark for all tests of it, started by the first that asks: local[2], 1 GiB of heap, every jar.

    For a catalog of your own: `spark_session(config)` gives a session beside.
    """
    from tests.support.spark.land_lake import spark_with_every_jar

    with spark_with_every_jar(tmp_path_factory.mktemp("spark")) as session:
        yield session


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
        config.option.loadscopereorder = False  # the long ones are in the folders that come first
        self._root = config.rootpath

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
