"""The protocol of a store: a local file system or an S3 bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, NamedTuple, Protocol

StoreName = Literal["wal", "lake"]
"""What a store is used for. It is a label of the store metrics."""


@dataclass(frozen=True)
class Entry:
    path: str
    size: int
    modified_seconds: float = field(compare=False)
    """The store's clock, in seconds since 1970."""


class Listing(NamedTuple):
    """The names directly below a folder, sorted."""

    folders: tuple[str, ...]
    files: tuple[str, ...]


class Store(Protocol):
    """Objects under slash-separated paths. Every method may be called from any thread.

    Transient failures raise StoreUnavailable; a missing path raises FileNotFoundError. A folder may end with
    a slash; the empty path is the root.
    """

    name: StoreName

    def describe(self) -> str:
        """Returns the store's location, for messages."""
        ...

    def create(self, path: str, data: bytes | memoryview, *, overwrite: bool = False) -> None:
        """Writes an object: durable when it returns. Raises FileExistsError if the path holds other bytes
        than `data`, unless `overwrite`.

        The same bytes count as success, because an earlier attempt may have lost its response. Writers that
        compete for a path put a nonce into `data`.
        """

    def temporary(self, path: str) -> Path:
        """Returns the path of a local file to write and then `publish` as `path`. It may exist, empty."""
        ...

    def publish(self, path: str, local_file: Path, storage_class: str | None = None) -> None:
        """Stores a `temporary` file as `path`: durable when it returns. Always removes the local file. Raises
        FileExistsError if the path exists. A file system ignores `storage_class`.
        """

    def read(self, path: str) -> bytes: ...

    def open(self, path: str) -> IO[bytes]:
        """Returns a seekable file that pyarrow can read."""
        ...

    def local(self, path: str) -> AbstractContextManager[Path]:
        """Returns a local path of the object: the file itself, or a copy that is deleted after the block. A
        missing object raises FileNotFoundError here or when the path is opened.
        """
        ...

    def size(self, path: str) -> int:
        """Returns the bytes of an object."""
        ...

    def list(self, folder: str, after: str | None = None) -> Iterator[Entry]:
        """Yields all objects below a folder, ordered by path, that come after the path `after`.

        Skipped objects cost nothing, so that a long stream can be listed from its end. Does not follow links.
        """
        ...

    def children(self, folder: str) -> Listing:
        """Returns the names directly in a folder; none if it does not exist."""
        ...

    def delete(self, path: str) -> None:
        """Deletes an object: durable when it returns. A missing object is no error."""

    def delete_all(self, paths: Sequence[str]) -> None:
        """Deletes many objects in no order. If it raises, some may have been deleted."""

    def remove_folder(self, path: str) -> None:
        """Removes a folder if it is empty and the store has folders.

        Afterwards all deletions in it are durable, even those of a process that died before it synced them.
        """

    def remove_empty_folders(self, path: str, unchanged_since: float) -> int:
        """Removes folders below `path` that are empty and unchanged since then. Returns their number."""
        ...

    def now(self, folder: str | None = None) -> float:
        """Returns the store's clock in seconds since 1970. Writes and deletes a small object, in `folder`,
        which must exist, or where the store keeps temporary objects.
        """
        ...
