"""A journal in this process, over stores that misbehave in ways no proxy can bring about on time."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from frazil.config import Config, LocalWalConfig, WalConfig
from frazil.errors import StoreUnavailable, StoreUnsafe
from frazil.storage import Entry, Store
from frazil.storage.local import LocalStore
from frazil.wal import SegmentName, new_stream, open_store
from frazil.wal import journal as journal_module
from frazil.wal.group import Receipt
from frazil.wal.journal import Journal, SegmentJournal
from tests.components.s3 import S3Server
from tests.support.fault.buckets import new_bucket, s3_settings
from tests.support.fault.records import logs_request
from tests.support.fault.traffic import found_logs, fresh_texts
from tests.support.group_commit import Seen


class Around:
    """A store around another: `creating` is called before each create and may wait or raise."""

    def __init__(self, inner: Store, creating: Callable[[str], None] = lambda path: None) -> None:
        self._inner, self.creating = inner, creating

    def create(self, path: str, data: bytes) -> None:
        self.creating(path)
        self._inner.create(path, data)

    def read(self, path: str) -> bytes:
        return self._inner.read(path)

    def list(self, prefix: str) -> Iterator[Entry]:
        return self._inner.list(prefix)

    def delete(self, path: str) -> None:
        self._inner.delete(path)

    def now(self) -> float:
        return self._inner.now()

    def describe(self) -> str:
        return self._inner.describe()


def wait_for(event: threading.Event) -> Callable[[str], None]:
    def wait(path: str) -> None:
        assert event.wait(10)

    return wait


def local_config(folder: Path, **wal: object) -> Config:
    local = LocalWalConfig(free_bytes_min=0)
    return Config(data_dir=folder, wal=WalConfig(local=local, group_wait_seconds=0.001, **wal))


async def append(journal: Journal, text: str) -> Receipt:
    return await journal.append("logs", logs_request([text]), "default", time.time_ns())


async def eventually(condition: Callable[[], bool], seconds_max: float = 10) -> None:
    async with asyncio.timeout(seconds_max):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.fixture(params=["local", "s3"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Config:
    if request.param == "local":
        return local_config(tmp_path)
    server: S3Server = request.getfixturevalue("moto_s3")
    return Config.model_validate(s3_settings(server, new_bucket(server), group_wait_seconds=0.001))


def test_a_tombstone_at_the_next_sequence_makes_the_writer_open_a_new_stream(config: Config) -> None:
    """Whoever took the writer for dead has closed its stream; its requests are acked and there once."""
    ids = [new_stream() for _ in range(8)]
    supply = iter(ids)
    notes = Seen()
    store = open_store(config)
    texts = fresh_texts(5)

    async def live() -> None:
        journal = SegmentJournal(config, store, notes, stream_ids=lambda: next(supply))
        await journal.start()
        await append(journal, texts[0])
        first = notes.written[0].name
        store.create(SegmentName("logs", first.stream, first.sequence + 1).path, b"tombstone")
        await asyncio.gather(*(append(journal, text) for text in texts[1:4]))
        assert {segment.name.stream for segment in notes.written[1:]} != {first.stream}
        await append(journal, texts[4])
        await journal.close()

    asyncio.run(live())
    assert notes.failed == []
    assert notes.written[1].name.sequence == 0
    names = [segment.name for segment in notes.written]
    assert len(set(names)) == len(names)
    first = names[0]
    store.delete(SegmentName("logs", first.stream, first.sequence + 1).path)
    found = found_logs(config)
    assert found == dict.fromkeys(texts, 1)


def test_a_stream_id_that_comes_twice_is_found_out_and_overwrites_nothing(config: Config) -> None:
    same = new_stream()
    texts = fresh_texts(2)
    for text in texts:
        supply = iter([same] * 3 + [new_stream() for _ in range(9)])

        async def live(text: str = text, supply: Iterator[str] = supply) -> None:
            journal = SegmentJournal(config, open_store(config), Seen(), stream_ids=lambda: next(supply))
            await journal.start()
            await append(journal, text)
            await journal.close()

        asyncio.run(live())
    assert found_logs(config) == dict.fromkeys(texts, 1)


def test_no_ack_before_the_store_says_durable(tmp_path: Path) -> None:
    config = local_config(tmp_path)
    let_go = threading.Event()
    store = Around(open_store(config))

    async def live() -> None:
        journal = SegmentJournal(config, store, Seen())
        await journal.start()
        store.creating = wait_for(let_go)
        acks = [asyncio.create_task(append(journal, text)) for text in fresh_texts(3)]
        done, _ = await asyncio.wait(acks, timeout=0.2)
        assert done == set()
        let_go.set()
        await asyncio.gather(*acks)
        await journal.close()

    asyncio.run(live())


def test_a_store_that_always_has_the_name_already_is_given_up_soon(tmp_path: Path) -> None:
    """Else a writer would open stream after stream, each time with a PUT, for one request."""
    config = local_config(tmp_path)
    store = Around(open_store(config))
    tried: list[str] = []

    def taken(path: str) -> None:
        tried.append(path)
        raise FileExistsError(path)

    async def live() -> None:
        journal = SegmentJournal(config, store, Seen())
        await journal.start()
        store.creating = taken
        with pytest.raises(StoreUnavailable):
            await append(journal, "text")
        store.creating = lambda path: None
        await journal.close()

    asyncio.run(live())
    assert 0 < len(tried) < 20


def test_what_waited_behind_a_failed_segment_is_refused_with_it(tmp_path: Path) -> None:
    """Otherwise each group of a full queue would try the dead store for its whole time: minutes."""
    config = local_config(tmp_path, segment_bytes_max=1024)
    store = Around(open_store(config))
    tried: list[str] = []
    all_waiting = threading.Event()

    def down(path: str) -> None:
        if path.startswith("logs/"):
            tried.append(path)
            all_waiting.wait(10)
        raise StoreUnavailable("down")

    async def live() -> None:
        journal = SegmentJournal(config, store, Seen())
        await journal.start()
        store.creating = down
        requests = [asyncio.create_task(append(journal, "x" * 900 + str(n))) for n in range(10)]
        await eventually(lambda: bool(tried))
        all_waiting.set()
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
        assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
        store.creating = lambda path: None
        await journal.close()

    asyncio.run(live())
    assert len(tried) <= 2


def test_a_defect_while_recovering_does_not_end_the_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_RECOVERY_SECONDS", 0.01)
    config = local_config(tmp_path)
    store = Around(open_store(config))
    errors: list[Exception] = [StoreUnavailable("down"), RuntimeError("a defect"), FileNotFoundError("gone")]

    def failing(path: str) -> None:
        if errors:
            raise errors.pop(0)

    async def live() -> None:
        journal = SegmentJournal(config, store, Seen())
        await journal.start()
        store.creating = failing
        with pytest.raises(StoreUnavailable):
            await append(journal, "refused")
        assert journal.failure is not None
        await eventually(lambda: journal.failure is None)
        await append(journal, "acked")
        await journal.close()

    asyncio.run(live())
    assert found_logs(config) == {"acked": 1}


def test_a_store_found_unsafe_after_the_start_is_not_given_another_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that lets two win now and then passes a probe now and then."""
    monkeypatch.setattr(journal_module, "_RECOVERY_SECONDS", 0.01)
    outcomes: list[Exception] = [StoreUnavailable("down"), StoreUnsafe("two won")]
    probes = 0

    def probe(store: Store) -> object:
        nonlocal probes
        probes += 1
        if outcomes:
            raise outcomes.pop(0)
        raise AssertionError("probed again")

    monkeypatch.setattr(journal_module, "probe_store", probe)
    config = local_config(tmp_path)

    async def live() -> None:
        journal = SegmentJournal(config, open_store(config), Seen())
        await journal.start()
        await eventually(lambda: isinstance(journal.failure, StoreUnsafe))
        await asyncio.sleep(0.2)  # twenty chances to probe again
        with pytest.raises(StoreUnsafe):
            await append(journal, "refused")
        await journal.close()

    asyncio.run(live())
    assert probes == 2


