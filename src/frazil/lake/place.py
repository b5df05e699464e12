"""What the lake needs of a place that holds files: a disk, or a bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

from pyiceberg.io import InputStream


class Listing(NamedTuple):
    """The names directly below a folder."""

    folders: tuple[str, ...]
    files: tuple[str, ...]


class FoundFile(NamedTuple):
    """A file somewhere below a folder. `modified_seconds` is by the store's clock, since 1970."""

    path: str
    bytes: int
    modified_seconds: float


class Place(Protocol):
    """Every method may be called from any thread. What may pass raises StoreUnavailable."""

    def write(self, path: str, data: memoryview, *, overwrite: bool) -> None:
        """Durable when it returns. Raises FileExistsError if the name is taken, unless it may overwrite."""

    def temporary(self, path: str) -> Path:
        """Where to write a local file that is to be published as `path`. It may be there, and empty."""
        ...

    def publish(self, path: str, local_file: Path, storage_class: str | None = None) -> None:
        """What was written to a `temporary` gets its name, and the temporary is gone, also after a failure.
        Durable when it returns. Raises FileExistsError if the name is taken. A disk has no storage classes.
        """

    def local(self, path: str) -> AbstractContextManager[Path]:
        """The file on a local disk: itself, or a copy for as long as the block lasts. Raises
        FileNotFoundError, if not here then when it is opened.
        """
        ...

    def open(self, path: str) -> InputStream:
        """Seekable, and good for pyarrow. Raises FileNotFoundError."""
        ...

    def size(self, path: str) -> int:
        """In bytes. Raises FileNotFoundError."""
        ...

    def delete(self, path: str) -> None:
        """No error if it is gone already."""

    def list(self, path: str) -> Listing:
        """Empty for a folder that is not there."""
        ...

    def delete_all(self, paths: Sequence[str]) -> None:
        """As `delete`, of many at once. Where it fails, some of them may be gone."""

    def walk(self, path: str) -> Iterator[FoundFile]:
        """All files below a folder, however deep; none if it is not there. Links are not followed."""
        ...

    def now(self, folder: str) -> float:
        """The store's clock, in seconds since 1970. Takes a file, which is gone again afterwards."""
        ...

    def remove_empty_folders(self, path: str, unchanged_since: float) -> int:
        """Those below `path` in which nothing has come or gone since then. Returns how many went."""
        ...
