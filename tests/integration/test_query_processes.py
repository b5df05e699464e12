"""Every acked row in every answer once: with the real receiver, pipeline and API, and Spark that compacts."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.sql import SparkSession

from frazil.config import Config
from frazil.keys import new_key
from frazil.pipeline.session import spark_session
from frazil.tables import Signal
from tests.support.integration.api import Api, running_api
from tests.support.integration.exactness import Asker, Seen, keep_asking
from tests.support.integration.moving_lake import TENANTS, Sent
from tests.support.receiver import Receiver
from tests.support.spark.land_lake import UNCLOSED_SOCKETS
from tests.support.spark.land_process import PROMPT, SMALL_SPARK, running_pipeline

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(UNCLOSED_SOCKETS)]

_SECONDS = 45.0
_PAUSE_SECONDS = 3.0
_PATHS: dict[Signal, str] = {"logs": "/v1/logs", "spans": "/v1/traces"}
_CALLS = (
    "CALL frazil.system.rewrite_data_files('frazil.otel.{}', options => map('min-input-files', '2'))",
    "CALL frazil.system.rewrite_manifests('frazil.otel.{}')",
)


class Posting:
    """A journal that is a receiver elsewhere."""

    def __init__(self, client: httpx.AsyncClient, receiver: Receiver, keys: dict[str, str]) -> None:
        self._client = client
        self._receiver = receiver
        self._keys = keys

    async def append(self, signal: Signal, body: bytes, tenant: str, _: int) -> None:
        headers = {"x-api-key": self._keys[tenant], "content-type": "application/x-protobuf"}
        answer = await self._client.post(
            f"{self._receiver.http}{_PATHS[signal]}", content=body, headers=headers
        )
        assert answer.status_code == 200, answer.text


async def answer(
    client: httpx.AsyncClient, api: Api, keys: dict[str, str], sql: str, tenant: str, params: Sequence[Any]
) -> dict[str, Any]:
    asked = {"sql": sql, "params": list(params)}
    found = await client.post(f"{api.url}/api/v1/sql", json=asked, headers={"x-api-key": keys[tenant]})
    assert found.status_code == 200, found.text
    told: dict[str, Any] = found.json()
    return told


class Compacting:
    """Moves `main` on, again and again, while landing moves it too."""

    def __init__(self, config: Config) -> None:
        self._session = spark_session(config)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.done = dict.fromkeys(_CALLS, 0)
        self.errors: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join(120)

    def _run(self) -> None:
        while not self._end.wait(_PAUSE_SECONDS):
            for call in _CALLS:
                for table in _PATHS:
                    try:
                        found = self._session.sql(call.format(table)).collect()
                        self.done[call] += found[0][0] > 0
                    except Exception as error:  # landing may have won; what matters is what answers hold
                        self.errors.append(str(error))


async def keep_sending(sent: Sent, journal: Any, tenant: str, end: asyncio.Event) -> None:
    while not end.is_set():
        spans = sent.new(tenant, random.randrange(1, 4))
        await sent.send(journal, "spans", spans)
        logs = sent.new(tenant, random.randrange(1, 8), traces=[row.trace for row in spans])
        await sent.send(journal, "logs", logs)
        await asyncio.sleep(0.05)


@pytest.mark.soak
def test_every_acked_row_is_in_every_answer_once_while_spark_compacts(
    tmp_path: Path, spark: SparkSession
) -> None:
    keys, entries = {}, []
    for tenant in TENANTS:
        keys[tenant], digest = new_key(tenant)
        entries.append({"name": tenant, "tenant": tenant, "hash": digest, "roles": ["write", "read"]})
    settings = {
        "auth": {"keys": entries},
        "land": PROMPT | {"wal_grace_seconds": 3, "stream_idle_seconds": 2},
        "spark": SMALL_SPARK,
        "receive": {"workers": 1},
        "query": {"workers": 2, "metadata_age_max_seconds": 1},
    }
    sent, seen = Sent(), Seen()

    async def run(api: Api, receiver: Receiver, compacting: Compacting) -> None:
        end = asyncio.Event()
        async with httpx.AsyncClient(timeout=60) as client:
            asker = Asker(partial(answer, client, api, keys), sent, seen)
            posting = Posting(client, receiver, keys)
            tasks = [keep_sending(sent, posting, tenant, end) for tenant in TENANTS]
            tasks += [keep_asking(asker, seen, end, ()) for _ in range(2)]

            async def watch() -> None:
                begin = time.monotonic()
                while not end.is_set():
                    seconds = time.monotonic() - begin
                    assert seconds < 5 * _SECONDS, (seen, compacting.done, compacting.errors[-1:])
                    if seconds > _SECONDS and min(compacting.done.values()):
                        end.set()
                    await asyncio.sleep(0.2)

            try:
                await asyncio.gather(*tasks, watch())
            finally:
                end.set()
            for tenant in TENANTS:
                for signal in _PATHS:
                    await asker.each(signal, tenant)

    with (
        running_api(tmp_path, settings) as (api, receiver),
        running_pipeline(receiver.config_path) as pipeline,
    ):
        pipeline.until("ready", pipeline.is_ready)
        compacting = Compacting(receiver.config)
        compacting.start()
        try:
            asyncio.run(run(api, receiver, compacting))
        finally:
            compacting.stop()
        assert (
            pipeline.metric("frazil_land_segments_cleaned_total") > 0
            or "landed segments deleted" in pipeline.log.read_text()
        )
    assert seen.with_tail > 0
    assert seen.with_files > 0
