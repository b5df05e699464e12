"""Every acked row in every answer once, and few files in the end: with the real receiver, API and pipeline,
which merges, expires and removes all the time, is killed again and again, and has a maintainer beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from frazil.config import Config
from frazil.keys import new_key
from frazil.lake.catalog import open_catalog
from frazil.lake.commits.commit import read_checkpoint
from frazil.lake.live_files import live_files
from frazil.lake.upkeep.orphans import remove_orphans
from frazil.position import landing_position
from frazil.tables import Signal
from tests.components.process import dies_with_parent
from tests.integration.test_query_processes import Posting, answer, keep_sending
from tests.support.integration.api import Api, running_api
from tests.support.integration.exactness import Asker, Seen, keep_asking
from tests.support.integration.moving_lake import TENANTS, Row, Sent
from tests.support.receiver import Receiver
from tests.support.spark.land_lake import UNCLOSED_SOCKETS
from tests.support.spark.land_process import PROMPT, SMALL_SPARK, PipelineProcess, running_pipeline, verified

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings(UNCLOSED_SOCKETS),
]

_KILLS = 3
_FAN_IN = 3
_STALE_MAX = 20
_SECONDS_MAX = 400.0
"""How long a busy machine may take for what a quiet one does in a few seconds."""
_PAST = "past"
"""A tenant all of whose rows are too old: they land, and retention removes them while others land."""
_PAST_MICROS = 3 * 86_400 * 1_000_000
_SIGNALS: tuple[Signal, ...] = ("logs", "spans")
_SETTINGS: dict[str, Any] = {
    "land": PROMPT | {"wal_grace_seconds": 5, "stream_idle_seconds": 2, "commit_deadline_seconds": 30},
    "spark": SMALL_SPARK,
    "receive": {"workers": 1},
    "query": {"workers": 2, "metadata_age_max_seconds": 1, "seconds_max": 10},
    "maintain": {
        "compact": {"interval_seconds": 0.5, "fan_in": _FAN_IN, "merge_identical_spans": True},
        "expire": {
            "interval_seconds": 1,
            "snapshots_kept": 1,
            "kept_seconds": 20,
            "hourly_tags": 0,
            "manifests_max": 2,
        },
        "orphans": {"interval_seconds": 2, "age_seconds": "1h"},
        "retention": {"interval_seconds": 1, "rules": [{"tenant": _PAST, "after_seconds": 1}]},
    },
}


async def answer_that_is_new(
    client: httpx.AsyncClient, api: Api, keys: dict[str, str], sql: str, tenant: str, params: Sequence[Any]
) -> dict[str, Any]:
    """A busy machine may make the catalog look slow; such an answer says that it may be old."""
    for _ in range(_STALE_MAX):
        told = await answer(client, api, keys, sql, tenant, params)
        if told["stats"]["stale"] is None:
            break
    return told


async def keep_sending_what_is_too_old(sent: Sent, journal: Any, end: asyncio.Event) -> None:
    while not end.is_set():
        micros = time.time_ns() // 1000 - _PAST_MICROS
        rows = [
            Row(_PAST, number, "cart", micros, os.urandom(16))
            for number in (next(sent.numbers) for _ in range(3))
        ]
        await sent.send(journal, "logs", rows)
        await asyncio.sleep(0.2)


def maintain(config_path: Path, *arguments: str) -> list[dict[str, Any]]:
    """What `frazil maintain --json` says it has done."""
    command = [sys.executable, "-m", "frazil", "--config", str(config_path), "maintain", "--json", *arguments]
    ended = subprocess.run(
        dies_with_parent(command), capture_output=True, text=True, timeout=300, cwd=config_path.parent
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    reports: list[dict[str, Any]] = json.loads(ended.stdout)
    return reports


class MaintainingBeside:
    """`frazil maintain`, again and again."""

    def __init__(self, config_path: Path) -> None:
        self._config_path = config_path
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.runs = 0
        self.error: BaseException | None = None

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._end.set()
            self._thread.join(300)
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._end.wait(1):
                maintain(self._config_path)
                self.runs += 1
        except BaseException as error:
            self.error = error


class Lives:
    """Of a pipeline that is killed, and started again."""

    def __init__(self, config_path: Path) -> None:
        self._config_path = config_path
        self._chance = random.Random(11)
        self.did: Counter[str] = Counter()

    def all_but_the_last(self) -> None:
        for life in range(_KILLS):
            with running_pipeline(self._config_path, f"pipeline-{life}") as pipeline:
                if life == 1:
                    pipeline.until("Spark begins", pipeline.jvms, _SECONDS_MAX)
                else:
                    self._until(pipeline, "compacted_rows")
                time.sleep(self._chance.uniform(0, 3))  # the moment of death is what this test is about
                self._note(pipeline)
                pipeline.kill()

    @contextlib.contextmanager
    def the_last(self) -> Iterator[PipelineProcess]:
        with running_pipeline(self._config_path, "pipeline-last") as pipeline:
            for name in ("compacted_rows", "expired_snapshots", "removed_rows"):
                self._until(pipeline, name)
            yield pipeline
            self._note(pipeline)
            begin = time.monotonic()
            assert pipeline.stop() == 0
            self.did["stopped_in_seconds"] = int(time.monotonic() - begin)

    @staticmethod
    def _until(pipeline: PipelineProcess, name: str) -> None:
        pipeline.until(name, lambda: pipeline.metric(f"frazil_{name}_total") > 0, _SECONDS_MAX)

    def _note(self, pipeline: PipelineProcess) -> None:
        for name in ("landed_rows", "land_fenced", "compacted_files_in", "expired_snapshots"):
            self.did[name] += int(pipeline.metric(f"frazil_{name}_total"))


def assert_nothing_is_needed_that_is_gone(config: Config) -> None:
    """Also after everything is gone that looks unneeded."""
    with contextlib.closing(open_catalog(config)) as catalog:
        for signal in _SIGNALS:
            table = catalog.load_table((config.lake.namespace, signal))
            remove_orphans(table, 0.0, time.time() + 3600)
            for snapshot in table.metadata.snapshots:
                assert all(Path(each.file.file_path).exists() for each in live_files(table, snapshot))


def removed_rows(config: Config) -> int:
    with contextlib.closing(open_catalog(config)) as catalog:
        checkpoint = read_checkpoint(catalog, (config.lake.namespace, "logs"))
        return landing_position(checkpoint.position).removed


def waiting(config_path: Path) -> int:
    return sum(int(line["waiting"]) for line in verified(config_path)[1]["lines"])


def files_of(config: Config) -> dict[str, int]:
    with contextlib.closing(open_catalog(config)) as catalog:
        tables = {signal: catalog.load_table((config.lake.namespace, signal)) for signal in _SIGNALS}
        return {signal: len(live_files(table)) for signal, table in tables.items()}


def test_every_acked_row_is_in_every_answer_once_while_pipelines_that_maintain_are_killed(
    tmp_path: Path,
) -> None:
    keys, entries = {}, []
    for tenant in (*TENANTS, _PAST):
        keys[tenant], digest = new_key(tenant)
        entries.append({"name": tenant, "tenant": tenant, "hash": digest, "roles": ["write", "read"]})
    sent, seen = Sent(), Seen()
    past = Sent(sent.numbers, {"logs": {_PAST: []}}, {"logs": {_PAST: []}})

    async def run(api: Api, receiver: Receiver, lives: Lives, beside: MaintainingBeside) -> None:
        end = asyncio.Event()
        async with httpx.AsyncClient(timeout=60) as client:
            asker = Asker(partial(answer_that_is_new, client, api, keys), sent, seen)
            posting = Posting(client, receiver, keys)

            async def live() -> None:
                try:
                    await asyncio.to_thread(lives.all_but_the_last)
                    await asyncio.to_thread(live_on)
                finally:
                    end.set()

            def live_on() -> None:
                with beside.going_on(), lives.the_last():
                    pass

            tasks = [
                live(),
                keep_sending_what_is_too_old(past, posting, end),
                *(keep_sending(sent, posting, tenant, end) for tenant in TENANTS),
                *(keep_asking(asker, seen, end, ()) for _ in range(2)),
            ]
            try:
                await asyncio.gather(*tasks)
            finally:
                end.set()
            for tenant in TENANTS:
                for signal in _SIGNALS:
                    await asker.each(signal, tenant)

    with running_api(tmp_path, _SETTINGS | {"auth": {"keys": entries}}) as (api, receiver):
        path = receiver.config_path
        lives, beside = Lives(path), MaintainingBeside(path)
        asyncio.run(run(api, receiver, lives, beside))
        with running_pipeline(path, "pipeline-after") as pipeline:
            pipeline.until("all landed", lambda: not waiting(path))
            assert pipeline.stop() == 0
        maintain(path)
        for tenant in TENANTS:
            for signal in _SIGNALS:
                (count,) = api.rows(f"SELECT count(*) FROM {signal}", headers={"x-api-key": keys[tenant]})
                assert count == [len(sent.acked[signal][tenant])]
        assert api.rows("SELECT count(*) FROM logs", headers={"x-api-key": keys[_PAST]}) == [[0]]
    assert_nothing_is_needed_that_is_gone(receiver.config)
    code, ledger = verified(path)
    assert (code, ledger["problems"]) == (0, [])
    assert removed_rows(receiver.config) >= len(past.acked["logs"][_PAST]) > 0
    assert seen.with_tail > 0
    assert seen.with_files > 0
    # Of each size of files, and there are two or three, fewer lie about than are merged at a time.
    assert max(files_of(receiver.config).values()) <= len(TENANTS) * 3 * _FAN_IN, lives.did
    assert beside.runs > 0
    assert lives.did["stopped_in_seconds"] < 30