def test_a_start_does_not_wait_for_a_silent_store_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_START_SECONDS", 0.05)
    config = local_config(tmp_path)
    http_stub = threading.Event()
    store = Around(open_store(config), wait_for(http_stub))

    async def live() -> None:
        journal = SegmentJournal(config, store, Seen())
        await journal.start()
        with pytest.raises(StoreUnavailable, match="has not responded yet"):
            await append(journal, "refused")
        http_stub.set()
        await eventually(lambda: journal.failure is None)
        await append(journal, "acked")
        await journal.close()

    asyncio.run(live())
    assert found_logs(config) == {"acked": 1}


def test_what_killed_writers_left_is_removed_while_the_journal_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver restarts at once after a crash: its start alone would find the leftovers too young."""
    monkeypatch.setattr(journal_module, "_RECOVERY_SECONDS", 0.01)
    monkeypatch.setattr(journal_module, "_REMOVE_ABANDONED_SECONDS", 0.05)
    config = local_config(tmp_path)
    left, young = (tmp_path / "wal" / ".incoming" / f"{name}.tmp" for name in ("left", "young"))

    async def live() -> None:
        journal = SegmentJournal(config, open_store(config), Seen())
        await journal.start()
        for place in (left, young):
            place.write_bytes(b"half a segment")
        hours_ago = time.time() - 7200
        os.utime(left, (hours_ago, hours_ago))
        await eventually(lambda: not left.exists())
        await journal.close()

    asyncio.run(live())
    assert young.exists()


def test_many_starts_with_the_clock_going_backwards_never_share_a_name(tmp_path: Path) -> None:
    config = local_config(tmp_path)
    now = 1_800_000_000.0
    texts = fresh_texts(12)
    for number, text in enumerate(texts):
        clock = (
            now - number * 86_400 if number % 2 else now
        )  # the same instant again and again, or a day earlier

        async def live(text: str = text, clock: float = clock) -> None:
            journal = SegmentJournal(
                config, LocalStore(config.wal_dir), Seen(), stream_ids=lambda: new_stream(clock)
            )
            await journal.start()
            await append(journal, text)
            await append(journal, f"{text}-again")
            await journal.close()

        asyncio.run(live())
    assert found_logs(config) == dict.fromkeys([*texts, *(f"{text}-again" for text in texts)], 1)
    streams = [place.name for place in (config.wal_dir / "logs").iterdir()]
    assert len(streams) == len(texts)


def test_stream_ids_of_one_instant_differ_and_are_names_that_the_reader_knows() -> None:
    for clock in (0.0, 1.0, 951_782_400.0, 1_800_000_000.9999, 4_102_444_799.5):
        ids = {new_stream(clock) for _ in range(2000)}
        assert len(ids) == 2000
        for stream in ids:
            name = SegmentName("spans", stream, 7)
            assert SegmentName.parse(name.path) == name
