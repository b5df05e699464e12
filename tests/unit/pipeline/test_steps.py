"""Steps in their own threads: a blocked or failing step delays no other, and all of them stop."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from frazil.errors import CatalogUnavailable, DataLost, Stopped
from frazil.pipeline.land.lander import Lander, LandStep
from frazil.pipeline.land.segments import SegmentSource
from frazil.pipeline.maintain.maintainer import Maintainer
from frazil.pipeline.metrics import Metrics
from frazil.pipeline.steps import Step, StepRunner, StepThread
from tests.components.process import wait_until
from tests.support.fault.land_wal import STREAMS, assert_landed, write_segments
from tests.support.pipeline_thread import Running


class Scripted(Step):
    """Each round returns or raises the next outcome; after the last one it repeats it."""

    part = "derive"
    pool = "derive"

    def __init__(self, *outcomes: float | BaseException, table: str | None = "logs") -> None:
        super().__init__(table)
        self._outcomes = list(outcomes)
        self.resets = 0

    def run(self) -> float:
        outcome = self._outcomes.pop(0) if len(self._outcomes) > 1 else self._outcomes[0]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def reset(self) -> None:
        self.resets += 1


class Panic(BaseException):
    """As a panic in a Rust extension."""


def test_pauses_after_failures_double_up_to_a_minute_and_begin_again_after_a_success() -> None:
    away = CatalogUnavailable("away")
    thread = StepThread(Scripted(*[away] * 8, 5.0, away), Metrics())
    assert [thread.turn() for _ in range(10)] == [1, 2, 4, 8, 16, 32, 60, 60, 5, 1]


def test_a_failure_is_a_problem_of_its_table_until_a_round_succeeds() -> None:
    metrics = Metrics()
    step = Scripted(CatalogUnavailable("away"), Panic("panicked"), 3.0)
    runner = StepRunner([step, Scripted(ValueError("no table"), table=None)], metrics)
    for thread in runner.threads:
        thread.turn()
    assert runner.problems == {"logs": "away"}
    with capture_logs() as lines:
        runner.threads[0].turn()
        assert runner.problems == {"logs": "panicked"}
        runner.threads[0].turn()
    assert runner.problems == {}
    assert [line["event"] for line in lines] == ["derive failed; retrying", "derive resumed"]
    assert step.resets == 2
    assert metrics.registry.get_sample_value("frazil_land_errors_total", {"table": "logs"}) == 2


def test_a_permanent_failure_waits_a_minute_and_marks_the_table_as_stopped() -> None:
    metrics = Metrics()
    thread = StepThread(Scripted(DataLost("otel.logs", "gone"), 1.0), metrics)

    def stopped() -> float | None:
        return metrics.registry.get_sample_value("frazil_land_stopped", {"table": "logs"})

    with capture_logs() as lines:
        assert thread.turn() == 60
    assert [line["event"] for line in lines] == ["derive stopped: operator action required"]
    assert stopped() == 1
    thread.turn()
    assert stopped() == 0


def test_an_unknown_error_while_spark_is_dead_is_reported_as_that() -> None:
    thread = StepThread(Scripted(RuntimeError("py4j")), Metrics(), lambda: True)
    with capture_logs() as lines:
        thread.turn()
    assert thread.problem == "Spark died"
    assert lines[0]["log_level"] == "warning"


def test_a_cancelled_step_has_no_problem() -> None:
    thread = StepThread(Scripted(Stopped("the lease was lost")), Metrics())
    with capture_logs() as lines:
        thread.turn()
    assert (thread.problem, lines) == ("", [])


def test_a_reset_that_fails_does_not_end_the_thread() -> None:
    class Unclosable(Scripted):
        def reset(self) -> None:
            raise OSError("cannot be closed")

    thread = StepThread(Unclosable(CatalogUnavailable("away"), 7.0), Metrics())
    assert [thread.turn(), thread.turn()] == [1, 7]


def test_a_runner_that_was_never_started_or_is_stopped_twice_stops() -> None:
    StepRunner([Scripted(1.0)], Metrics()).stop()
    runner = StepRunner([Scripted(1.0)], Metrics())
    runner.start()
    runner.stop()
    runner.stop()
    assert all(thread.join(0) for thread in runner.threads)


class Blocked:
    """Blocks its callers."""

    def __init__(self) -> None:
        self.begun, self.end = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        self.end.wait()


@pytest.fixture
def blocked() -> Iterator[Blocked]:
    made = Blocked()
    yield made
    made.end.set()


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Running]]:
    monkeypatch.setattr(LandStep, "stop_seconds", 2.0)
    with contextlib.ExitStack() as stack:

        def start() -> Running:
            made = Running(tmp_path)
            stack.callback(made.stop)
            return made

        yield start


def block(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, blocked: Blocked, table: str | None = None
) -> None:
    """From now on the method blocks, if its object is one of this table."""
    original: Any = getattr(owner, name)

    def maybe(self: Any, *given: Any, **options: Any) -> Any:
        if table in (None, getattr(self, "_signal", None), getattr(self, "signal", None)):
            blocked()
        return original(self, *given, **options)

    monkeypatch.setattr(owner, name, maybe)


@pytest.mark.parametrize(("owner", "method"), [(SegmentSource, "pending"), (Lander, "_read_position")])
def test_while_one_tables_source_or_catalog_hangs_the_others_land(
    tmp_path: Path,
    running: Callable[[], Running],
    blocked: Blocked,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    method: str,
) -> None:
    block(monkeypatch, owner, method, blocked, table="spans")
    pipeline = running()
    assert blocked.begun.wait(60)
    content = write_segments(tmp_path, STREAMS[0], [0])
    assert pipeline.has_landed(content)
    content += write_segments(tmp_path, STREAMS[0], [1])
    assert pipeline.has_landed(content)
    with capture_logs() as lines:
        assert pipeline.stop() < 10
    abandoned = [line["step"] for line in lines if line["event"].startswith("pipeline step abandoned")]
    assert abandoned == ["landing spans"]
    assert_landed(tmp_path, content)


def test_while_maintenance_hangs_tables_land(
    tmp_path: Path, running: Callable[[], Running], blocked: Blocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    block(monkeypatch, Maintainer, "round", blocked)
    pipeline = running()
    assert blocked.begun.wait(60)
    content = write_segments(tmp_path, STREAMS[0], [0])
    assert pipeline.has_landed(content)
    blocked.end.set()
    assert pipeline.stop() < 5


def test_a_lost_lease_ends_all_steps_and_the_next_holder_continues_landing(
    tmp_path: Path, running: Callable[[], Running]
) -> None:
    pipeline = running()
    content = write_segments(tmp_path, STREAMS[0], [0])
    assert pipeline.has_landed(content)
    before = pipeline.pipeline._runner
    assert before is not None
    pipeline.pipeline._on_lost()
    assert wait_until(lambda: all(thread.join(0) for thread in before.threads), seconds_max=60)
    assert "the lease was lost" in pipeline.pipeline._problems()["pipeline"]


def test_steps_begin_with_the_lease_and_end_before_it_is_given_back(
    running: Callable[[], Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = running()
    assert wait_until(lambda: pipeline.pipeline._runner is not None, seconds_max=60)
    runner = pipeline.pipeline._runner
    assert runner is not None
    alive: list[bool] = []
    release = pipeline.pipeline._lease.release

    def released() -> None:
        alive.append(not all(thread.join(0) for thread in runner.threads))
        release()

    monkeypatch.setattr(pipeline.pipeline._lease, "release", released)
    pipeline.stop()
    assert alive == [False]
    assert pipeline.pipeline._runner is None
