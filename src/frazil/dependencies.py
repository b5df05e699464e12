"""Checks of dependencies for health endpoints: the WAL's store or brokers, the catalog, the warehouse.

A check runs only when a health endpoint is requested. Its result is kept for 10 seconds, a problem for 2: a
store gets few requests, and no health response waits long for a store that hangs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Literal

from frazil.config import Config
from frazil.errors import FrazilError

Check = Callable[[], str]
"""Returns a problem, or an empty string. A FrazilError that it raises is a problem too."""
Dependency = Literal["wal", "catalog", "warehouse"]

_AGE_SECONDS_MAX = 10.0
_PROBLEM_AGE_SECONDS_MAX = 2.0
_WAIT_SECONDS_MAX = 2.0
"""Less than the 3 seconds that `frazil status` waits for a health response."""
_BROKERS_SECONDS_MAX = 1.5
"""Less than a health response waits, so that the response has the reason."""


class Checked:
    """The last result of a check. One check runs at a time, in a thread of its own."""

    def __init__(
        self,
        check: Check,
        *,
        age_max_seconds: float = _AGE_SECONDS_MAX,
        wait_seconds: float = _WAIT_SECONDS_MAX,
    ) -> None:
        self._check = check
        self._age_max = age_max_seconds
        self._wait = wait_seconds
        self._lock = threading.Lock()
        self._result: Future[str] | None = None
        self._begun = self._ended = 0.0

    def begin(self) -> None:
        """Start a check if the last result is too old. Does not wait."""
        with self._lock:
            if self._result is not None:
                age_max = self._age_max
                if self._result.done() and self._result.result():
                    age_max = min(age_max, _PROBLEM_AGE_SECONDS_MAX)
                if not self._result.done() or time.monotonic() - self._ended < age_max:
                    return
            self._result, self._begun = Future(), time.monotonic()
            threading.Thread(target=self._run, args=(self._result,), name="health-check", daemon=True).start()

    def problem(self) -> str:
        """Return the problem, or an empty string. A check that takes too long is a problem."""
        self.begin()
        with self._lock:
            result, begun = self._result, self._begun
        assert result is not None  # noqa: S101
        try:
            return result.result(max(0.0, begun + self._wait - time.monotonic()))
        except TimeoutError:
            return f"no response for {time.monotonic() - begun:.0f} s"

    def _run(self, result: Future[str]) -> None:
        try:
            problem = self._check()
        except FrazilError as error:
            problem = str(error)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        self._ended = time.monotonic()
        result.set_result(problem)


class Dependencies:
    """The checks of a role's dependencies, by name."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checked = {name: Checked(check) for name, check in checks.items()}

    def problems(self) -> dict[str, str]:
        """Return problems by the names of their checks. All checks run concurrently."""
        for checked in self._checked.values():
            checked.begin()
        found = {name: checked.problem() for name, checked in self._checked.items()}
        return {name: problem for name, problem in found.items() if problem}


def checks_of(config: Config, *names: Dependency) -> dict[str, Check]:
    """Return checks of the named dependencies, except those on the local disk."""
    made = {"wal": _wal_check, "catalog": _catalog_check, "warehouse": _warehouse_check}
    return {name: check for name in names if (check := made[name](config)) is not None}


def reachable_check(config: Config) -> Check | None:
    """Return a check that the WAL's store or brokers respond; None for a local WAL. The check needs only the
    permission to write, which may be all that a receiver has.
    """
    if config.wal.type != "s3":
        return _wal_check(config)
    from frazil.wal.store import open_bucket

    store = open_bucket(config.wal.s3, config.wal.write_timeout_seconds)

    def reach_store() -> str:
        store.check_reachable()
        return ""

    return reach_store


def _wal_check(config: Config) -> Check | None:
    if config.wal.type == "kafka":
        from frazil.tables import SIGNALS
        from frazil.wal.kafka.topics import Topics

        assert config.wal.kafka is not None  # the configuration has checked that  # noqa: S101
        topics = Topics(config.wal.kafka, timeout_seconds=_BROKERS_SECONDS_MAX)

        def ask_brokers() -> str:
            topics.check(SIGNALS[0])
            return ""

        return ask_brokers
    if config.wal.type != "s3":
        return None
    from frazil.wal.store import open_store

    store = open_store(config)

    def list_store() -> str:
        store.children("health/")
        return ""

    return list_store


def _catalog_check(config: Config) -> Check | None:
    if config.lake.catalog.type == "sqlite":
        return None
    from frazil.lake.catalog import CatalogProbe

    probe = CatalogProbe(config)

    def ask_catalog() -> str:
        probe.check()
        return ""

    return ask_catalog


def _warehouse_check(config: Config) -> Check | None:
    """Return a check of a warehouse on S3; None for a local one, or if only the catalog has credentials."""
    if not config.warehouse.startswith("s3://"):
        return None
    if config.lake.catalog.type == "rest" and config.lake.s3.access_key_id is None:
        return None
    from frazil.lake.files import LakeFileIO, file_properties

    files = LakeFileIO(file_properties(config))

    def list_warehouse() -> str:
        files.list(f"{config.warehouse}/health")
        return ""

    return list_warehouse
