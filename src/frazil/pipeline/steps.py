"""The steps of the pipeline. Each runs in its own thread, so a blocked or failing step delays no other."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import structlog

from frazil.errors import FrazilError, Permanent, Stopped
from frazil.pipeline.metrics import Metrics
from frazil.pipeline.runner import Pool
from frazil.times import backoff_seconds

BACKOFF_SECONDS = 1.0
BACKOFF_SECONDS_MAX = 60.0

log = structlog.get_logger("frazil.pipeline")


class Step(ABC):
    """A part of the pipeline's work, for one table or for all of them, that runs round after round."""

    part: ClassVar[str]
    """The kind of work, for logs and thread names."""
    pool: ClassVar[Pool] = "land"
    """The Spark scheduler pool of the step's jobs."""
    stop_seconds: ClassVar[float] = 10.0
    """How long to wait for the end of a round when the pipeline stops."""

    def __init__(self, table: str | None = None) -> None:
        """A step without a `table` does not make the pipeline unhealthy: its failures are only logged."""
        self.table = table
        self._cancelled = threading.Event()

    @property
    def name(self) -> str:
        return self.part if self.table is None else f"{self.part} {self.table}"

    @property
    def waiting(self) -> Mapping[str, str]:
        """Work that waits for an operator's decision: name and reason."""
        return {}

    @property
    def degraded(self) -> Mapping[str, str]:
        """Problems that do not make the pipeline unready: name and reason."""
        return {}

    @abstractmethod
    def run(self) -> float:
        """Runs one round. Returns the seconds until the next one."""

    def reset(self) -> None:  # noqa: B027
        """Drops cached state and open resources. Called in the step's thread after a failure and at
        the end.
        """

    def cancel(self) -> None:
        """Makes the current round end early. Called from any thread; no further round follows."""
        self._cancelled.set()

    def check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise Stopped("the pipeline is stopping")


class StepThread:
    """Runs a step when it is due. After failures, waits with exponential backoff."""

    def __init__(
        self,
        step: Step,
        metrics: Metrics,
        spark_died: Callable[[], bool] = lambda: False,
    ) -> None:
        self.step = step
        self.problem = ""
        self._metrics = metrics
        self._spark_died = spark_died
        self._failures = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=step.name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def cancel(self) -> None:
        """Cancels the step. Does not wait for the current round."""
        self._stopping.set()
        self.step.cancel()

    def join(self, seconds: float) -> bool:
        """Waits for the current round. Returns whether the thread has ended."""
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._stopping.wait(self.turn())
        self._reset()

    def turn(self) -> float:
        """Runs one round. Returns the seconds until the next one."""
        try:
            seconds = self.step.run()
        except BaseException as error:  # a panic in a Rust extension is not an Exception
            return self._failed(error)
        self._failures = 0
        if self.step.table is not None:
            self._metrics.succeeded(self.step.table, self.step.part)
        if self.problem:
            self.problem = ""
            log.info(f"{self.step.part} resumed", **self._labels())
        return seconds

    def _failed(self, error: BaseException) -> float:
        self._reset()
        pause = backoff_seconds(self._failures + 1, BACKOFF_SECONDS, BACKOFF_SECONDS_MAX)
        if isinstance(error, Stopped) or self._stopping.is_set():
            return pause
        died, is_permanent = self._spark_died(), isinstance(error, Permanent)
        is_known = isinstance(error, FrazilError)
        self.problem = "Spark died" if died and not is_known else str(error) or repr(error)
        self._failures += 1
        seconds = BACKOFF_SECONDS_MAX if is_permanent else pause
        if self.step.table is not None:
            self._metrics.failed(self.step.table, stopped=is_permanent, part=self.step.part)
        write_log = log.warning if (is_known or died) and not is_permanent else log.error
        write_log(
            f"{self.step.part} "
            + ("stopped: operator action required" if is_permanent else "failed; retrying"),
            **self._labels(),
            reason=self.problem,
            again_in_seconds=seconds,
            exc_info=None if is_known or died else error,
        )
        return seconds

    def _reset(self) -> None:
        """Logs errors instead of raising them: an error would end the thread, and the step would not run
        again.
        """
        try:
            self.step.reset()
        except Exception as error:
            log.warning(f"{self.step.part} not reset", **self._labels(), reason=str(error) or repr(error))

    def _labels(self) -> dict[str, str]:
        return {} if self.step.table is None else {"table": self.step.table}


class StepRunner:
    """The threads of all steps. If several steps of a table fail, `problems` has the first step's reason."""

    def __init__(
        self, steps: Sequence[Step], metrics: Metrics, spark_died: Callable[[], bool] = lambda: False
    ) -> None:
        self.threads = [StepThread(step, metrics, spark_died) for step in steps]

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def cancel(self) -> None:
        """Cancels all steps. Does not wait for their rounds. May be called from any thread."""
        for thread in self.threads:
            thread.cancel()

    def stop(self) -> None:
        """Cancels all steps and waits for each at most `Step.stop_seconds`. An abandoned round loses
        no data.
        """
        self.cancel()
        begin = time.monotonic()
        for thread in self.threads:
            if not thread.join(max(0.0, begin + thread.step.stop_seconds - time.monotonic())):
                log.warning("pipeline step abandoned: not finished in time", step=thread.step.name)

    @property
    def problems(self) -> dict[str, str]:
        """The reason of the first failing step, by table."""
        found: dict[str, str] = {}
        for thread in self.threads:
            if thread.step.table is not None and thread.problem:
                found.setdefault(thread.step.table, thread.problem)
        return found

    @property
    def waiting(self) -> dict[str, str]:
        return {name: reason for thread in self.threads for name, reason in thread.step.waiting.items()}

    @property
    def degraded(self) -> dict[str, str]:
        return {name: reason for thread in self.threads for name, reason in thread.step.degraded.items()}
