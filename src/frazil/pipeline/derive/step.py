"""Derivation as a step of the pipeline, one for each source table."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from frazil.config import Config
from frazil.errors import Conflict, Fenced, Stopped
from frazil.pipeline.derive.deriver import Deriver
from frazil.pipeline.runner import Runner
from frazil.pipeline.steps import Step

_POLL_SECONDS = 0.5
_LOOK_SECONDS = 30.0
"""Interval between looks at the source without a landing of this pipeline: another may have landed before."""


T = TypeVar("T")


class Pace:
    """Allows rounds: on average one per interval, and two in a row. With one in a row, a landing soon after
    another would wait for the rest of the interval. With landings an interval apart, as they usually are, all
    later ones would wait as long. Measured: 55 s after a slow start of Spark.
    """

    def __init__(self, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        self._used_until = float("-inf")
        """When the rounds that have begun would have ended if each took an interval."""

    def allows(self, now: float) -> bool:
        return now >= self._used_until - self._interval_seconds

    def began(self, now: float) -> None:
        self._used_until = max(now, self._used_until) + self._interval_seconds


class DeriveStep(Step):
    """Derives after each landing of the source, on average at most once per `derive.interval_seconds`, and
    past days in between.
    """

    part = "derivation"
    pool = "derive"
    stop_seconds = 30.0  # time to commit a batch whose job is running

    def __init__(
        self,
        config: Config,
        deriver: Deriver,
        runner: Runner,
        is_command_running: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """While a command runs in this pipeline, no past day begins: the command may derive the same days."""
        super().__init__()
        self._is_command_running = is_command_running
        self.deriver = deriver
        self._runner = runner
        self._clock = clock
        self._landed = threading.Event()
        self._pace = Pace(config.derive.interval_seconds)
        self._looked = float("-inf")
        self._has_days = True
        self._problem = ""

    @property
    def name(self) -> str:
        return f"{self.part} {self.deriver.source}"

    @property
    def degraded(self) -> Mapping[str, str]:
        problems = self.deriver.problems
        if self._problem:
            problems[self.name] = self._problem
        return {
            name: f"rows are not derived; landing continues: {reason}" for name, reason in problems.items()
        }

    def landed(self) -> None:
        """Makes the next round due. Called from any thread."""
        self.deriver.landed()
        self._landed.set()

    def run(self) -> float:
        now = self._clock()
        if self._pace.allows(now) and (self._landed.is_set() or now >= self._looked + _LOOK_SECONDS):
            self._landed.clear()
            self._looked = now
            outcome = self._watched(self.deriver.round)
            if outcome == "derived":
                self._pace.began(now)
            if outcome == "more":
                self._landed.set()
                return 0.0
            self._has_days = True  # a round may have left days
        elif self._is_command_running():
            self._has_days = True  # the command may leave days
        elif self._has_days:
            try:
                self._has_days = self._watched(self.deriver.day)
            except (Conflict, Fenced):
                return _POLL_SECONDS
            return 0.0 if self._has_days else _POLL_SECONDS
        return _POLL_SECONDS

    def _watched(self, work: Callable[[], T]) -> T:
        """Does the work. Notes a failure that stops all tables of the source, until the work succeeds."""
        try:
            result = work()
        except (Conflict, Fenced, Stopped):
            raise
        except BaseException as error:  # a panic in a Rust extension is not an Exception
            if not self._cancelled.is_set():
                self._problem = str(error) or repr(error)
                self.deriver.note_failure()
            raise
        if self._problem:
            self._problem = ""
            self.deriver.note_recovery()
        return result

    def reset(self) -> None:
        self.deriver.reset()
        self._landed.set()  # after an error

    def cancel(self) -> None:
        """Cancels the running Spark job. Finishes the current commit."""
        super().cancel()
        self._runner.stop()
