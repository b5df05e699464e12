"""The ledger for who asks the API: seldom, one at a time, and never waited for without end."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from frazil.config import Config
from frazil.errors import StoreUnavailable
from frazil.ledger.balance import Ledger, LedgerLine
from frazil.ledger.derived import DerivedLine
from frazil.serve import ledger_cache as module
from frazil.serve.ledger_cache import LedgerCache


class Reading:
    """Counts how often the ledger is read; a gate can hold it up."""

    def __init__(self) -> None:
        self.times = 0
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None

    def __call__(self, config: Config) -> Ledger:
        self.times += 1
        self.gate.wait(10)
        if self.failure is not None:
            raise self.failure
        first = LedgerLine("logs", "a", durable=100, landed=70, waiting=30, segments=2, bytes=5)
        second = LedgerLine("logs", "b", durable=7, landed=7, problems=["b: 1 row is missing"])
        derived = DerivedLine("log_rollups", "logs", 12.5, landed=77, counted=76, in_source=70, days_left=1)
        return Ledger([first, second], derived=[derived])


@pytest.fixture
def reading() -> Reading:
    return Reading()


def test_streams_are_summed_by_table_and_problems_are_named(reading: Reading) -> None:
    found = asyncio.run(LedgerCache(Config(), reading).read())
    assert (found["state"], found["ok"], found["problems"]) == ("ready", False, ["b: 1 row is missing"])
    assert found["tables"] == {
        "logs": {
            "streams": 2, "durable": 107, "landed": 77, "removed": 0, "waiting": 30, "set_aside": 0,
            "segments": 2, "bytes": 5,
        }
    }  # fmt: skip
    assert found["derived"] == {
        "log_rollups": {
            "source": "logs", "complete_until": 12.5, "landed": 77, "counted": 76, "in_source": 70,
            "days_left": 1,
        }
    }  # fmt: skip


def test_it_is_read_once_for_all_who_ask_within_a_while(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = LedgerCache(Config(), reading)

    async def ask() -> list[Any]:
        reading.gate.clear()
        asked = [asyncio.create_task(cache.read()) for _ in range(5)]
        await asyncio.sleep(0)
        reading.gate.set()
        return [*await asyncio.gather(*asked), await cache.read()]

    found = asyncio.run(ask())
    assert reading.times == 1
    assert all(each == found[0] for each in found)
    monkeypatch.setattr(module, "KEPT_SECONDS", 0.0)
    asyncio.run(cache.read())
    assert reading.times == 2


def test_who_cannot_wait_is_told_that_it_is_being_read_and_gets_it_later(reading: Reading) -> None:
    cache = LedgerCache(Config(), reading)

    async def ask() -> tuple[dict[str, Any], dict[str, Any]]:
        reading.gate.clear()
        at_first = await cache.read(wait_seconds=0.01)
        reading.gate.set()
        return at_first, await cache.read()

    at_first, later = asyncio.run(ask())
    assert set(at_first) == {"state", "begun_at"}
    assert at_first["state"] == "running"
    assert (later["state"], reading.times) == ("ready", 1)


def test_a_ledger_that_cannot_be_read_says_why(reading: Reading) -> None:
    reading.failure = StoreUnavailable("the bucket does not respond")
    found = asyncio.run(LedgerCache(Config(), reading).read())
    assert (found["state"], found["error"]) == ("failed", "the bucket does not respond")


def test_the_real_ledger_of_an_empty_folder_balances(tmp_path: Path) -> None:
    found = asyncio.run(LedgerCache(Config(data_dir=tmp_path)).read())
    assert (found["state"], found["ok"], found["tables"]) == ("ready", True, {})
