"""A store that is down for a while: refusals with a delay, soon, and then everything flows."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.components.fixtures import FaultyProxyFactory
from tests.components.s3 import S3Server
from tests.support.fault.buckets import new_bucket, s3_settings
from tests.support.fault.traffic import Account, Steady, check_wal, until
from tests.support.receiver import Receiver, running_receiver

pytestmark = pytest.mark.slow

GROWTH_BYTES_MAX = 150 * 2**20


class Memory:
    """The most that the receiver's processes held at any look, while the block lasted."""

    def __init__(self, receiver: Receiver) -> None:
        self._process = psutil.Process(receiver.process.pid)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.first = self.most = self._now()

    def _now(self) -> int:
        total = 0
        for process in (self._process, *self._process.children(recursive=True)):
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return total

    def _watch(self) -> None:
        while not self._over.wait(0.25):
            self.most = max(self.most, self._now())

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.mark.parametrize(("down_seconds", "write_timeout_seconds"), [(20, 3), (60, 10)])
def test_while_the_store_is_down_clients_are_sent_away_and_then_all_their_records_arrive(
    down_seconds: float,
    write_timeout_seconds: float,
    tmp_path: Path,
    moto_s3: S3Server,
    faulty_proxy: FaultyProxyFactory,
) -> None:
    proxy = faulty_proxy(moto_s3.host, moto_s3.port)
    settings = s3_settings(
        moto_s3.through(proxy), new_bucket(moto_s3), write_timeout_seconds=write_timeout_seconds
    )
    account = Account()
    with running_receiver(tmp_path / "receiver", settings | {"receive": {"workers": 1}}) as receiver:
        with (
            Memory(receiver) as memory,
            Steady(receiver, account, retries=True, clients_per_transport=4),
        ):
            until(lambda: len(account.acked) > 50, what="acks")
            proxy.refuse()
            down = time.monotonic()
            until(lambda: bool(account.answers("refused")), what="a refusal")
            assert time.monotonic() - down < write_timeout_seconds + 3
            begin = len(account.outcomes)
            assert not receiver.is_ready()
            reason = httpx.get(f"{receiver.http}/readyz").text
            assert "is unavailable" in reason
            until(lambda: time.monotonic() - down > down_seconds, seconds_max=90)
            while_down = account.outcomes[begin:]
            proxy.resume()
            until(receiver.is_ready, seconds_max=10, what="ready again by itself")
            acked = len(account.acked)
            until(lambda: len(account.acked) > acked + 50, what="acks again")
        assert memory.most - memory.first < GROWTH_BYTES_MAX
        late = [outcome for outcome in while_down if outcome.seconds > write_timeout_seconds + 3]
        assert not late
        refusals = [outcome for outcome in while_down if outcome.answer == "refused"]
        assert {outcome.code for outcome in refusals} == {"503", "UNAVAILABLE"}
        assert all((outcome.retry_after_seconds or 0) >= 1 for outcome in refusals)
        quick = [outcome for outcome in refusals if outcome.seconds < 1]
        assert len(quick) > 0.6 * len(refusals)
        assert account.acked == {text for outcome in account.outcomes for text in outcome.texts}
        check_wal(receiver, account)
