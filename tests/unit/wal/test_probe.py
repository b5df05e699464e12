"""The probe: lets honest stores pass, and finds each way in which conditional writes do not work."""

from __future__ import annotations

import threading

import pytest

from frazil.errors import StoreUnavailable, StoreUnsafe
from frazil.wal.store import probe_store
from tests.support.wal_stores import MemoryStore


class LastWriterWins(MemoryStore):
    """Ignores the condition, as S3 servers do that do not know If-None-Match."""

    def create(self, path: str, data: bytes) -> None:
        self.objects[path] = data


class ChecksThenWrites(MemoryStore):
    """Looks first and writes then: right when alone, wrong when two do it at once."""

    def __init__(self, writers: int) -> None:
        super().__init__()
        self._looked = threading.Barrier(writers)

    def create(self, path: str, data: bytes) -> None:
        there = path in self.objects
        self._looked.wait(10)
        if there:
            raise FileExistsError(path)
        self.objects[path] = data


class KeepsAnother(MemoryStore):
    def create(self, path: str, data: bytes) -> None:
        super().create(path, data)
        self.objects[path] = b"something else"


class Forgets(MemoryStore):
    def read(self, path: str) -> bytes:
        raise FileNotFoundError(path)


class LetsNobodyWin(MemoryStore):
    def create(self, path: str, data: bytes) -> None:
        raise FileExistsError(path)


def test_an_honest_store_passes_and_nothing_is_left_behind() -> None:
    store = MemoryStore()
    result = probe_store(store, writers=8, rounds=3)
    assert (result.rounds, result.writers) == (3, 8)
    assert len(set(store.created)) == 3
    assert store.objects == {}


@pytest.mark.parametrize(
    "store", [LastWriterWins(), ChecksThenWrites(8), KeepsAnother(), Forgets(), LetsNobodyWin()]
)
def test_a_store_whose_conditional_writes_do_not_hold_is_unsafe(store: MemoryStore) -> None:
    with pytest.raises(StoreUnsafe, match="memory"):
        probe_store(store, writers=8, rounds=1)
    assert store.objects == {}


def test_a_store_that_does_not_answer_is_unavailable_not_unsafe() -> None:
    store = MemoryStore()

    def fail(path: str, data: bytes) -> None:
        raise StoreUnavailable("down")

    store.before_create = fail
    with pytest.raises(StoreUnavailable, match="down"):
        probe_store(store)


def test_two_winners_are_unsafe_even_if_others_got_no_answer() -> None:
    store = LastWriterWins()
    calls = iter(range(100))

    real = store.create

    def sometimes(path: str, data: bytes) -> None:
        if next(calls) == 0:
            raise StoreUnavailable("down")
        real(path, data)

    store.create = sometimes  # type: ignore[method-assign]
    with pytest.raises(StoreUnsafe):
        probe_store(store, writers=4, rounds=1)


def test_a_store_that_cannot_delete_the_probe_still_passes() -> None:
    store = MemoryStore()

    def fail(path: str) -> None:
        raise StoreUnavailable("down")

    store.delete = fail  # type: ignore[method-assign]
    probe_store(store, writers=2, rounds=1)
