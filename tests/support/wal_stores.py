"""Stores for tests: in memory, as slow, failing or dishonest as a test wants, or in a bucket. And a clock."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from frazil.config import S3WalConfig
from frazil.position import WalPosition
from frazil.storage import Entry, Listing, Store
from frazil.storage.s3 import S3Store
from frazil.tables import Signal
from frazil.wal.cleanup import clean_up_pass
from frazil.wal.reader import SET_ASIDE
from frazil.wal.store import open_bucket
from tests.components.s3 import S3Server


class HandClock:
    """Stands still until a test moves it."""

    def __init__(self, seconds: float = 1000.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


@dataclass(frozen=True)
class CleanUp:
    """The result of a whole pass of clean-up."""

    deleted: int
    bytes: int
    empty_streams: frozenset[str]


def clean_up(store: Store, signal: Signal, position: WalPosition, limit: int | None = None) -> CleanUp:
    """Runs a pass of clean-up to its end."""
    steps, deleted, size = clean_up_pass(store, signal, position, limit), 0, 0
    while True:
        try:
            batch = next(steps)
        except StopIteration as end:
            return CleanUp(deleted, size, end.value)
        deleted, size = deleted + batch.deleted, size + batch.bytes


def set_aside_copies(store: Store) -> list[tuple[str, dict[str, str]]]:
    """Returns the path of each copy of an unreadable segment, with its JSON facts."""
    notes = [entry.path for entry in store.list(f"{SET_ASIDE}/") if entry.path.endswith(".json")]
    return [(path.removesuffix(".json"), json.loads(store.read(path))) for path in notes]


def s3_store(server: S3Server, bucket: str, **settings: Any) -> S3Store:
    """The WAL's store in a bucket; `settings` as in wal.s3."""
    config = S3WalConfig.model_validate(
        {
            "bucket": bucket,
            "endpoint": server.endpoint,
            "allow_http": True,
            "access_key_id": server.access_key,
            "secret_access_key": server.secret_key,
            **settings,
        }
    )
    return open_bucket(config, 8)


class MemoryStore:
    """Keeps objects in a dictionary. What comes before a create or a delete may block or raise.

    `created` has the paths in their order, `listed` those that a listing looked at.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.created: list[str] = []
        self.before_create: Callable[[str, bytes], None] = lambda path, data: None
        self.before_delete: Callable[[str], None] = lambda path: None
        self.listed: list[str] = []
        self._lock = threading.Lock()

    def create(self, path: str, data: bytes) -> None:
        self.before_create(path, data)
        with self._lock:
            if self.objects.get(path, data) != data:
                raise FileExistsError(path)
            self.objects[path] = data
            self.created.append(path)

    def read(self, path: str) -> bytes:
        try:
            return self.objects[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def list(self, prefix: str, after: str | None = None) -> Iterator[Entry]:
        for path in sorted(self.objects):
            if path.startswith(prefix) and path > (after or "") and path in self.objects:
                self.listed.append(path)
                yield Entry(path, len(self.objects[path]), time.time())

    def children(self, prefix: str) -> Listing:
        below = [path.removeprefix(prefix) for path in sorted(self.objects) if path.startswith(prefix)]
        folders = sorted({path.partition("/")[0] for path in below if "/" in path})
        return Listing(tuple(folders), tuple(path for path in below if "/" not in path))

    def delete(self, path: str) -> None:
        self.before_delete(path)
        self.objects.pop(path, None)

    def delete_all(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.delete(path)

    def remove_folder(self, path: str) -> None: ...

    def now(self) -> float:
        return time.time()

    def describe(self) -> str:
        return "memory"
