"""The protocol of a store: a local file system, or a bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, NamedTuple, Protocol

StoreName = Literal["wal", "lake"]
"""What a store is used for. Metrics carry it as a label."""


@dataclass(frozen=True)
class Entry:
    path: str
    size: int
    modified_seconds: float = field(compare=False)
    """By the store's clock, since 1970."""


class Listing(NamedTuple):
    """The names directly below a folder, sorted."""

    folders: tuple[str, ...]
    files: tuple[str, ...]


class Store(Protocol):
    """Objects under slash-separated paths. Every method may be called from any thread.

    Failures that may pass raise StoreUnavailable; a missing path raises FileNotFoundError. Folders are given
    with or without a slash at their end; the empty path is the root.
    """

    name: StoreName

    def describe(self) -> str:
        """Returns where the store is, for people."""
        ...

    def create(self, path: str, data: bytes | memoryview, *, overwrite: bool = False) -> None:
        """Writes an object: durable when it returns. Raises FileExistsError if the path holds other bytes
        than `data`, unless `overwrite`.

        The same bytes count as success: an earlier attempt whose answer was lost. Writers that compete for a
        path put a nonce into `data`.
        """

    def temporary(self, path: str) -> Path:
        """Returns where to write a local file that is to be published as `path`. It may exist, empty."""
        ...

    def publish(self, path: str, local_file: Path, storage_class: str | None = None) -> None:
        """Gives a `temporary` its name: durable when it returns. The local file is gone, also after a
        failure. Raises FileExistsError if the path is taken. A file system has no storage classes.
        """

    def read(self, path: str) -> bytes: ...

    def open(self, path: str) -> IO[bytes]:
        """Returns a seekable file, which pyarrow can read."""
        ...

    def local(self, path: str) -> AbstractContextManager[Path]:
        """Returns the file on a local disk: itself, or a copy that lives as long as the block. Raises
        FileNotFoundError, if not here then when it is opened.
        """
        ...

    def size(self, path: str) -> int:
        """Returns the bytes of an object."""
        ...

    def list(self, folder: str, after: str | None = None) -> Iterator[Entry]:
        """Yields all objects below a folder in the order of paths; only those after the path `after`.

        What is passed over costs nothing: a long stream can be listed from its end. Links are not followed.
        """
        ...

    def children(self, folder: str) -> Listing:
        """Returns what is directly in a folder; nothing if it does not exist."""
        ...

    def delete(self, path: str) -> None:
        """Durable when it returns; no error if the object does not exist."""

    def delete_all(self, paths: Sequence[str]) -> None:
        """As `delete`, of many, faster and in no order. If it raises, some may be deleted."""

    def remove_folder(self, path: str) -> None:
        """Removes a folder if it is empty, where the store has folders.

        Afterwards all deletions in it are durable, also those of a process that died before it synced them.
        """

    def remove_empty_folders(self, path: str, unchanged_since: float) -> int:
        """Removes folders below `path` that are empty and unchanged since then. Returns how many."""
        ...

    def now(self, folder: str | None = None) -> float:
        """Returns the store's clock, in seconds since 1970. Writes a small object and deletes it, in a folder
        that exists or where the store keeps its temporary objects.
        """
        ...
