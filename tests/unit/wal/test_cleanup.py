"""Clean-up: all that lies below the position, nothing else, and a stream is gone only when it really is."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import DeleteRefused, SegmentCorrupt, StoreUnavailable
from frazil.position import StreamPosition, WalPosition
from frazil.storage import Store
from frazil.storage.local import LocalStore
from frazil.wal import cleanup
from frazil.wal.reader import WalReader
from tests.components.fixtures import FaultyProxyFactory
from tests.components.s3 import S3Server
from tests.support.wal_stores import CleanUp, MemoryStore, clean_up, s3_store, set_aside_copies
from tests.unit.wal.test_reader import STREAMS, name

NOTHING = frozenset[str]()


def holding(*places: tuple[int, int], store: Store | None = None) -> Store:
    store = store or MemoryStore()
    for place in places:
        store.create(name(*place).path, b"%d" % place[1])
    return store


def left(store: Store) -> list[str]:
    return [entry.path for entry in store.list("")]


def at(first: int, second: int | None = None, *, closed: bool = False) -> WalPosition:
    """The first stream, which may be closed, and perhaps a second."""
    streams = {STREAMS[0]: StreamPosition(first, closed=closed)}
    return WalPosition(streams if second is None else {**streams, STREAMS[1]: StreamPosition(second)})


@pytest.fixture(params=["memory", "local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    match request.param:
        case "memory":
            return MemoryStore()
        case "local":
            return LocalStore(tmp_path / "wal")
    server: S3Server = request.getfixturevalue("moto_s3")
    return s3_store(server, server.make_bucket(f"wal-{secrets.token_hex(6)}"))


def test_what_lies_below_the_position_goes_and_all_else_stays(store: Store) -> None:
    holding(*((stream, sequence) for stream in range(3) for sequence in range(8, 14)), store=store)
    foreign = ["logs/notes.txt", f"logs/{STREAMS[0]}/notes.txt", f"set-aside/{name(0, 8).path}"]
    others = [f"spans/{STREAMS[0]}/{8:020d}.parquet", f"lease/pipeline/{8:020d}.json"]
    for path in foreign + others:
        store.create(path, b"x")
    assert clean_up(store, "logs", at(10, 11)) == CleanUp(5, 6, NOTHING)
    kept = [(0, 10), (0, 11), (0, 12), (0, 13), (1, 11), (1, 12), (1, 13), *((2, n) for n in range(8, 14))]
    assert sorted(left(store)) == sorted([name(*place).path for place in kept] + foreign + others)
    assert clean_up(store, "logs", at(10, 11)) == CleanUp(0, 0, NOTHING)


def test_a_closed_stream_is_gone_when_nothing_of_it_is_left(store: Store) -> None:
    holding((0, 2), (0, 3), (1, 5), store=store)
    position = at(4, 5, closed=True)
    assert clean_up(store, "logs", position) == CleanUp(2, 2, frozenset({STREAMS[0]}))
    assert list(store.children("logs/").folders) == [STREAMS[1]]
    again = clean_up(store, "logs", position)  # nobody may have heard of it the first time
    assert again == CleanUp(0, 0, frozenset({STREAMS[0]}))


def test_a_closed_stream_with_something_above_its_end_is_not_gone(store: Store) -> None:
    holding((0, 2), (0, 3), (0, 4), store=store)
    assert clean_up(store, "logs", at(4, closed=True)) == CleanUp(2, 2, NOTHING)
    assert left(store) == [name(0, 4).path]


def test_a_closed_stream_with_a_foreign_file_is_gone_and_the_file_stays(store: Store) -> None:
    holding((0, 3), store=store)
    store.create(f"logs/{STREAMS[0]}/notes.txt", b"x")
    assert clean_up(store, "logs", at(4, closed=True)).empty_streams == {STREAMS[0]}
    assert left(store) == [f"logs/{STREAMS[0]}/notes.txt"]


def test_a_live_stream_is_never_gone_however_empty() -> None:
    store = holding((0, 2), (0, 3))
    assert clean_up(store, "logs", at(4)) == CleanUp(2, 2, NOTHING)
    assert left(store) == []
    assert clean_up(store, "logs", at(4)).empty_streams == NOTHING


def test_the_oldest_go_first_and_no_more_than_the_limit() -> None:
    store = holding(*((stream, sequence) for stream in (1, 0) for sequence in (3, 2, 1, 0)))
    position = at(4, 4, closed=True)
    for deleted in (3, 3, 2, 0):
        expected = sorted(left(store))[deleted:]
        assert clean_up(store, "logs", position, limit=3).deleted == deleted
        assert left(store) == expected


def test_tombstones_go_last() -> None:
    store = holding(*((stream, sequence) for stream in (0, 1, 2) for sequence in range(3)))
    assert isinstance(store, MemoryStore)
    order: list[str] = []
    store.before_delete = order.append
    position = WalPosition({stream: StreamPosition(3, closed=True) for stream in STREAMS})
    assert clean_up(store, "logs", position).empty_streams == frozenset(STREAMS)
    assert sorted(order[-3:]) == [name(stream, 2).path for stream in range(3)]


def test_set_aside_copies_outlive_their_originals() -> None:
    store = holding((0, 0), (0, 1))
    reader = WalReader(store)
    aside = reader.set_aside(name(0, 0), SegmentCorrupt(name(0, 0).path, "damaged"))
    assert clean_up(store, "logs", at(2, closed=True)).empty_streams == {STREAMS[0]}
    assert [path for path, _ in set_aside_copies(store)] == [aside]
    assert store.read(aside) == b"0"


places = st.sets(st.tuples(st.integers(0, 2), st.integers(0, 6)), max_size=18)
positions = st.dictionaries(
    st.sampled_from(STREAMS), st.builds(StreamPosition, st.integers(0, 7), closed=st.booleans())
).map(WalPosition)


@given(places, positions, st.integers(1, 20), st.integers(1, 5))
def test_whichever_deletion_fails_doing_it_again_ends_the_same(
    there: set[tuple[int, int]], position: WalPosition, fail_at: int, limit: int
) -> None:
    store = holding(*there)
    assert isinstance(store, MemoryStore)
    below = {
        name(*place).path
        for place in there
        if place[1] < position.streams.get(STREAMS[place[0]], StreamPosition()).sequence
    }
    above = set(left(store)) - below
    countdown = iter(range(fail_at - 1))

    def fail_once(path: str) -> None:
        if next(countdown, None) is None:
            store.before_delete = lambda path: None
            raise StoreUnavailable("no answer")

    store.before_delete = fail_once
    gone: frozenset[str] = frozenset()
    for _ in range(20):
        try:
            done = clean_up(store, "logs", position, limit)
        except StoreUnavailable:
            continue
        gone = done.empty_streams
        for stream in gone:
            assert position.streams[stream].closed
            assert not list(store.list(f"logs/{stream}/"))
    assert set(left(store)) == above
    closed = {stream for stream, place in position.streams.items() if place.closed}
    assert gone == closed - {path.split("/")[1] for path in above}


@pytest.mark.parametrize("server", ["moto_s3", pytest.param("versitygw_s3", marks=pytest.mark.go)])
def test_a_bucket_gets_one_delete_request_for_a_thousand_segments(
    server: str, request: pytest.FixtureRequest, faulty_proxy: FaultyProxyFactory
) -> None:
    s3: S3Server = request.getfixturevalue(server)
    proxy = faulty_proxy(s3.host, s3.port)
    store = s3_store(
        s3.through(proxy), s3.make_bucket(f"wal-{secrets.token_hex(6)}"), request_timeout_seconds=60
    )
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(lambda place: holding(place, store=store), [(s, n) for s in (0, 1) for n in range(700)])
        )
    listings = proxy.count("GET")
    assert clean_up(store, "logs", at(600, 600)) == CleanUp(1200, 1200 * 3 - 2 * (10 + 100), NOTHING)
    assert proxy.count("POST") == 2
    assert proxy.count("DELETE") == 0
    assert proxy.count("GET") - listings <= 4  # the streams, twice, and each stream
    assert left(store) == [name(stream, sequence).path for stream in (0, 1) for sequence in range(600, 700)]


KEY_REFUSED = (
    f"<DeleteResult><Deleted><Key>{name(0, 0).path}</Key></Deleted><Error><Key>{name(0, 1).path}</Key>"
    "<Code>AccessDenied</Code><Message>locked</Message></Error></DeleteResult>"
)


def test_a_key_that_a_bucket_refuses_to_delete_holds_up_no_other_but_the_tombstones(
    moto_s3: S3Server, faulty_proxy: FaultyProxyFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "SEGMENTS_AT_ONCE_MAX", 2)
    proxy = faulty_proxy(moto_s3.host, moto_s3.port)
    store = s3_store(moto_s3.through(proxy), moto_s3.make_bucket(f"wal-{secrets.token_hex(6)}"), prefix="")
    holding(*((stream, sequence) for stream in (0, 1) for sequence in range(4)), store=store)
    proxy.answer(200, method="POST", body=KEY_REFUSED)
    with pytest.raises(DeleteRefused, match="locked"):
        clean_up(store, "logs", at(4, 4, closed=True))
    tombstone = name(0, 3).path
    assert left(store) == [name(0, 0).path, name(0, 1).path, tombstone]
    assert clean_up(store, "logs", at(4, 4, closed=True)).empty_streams == {STREAMS[0]}
    assert left(store) == []


def test_a_bucket_that_does_not_answer_is_told_and_asked_no_further(
    moto_s3: S3Server, faulty_proxy: FaultyProxyFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = faulty_proxy(moto_s3.host, moto_s3.port)
    store = s3_store(moto_s3.through(proxy), moto_s3.make_bucket(f"wal-{secrets.token_hex(6)}"))
    holding((0, 0), store=store)
    asked: list[int] = []
    real = obstore.delete
    monkeypatch.setattr(obstore, "delete", lambda at, paths: (asked.append(len(paths)), real(at, paths))[1])
    proxy.refuse()
    with pytest.raises(StoreUnavailable):
        store.delete_all([name(0, sequence).path for sequence in range(100_000)])
    assert 1 <= len(asked) < 100
    assert set(asked) == {1000}
    proxy.resume()
    assert left(store) == [name(0, 0).path]
