"""What the WAL needs of a store, and the one place that opens it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from frazil.config import Config


@dataclass(frozen=True)
class Entry:
    path: str
    size: int
    modified_seconds: float | None = field(default=None, compare=False)
    """By the store's clock, since 1970, if it says so. Nothing but what people are shown may rest on it."""


class Store(Protocol):
    """Immutable objects under slash-separated paths. Every method may be called from any thread.

    Failures that may pass raise StoreUnavailable; a missing path raises FileNotFoundError.
    """

    def create(self, path: str, data: bytes) -> None:
        """Durable when it returns. Raises FileExistsError if the path holds other bytes than `data`.

        The same bytes count as success: an earlier attempt whose answer was lost. Callers put a nonce into
        `data`.
        """

    def read(self, path: str) -> bytes: ...

    def list(self, prefix: str, after: str | None = None) -> Iterator[Entry]:
        """What lies below a folder, in the order of paths; only what comes after the path `after`.

        `prefix` is empty or ends with a slash. What is passed over costs nothing: a long stream can be listed
        from its end.
        """
        ...

    def children(self, prefix: str) -> Sequence[str]:
        """The names of the folders directly below a folder, in order. `prefix` as in `list`."""
        ...

    def delete(self, path: str) -> None:
        """Durable when it returns; no error if it is gone already."""

    def delete_all(self, paths: Sequence[str]) -> None:
        """The same for many, faster and in no order. Where it raises, some may be gone."""

    def remove_folder(self, path: str) -> None:
        """Removes a folder if it is empty, where the store has such a thing.

        Afterwards all deletions in it are durable, also those of somebody who died over them.
        """

    def now(self) -> float:
        """The store's clock, in seconds since 1970. Writes a small object and deletes it."""
        ...

    def describe(self) -> str:
        """Where it is, for people."""
        ...


def open_store(config: Config) -> Store:
    if config.wal.type == "s3":
        from frazil.wal.s3 import S3Store

        assert config.wal.s3 is not None  # the configuration has checked that  # noqa: S101
        return S3Store(config.wal.s3, write_timeout_seconds=config.wal.write_timeout_seconds)
    from frazil.wal.local import LocalStore

    return LocalStore(config.wal_dir, config.wal.local.free_bytes_min)
