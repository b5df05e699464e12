"""Every row that was acked is in every answer once while two maintainers merge, expire and remove at once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from frazil.config import Config
from frazil.lake.catalog import open_catalog
from frazil.ledger import balance
from frazil.pipeline.land import upkeep
from frazil.pipeline.maintain.maintainer import Maintainer
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.metrics import Metrics
from frazil.query import lake
from frazil.query.service import QueryService
from tests.integration.test_query_exact import answer, keep_sending, started
from tests.support.integration.exactness import Asker, Seen, keep_asking
from tests.support.integration.moving_lake import TENANTS, Landing, Sent, configured
from tests.support.local_runner import LocalRunner

_SECONDS_MAX = 240.0
_ANSWERS = 60
_WANTED = {"compact": 4, "expire": 4, "manifests": 2}
"""How often each task must have done something."""


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake, "_WAIT_SECONDS", 60)  # a busy machine must not look like a slow catalog
    monkeypatch.setattr(upkeep.os, "sync", lambda: None)  # no power is cut here, and it waits for all disks


class Keeping:
    """Maintainers in threads of their own, and what they did."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._end = threading.Event()
        self.done: Counter[str] = Counter()
        self.errors: list[BaseException] = []

    @contextlib.contextmanager
    def going_on(self, maintainers: int) -> Iterator[None]:
        threads = [threading.Thread(target=self._keep, daemon=True) for _ in range(maintainers)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._end.set()
            for thread in threads:
                thread.join(60)
        if self.errors:
            raise self.errors[0]

    def _keep(self) -> None:
        try:
            with contextlib.closing(open_catalog(self._config)) as catalog:
                metrics = MaintainMetrics(Metrics().registry)
                keeper = Maintainer(self._config, catalog, LocalRunner(), metrics)
                while not self._end.wait(0.1):
                    self.done.update(report.task for report in keeper.round() if not report.is_nothing)
        except BaseException as error:
            self.errors.append(error)


async def until_seen(seen: Seen, landing: Landing, keeping: Keeping, end: asyncio.Event) -> None:
    deadline = time.monotonic() + _SECONDS_MAX
    while not end.is_set() and (
        seen.answers < _ANSWERS or any(keeping.done[task] < times for task, times in _WANTED.items())
    ):
        assert time.monotonic() < deadline, (seen, keeping.done)
        assert landing.error is None, landing.error
        assert not keeping.errors, keeping.errors
        await asyncio.sleep(0.1)
    end.set()


@pytest.mark.slow
@pytest.mark.parametrize("maintainers", [1, 2])
def test_every_acked_row_is_in_every_answer_once_while_the_tables_are_kept(
    tmp_path: Path, maintainers: int
) -> None:
    config = configured(
        tmp_path,
        land={"wal_grace_seconds": 2, "stream_idle_seconds": 1},
        query={"workers": 2, "metadata_age_max_seconds": 1, "seconds_max": 10},
        wal={"lanes": 2, "group_wait_seconds": 0.02},
        maintain={
            "compact": {"interval_seconds": 0.2, "fan_in": 6},
            "expire": {"interval_seconds": 0.5, "snapshots_kept": 1, "kept_seconds": 20, "manifests_max": 2},
        },
    )
    sent, seen, keeping = Sent(), Seen(), Keeping(config)

    async def run() -> None:
        end = asyncio.Event()
        async with started(QueryService(config)) as queries:
            asker = Asker(partial(answer, queries), sent, seen)
            senders = [keep_sending(sent, config, tenant, end) for tenant in TENANTS]
            askers = [keep_asking(asker, seen, end, []) for _ in range(2)]
            try:
                await asyncio.gather(*senders, *askers, until_seen(seen, landing, keeping, end))
            finally:
                end.set()
            for tenant in TENANTS:
                for signal in ("logs", "spans"):
                    await asker.each(signal, tenant)

    landing = Landing(config)
    with contextlib.closing(landing), landing.going_on(0.1), keeping.going_on(maintainers):
        asyncio.run(run())
    assert seen.with_files > 0
    assert not balance(config).problems
