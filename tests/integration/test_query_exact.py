"""Every row that was acked is in every answer once, whatever lands, is cleaned up or is killed meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest

from frazil.config import Config
from frazil.errors import StoreUnavailable
from frazil.pipeline.land import upkeep
from frazil.query import lake
from frazil.query.model import Query
from frazil.query.service import QueryService
from tests.support.integration.exactness import KILLED, Asker, Seen, keep_asking
from tests.support.integration.moving_lake import (
    TENANTS,
    Landing,
    Sent,
    configured,
    open_journal,
)

pytestmark = pytest.mark.slow

_SECONDS_MAX = 60.0
_KILLS_SECONDS = 3.0
_ANSWERS = 50
_SNAPSHOTS = 10
_KILLS = 2
_ASKERS = 3


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake, "_WAIT_SECONDS", 60)  # a busy machine must not look like a slow catalog
    monkeypatch.setattr(upkeep.os, "sync", lambda: None)  # no power is cut here, and it waits for all disks


async def keep_sending(sent: Sent, config: Config, tenant: str, end: asyncio.Event) -> None:
    """Spans, then the logs of their traces, through receivers that come and go: their streams end."""
    while not end.is_set():
        async with open_journal(config) as journal:
            for _ in range(random.randrange(5, 15)):
                spans = sent.new(tenant, random.randrange(1, 4))
                await sent.send(journal, "spans", spans)
                logs = sent.new(tenant, random.randrange(1, 8), traces=[row.trace for row in spans])
                await sent.send(journal, "logs", logs)
                await asyncio.sleep(0.02)
                if end.is_set():
                    break


async def keep_killing(seen: Seen, end: asyncio.Event) -> None:
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(end.wait(), _KILLS_SECONDS)
            return
        workers = worker_processes()
        if len(workers) > 1:  # while one remains, the others go on
            workers[0].kill()
            seen.killed += 1


def worker_processes() -> list[psutil.Process]:
    """Oldest first."""
    found = [
        child
        for child in psutil.Process().children()
        if child.status() != psutil.STATUS_ZOMBIE and "frazil.query.worker" in child.cmdline()
    ]
    return sorted(found, key=lambda child: child.create_time())


async def until_seen(seen: Seen, landing: Landing, end: asyncio.Event) -> None:
    """Until all that the test is about has happened often enough: streams were closed, cleaned up and
    forgotten, workers were killed, tables moved on.
    """
    deadline = time.monotonic() + _SECONDS_MAX

    def is_enough() -> bool:
        return (
            seen.answers >= _ANSWERS
            and len(seen.snapshots) >= _SNAPSHOTS
            and seen.killed >= _KILLS
            and landing.streams_forgotten > 0
        )

    while not end.is_set() and not is_enough():
        assert time.monotonic() < deadline, (seen, landing.streams_forgotten)
        assert landing.error is None, landing.error
        await asyncio.sleep(0.1)
    end.set()


async def answer(queries: QueryService, sql: str, tenant: str, params: Sequence[Any]) -> dict[str, Any]:
    answered = await queries.execute(Query(sql, tenant, params))
    told: dict[str, Any] = orjson.loads(b"".join([chunk async for chunk in answered.content]))
    return told


@contextlib.asynccontextmanager
async def started(queries: QueryService) -> Any:
    await queries.start()
    try:
        yield queries
    finally:
        await queries.close()


@pytest.mark.parametrize("grace_seconds", [2.0, 0.0], ids=["some grace", "no grace"])
def test_every_acked_row_is_in_every_answer_once(tmp_path: Path, grace_seconds: float) -> None:
    """Also where the log is cleaned up before what is known of the tables is old: then some get no answer."""
    allowed = [*KILLED, *([] if grace_seconds else ["land.wal_grace_seconds"])]
    config = configured(
        tmp_path,
        land={"wal_grace_seconds": grace_seconds, "stream_idle_seconds": 1},
        query={"workers": 2, "metadata_age_max_seconds": 1},
        wal={"lanes": 2, "group_wait_seconds": 0.02},
    )
    sent, seen = Sent(), Seen()

    async def run() -> None:
        end = asyncio.Event()
        async with started(QueryService(config)) as queries:
            asker = Asker(partial(answer, queries), sent, seen)
            senders = [keep_sending(sent, config, tenant, end) for tenant in TENANTS]
            askers = [keep_asking(asker, seen, end, allowed) for _ in range(_ASKERS)]
            watching = until_seen(seen, landing, end)
            try:
                await asyncio.gather(*senders, *askers, keep_killing(seen, end), watching)
            finally:
                end.set()
            for tenant in TENANTS:
                for signal in ("logs", "spans"):
                    await asker.each(signal, tenant)

    landing = Landing(config)
    with contextlib.closing(landing), landing.going_on(0.1):
        asyncio.run(run())
    assert seen.with_tail > 0
    assert seen.with_files > 0


def test_every_acked_row_counts_once_in_every_rollup(tmp_path: Path) -> None:
    """While rows land, are derived, merged and cleaned up, in threads of their own."""
    config = configured(
        tmp_path,
        land={"wal_grace_seconds": 4.0, "stream_idle_seconds": 1},
        query={"workers": 2, "metadata_age_max_seconds": 1},
        wal={"lanes": 2, "group_wait_seconds": 0.02},
    )
    sent, seen = Sent(), Seen()

    def is_enough() -> bool:
        return (
            seen.answers >= _ANSWERS
            and len(seen.snapshots) >= _SNAPSHOTS
            and min(landing.derived, landing.merged, landing.streams_forgotten) > 0
        )

    async def until_enough(end: asyncio.Event) -> None:
        deadline = time.monotonic() + 2 * _SECONDS_MAX
        while not end.is_set() and not is_enough():
            assert time.monotonic() < deadline, (seen, landing.derived, landing.merged)
            assert landing.error is None, landing.error
            await asyncio.sleep(0.1)
        end.set()

    async def keep_counting(asker: Asker, end: asyncio.Event) -> None:
        while not end.is_set():
            try:
                await asker.rolled(random.choice(("logs", "spans")), random.choice(TENANTS))
            except StoreUnavailable as error:
                if "land.wal_grace_seconds" not in str(error):  # which happens on a busy machine
                    raise

    async def run() -> None:
        end = asyncio.Event()
        async with started(QueryService(config)) as queries:
            asker = Asker(partial(answer, queries), sent, seen)
            senders = [keep_sending(sent, config, tenant, end) for tenant in TENANTS]
            askers = [keep_counting(asker, end) for _ in range(_ASKERS)]
            try:
                await asyncio.gather(*senders, *askers, until_enough(end))
            finally:
                end.set()

    landing = Landing(config)
    with contextlib.closing(landing), landing.going_on(0.1), landing.deriving(0.2):
        asyncio.run(run())
    assert seen.with_tail > 0
    assert seen.with_files > 0
