"""A receiver whose clock is far from the store's stamps nothing, says why, and goes on when it is right."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.config import Config
from frazil.errors import ClockSkewed, FrazilError
from frazil.receive.http import HttpApp
from frazil.receive.intake import Intake
from frazil.storage.local import LocalStore
from frazil.wal.clock import ClockWatch
from frazil.wal.group import Receipt, SegmentWritten
from frazil.wal.journal import SegmentJournal
from tests.support.fault.records import logs_request
from tests.support.wal_stores import HandClock, MemoryStore

DAY = 86_400.0


class Unobserved:
    def segment_written(self, segment: SegmentWritten) -> None: ...

    def segment_failed(self, error: FrazilError) -> None: ...


@given(
    skew=st.floats(-1e8, 1e8),
    waited=st.floats(0, 20),
    share=st.floats(0, 1),
    later=st.floats(0, 3600),
)
def test_the_skew_is_never_overstated_however_long_the_store_takes(
    skew: float, waited: float, share: float, later: float
) -> None:
    boot = HandClock(1000.0)

    def true() -> float:
        return 1_800_000_000.0 + boot.seconds

    def store_now() -> float:
        boot.seconds += waited * share
        found = true()
        boot.seconds += waited * (1 - share)
        return found

    watch = ClockWatch(store_now, 300, wall=lambda: true() + skew, clock=boot)
    assert watch.skew_seconds is None
    assert watch.failure is None
    watch.measure()
    boot.seconds += later
    found = watch.skew_seconds
    assert found is not None
    assert abs(found) <= abs(skew) + 1e-3
    assert abs(found - skew) <= waited + 1e-3
    if abs(skew) > 300 + waited + 1:
        assert watch.failure is not None
    if abs(skew) < 299:
        assert watch.failure is None


def test_a_clock_that_is_set_is_noticed_before_the_store_is_asked_again() -> None:
    boot, step = HandClock(0.0), [0.0]
    watch = ClockWatch(
        lambda: 5000.0 + boot.seconds, 300, wall=lambda: 5000.0 + boot.seconds + step[0], clock=boot
    )
    watch.measure()
    step[0] = -200 * DAY
    assert str(watch.failure).startswith("this machine's clock is 17,280,000 s behind the store's")


def test_the_folders_clock_is_that_of_its_file_system(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "wal")
    before = time.time()
    assert before - 1 <= store.now() <= time.time() + 1
    assert [place.name for place in (tmp_path / "wal").rglob("*.tmp")] == []


class Skewed:
    """A journal over a store in memory. `wrong` is how far the receiver's clock is ahead."""

    def __init__(self, folder: Path) -> None:
        self.wrong = 0.0
        self.store = MemoryStore()
        self.config = Config.model_validate({"data_dir": folder, "wal": {"group_wait_seconds": 0.001}})
        self.journal = SegmentJournal(
            self.config, self.store, Unobserved(), wall=lambda: time.time() + self.wrong
        )

    async def append(self) -> Receipt:
        return await self.journal.append("logs", logs_request(["a"]), "default", time.time_ns())

    def segments(self) -> list[str]:
        return [path for path in self.store.created if path.startswith("logs/")]

    async def ready(self) -> tuple[int, str]:
        """What /readyz answers."""
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        intake = Intake.of(self.config, self.journal, None)  # type: ignore[arg-type]
        scope = {"type": "http", "method": "GET", "path": "/readyz", "headers": [], "query_string": b""}
        await HttpApp(intake)(scope, receive, send)
        return sent[0]["status"], sent[1]["body"].decode()


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("wrong", [-200 * DAY, -400.0, 400.0, 365 * DAY])
def test_a_receiver_that_starts_with_a_wrong_clock_refuses_until_it_is_right(
    tmp_path: Path, wrong: float
) -> None:
    async def live() -> None:
        world = Skewed(tmp_path)
        world.wrong = wrong
        await world.journal.start()
        status, said = await world.ready()
        assert (status, "receive.clock_skew_seconds_max" in said) == (503, True)
        with pytest.raises(ClockSkewed):
            await world.append()
        assert world.segments() == []
        world.wrong = 0.0
        await eventually(lambda: world.journal.failure is None)
        assert (await world.ready())[0] == 200
        assert (await world.append()).accepted == 1
        await world.journal.close()

    asyncio.run(live())


def test_a_clock_that_goes_wrong_while_the_receiver_runs_stamps_nothing(tmp_path: Path) -> None:
    async def live() -> None:
        world = Skewed(tmp_path)
        await world.journal.start()
        assert (await world.append()).accepted == 1
        world.wrong = -31 * DAY
        with pytest.raises(ClockSkewed):
            await world.append()
        assert len(world.segments()) == 1
        world.wrong = 100.0
        await world.append()
        await world.journal.close()

    asyncio.run(live())
