"""Answers that are lost, late or strange: the writer settles what became of its segment before it acks."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from frazil.config import S3WalConfig
from frazil.errors import StoreUnavailable
from frazil.storage.s3 import S3Store
from frazil.wal.store import open_bucket
from tests.components.fixtures import FaultyProxyFactory
from tests.components.proxy import FaultyProxy
from tests.components.s3 import S3Server
from tests.support.fault.buckets import new_bucket, s3_settings
from tests.support.fault.traffic import Account, Client, burst, check_wal, found_logs, fresh_texts, streams
from tests.support.receiver import running_receiver

SLOW_DOWN = "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
CONFLICT = "<Error><Code>ConditionalRequestConflict</Code></Error>"
PATH = "logs/20261115T081823123-9f86d081884c7d65/00000000000000000000.parquet"
DATA = b"a segment with a nonce of its own"


@pytest.fixture
def proxy(moto_s3: S3Server, faulty_proxy: FaultyProxyFactory) -> FaultyProxy:
    return faulty_proxy(moto_s3.host, moto_s3.port)


@pytest.fixture
def bucket(moto_s3: S3Server) -> str:
    return new_bucket(moto_s3)


def store_at(server: S3Server, bucket: str, **options: float) -> S3Store:
    config = S3WalConfig(
        bucket=bucket,
        endpoint=server.endpoint,
        allow_http=True,
        access_key_id=server.access_key,
        secret_access_key=server.secret_key,
        request_timeout_seconds=options.get("request_timeout_seconds", 1.0),
    )
    return open_bucket(config, options.get("write_timeout_seconds", 10.0))


@pytest.fixture
def store(moto_s3: S3Server, bucket: str, proxy: FaultyProxy) -> S3Store:
    return store_at(moto_s3.through(proxy), bucket)


@pytest.mark.parametrize("how", ["close", "hang"])
def test_a_put_whose_answer_was_lost_is_known_by_its_content(
    how: str, store: S3Store, proxy: FaultyProxy
) -> None:
    proxy.drop_response_once("PUT", how=how)
    store.create(PATH, DATA)
    assert store.read(PATH) == DATA
    assert proxy.dropped("PUT") == 1
    assert proxy.count("PUT") == 2


def test_a_put_whose_answer_was_lost_is_settled_also_if_looking_fails_at_first(
    store: S3Store, proxy: FaultyProxy
) -> None:
    proxy.drop_response_once("PUT")
    proxy.answer(503, method="GET", body=SLOW_DOWN)
    proxy.drop_response_once("GET")
    store.create(PATH, DATA)
    assert store.read(PATH) == DATA


@pytest.mark.parametrize(
    ("status", "body"), [(409, CONFLICT), (503, SLOW_DOWN), (500, ""), (429, SLOW_DOWN), (408, "")]
)
def test_a_put_is_tried_again_after_an_answer_that_may_pass(
    status: int, body: str, store: S3Store, proxy: FaultyProxy
) -> None:
    proxy.answer(status, body=body, times=2)
    store.create(PATH, DATA)
    assert store.read(PATH) == DATA
    assert proxy.count("PUT") == 3


def test_a_412_of_which_nothing_is_found_is_tried_again(store: S3Store, proxy: FaultyProxy) -> None:
    proxy.answer(412, body="<Error><Code>PreconditionFailed</Code></Error>")
    store.create(PATH, DATA)
    assert store.read(PATH) == DATA


def test_another_writers_object_is_never_taken_for_ones_own(
    store: S3Store, proxy: FaultyProxy, bucket: str, moto_s3: S3Server
) -> None:
    store_at(moto_s3, bucket).create(PATH, b"another writer's")
    for _ in range(2):
        with pytest.raises(FileExistsError):
            store.create(PATH, DATA)
        proxy.drop_response_once("PUT")  # the second time the 412 itself is lost
    assert store.read(PATH) == b"another writer's"


@pytest.mark.parametrize("status", [403, 404, 501])
def test_what_does_not_pass_is_refused_with_the_stores_words(
    status: int, moto_s3: S3Server, bucket: str, proxy: FaultyProxy
) -> None:
    store = store_at(moto_s3.through(proxy), bucket, write_timeout_seconds=2)
    proxy.answer(status, body="<Error><Code>NoSuchThing</Code></Error>", times=50)
    begin = time.monotonic()
    with pytest.raises(StoreUnavailable, match="is unavailable") as caught:
        store.create(PATH, DATA)
    assert time.monotonic() - begin < 5
    assert "NoSuchThing" in str(caught.value) or str(status) in str(caught.value)


def test_a_store_that_stays_silent_is_given_up_when_the_writes_time_is_over(
    moto_s3: S3Server, bucket: str, proxy: FaultyProxy
) -> None:
    store = store_at(moto_s3.through(proxy), bucket, write_timeout_seconds=2, request_timeout_seconds=0.4)
    proxy.latency_seconds = 10
    begin = time.monotonic()
    with pytest.raises(StoreUnavailable):
        store.create(PATH, DATA)
    assert 1 < time.monotonic() - begin < 4


@pytest.mark.slow
def test_lost_answers_make_no_second_segment_and_no_early_ack(
    tmp_path: Path, moto_s3: S3Server, proxy: FaultyProxy, bucket: str
) -> None:
    """A segment whose answer is lost, conflicted or slowed down, and then others beside and behind it."""
    settings = s3_settings(moto_s3.through(proxy), bucket, s3={"request_timeout_seconds": 1})
    account = Account()
    with running_receiver(tmp_path / "receiver", settings | {"receive": {"workers": 1}}) as receiver:
        client = Client(receiver, "http")
        for fault in (
            lambda: proxy.drop_response_once("PUT", how="close"),
            lambda: proxy.drop_response_once("PUT", how="hang"),
            lambda: proxy.answer(409, body=CONFLICT),
            lambda: proxy.answer(503, body=SLOW_DOWN, times=3),
        ):
            fault()
            before = Counter(found_logs(receiver.config))
            texts = fresh_texts(2)
            assert account.note(client.send(texts)).answer == "ok"
            now = found_logs(receiver.config)
            assert now - before == Counter(texts)  # there, once, when the ack came
            burst(receiver, account)
        client.close()
        assert proxy.dropped("PUT") == 2
        assert not account.answers("refused")
        assert len(streams(receiver.config)) == 1  # nothing was given up
        check_wal(receiver, account)
        assert sum(found_logs(receiver.config).values()) == len(account.acked)
