"""The journal before and without brokers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from frazil.config import Config
from frazil.errors import ConfigError, FrazilError, StoreUnavailable
from frazil.wal.group import SegmentWritten
from frazil.wal.kafka.journal import KafkaJournal
from tests.components.process import free_port
from tests.support.integration.messages import logs


class Unobserved:
    def segment_written(self, segment: SegmentWritten) -> None:
        raise AssertionError("nothing can have been written")

    def segment_failed(self, error: FrazilError) -> None:
        raise error


def journal(kafka: dict[str, Any] | None = None, **more: Any) -> KafkaJournal:
    section = {"brokers": [f"127.0.0.1:{free_port()}"]} | (kafka or {})
    return KafkaJournal(
        Config.model_validate({"wal": {"type": "kafka", "kafka": section}, **more}), Unobserved()
    )


def test_it_is_not_ready_before_it_is_started_and_can_be_closed_twice() -> None:
    async def test() -> None:
        unstarted = journal()
        assert "is starting" in str(unstarted.failure)
        with pytest.raises(StoreUnavailable, match="is starting"):
            await unstarted.append("logs", b"", "shop", 7)
        await unstarted.close()
        await unstarted.close()

    asyncio.run(test())


def test_without_brokers_it_starts_and_says_why_it_refuses_and_ends_soon() -> None:
    async def test() -> None:
        lonely = journal()
        await lonely.start()
        assert "Connection refused" in str(lonely.failure)
        body = logs("shop").SerializeToString()
        begin = time.monotonic()
        with pytest.raises(StoreUnavailable, match="Connection refused"):
            await lonely.append("logs", body, "shop", time.time_ns())
        assert time.monotonic() - begin < 1
        await lonely.close()
        with pytest.raises(StoreUnavailable, match="shutting down"):
            await lonely.append("logs", body, "shop", time.time_ns())

    asyncio.run(asyncio.wait_for(test(), 30))


def test_one_tenant_for_all_messages_is_refused_where_keys_have_others() -> None:
    key = {"name": "shop", "tenant": "shop", "hash": "sha256:" + "0" * 64}
    fixed = journal({"tenant": {"source": "fixed"}}, auth={"keys": [key]})

    async def test() -> None:
        with pytest.raises(ConfigError, match=r"wal\.kafka\.tenant\.source is fixed.*keys of shop"):
            await fixed.start()
        await fixed.close()

    asyncio.run(test())


def test_settings_that_cannot_be_used_end_the_start() -> None:
    unusable = journal({"tls": {"ca_file": "/absent.pem"}})

    async def test() -> None:
        with pytest.raises(ConfigError, match=r"ssl\.ca\.location"):
            await unusable.start()
        await unusable.close()

    asyncio.run(test())
