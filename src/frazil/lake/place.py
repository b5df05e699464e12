"""What the lake needs of a place that holds files: a disk, or a bucket."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from pyiceberg.io import InputStream


class Listing(NamedTuple):
    """The names directly below a folder."""

    folders: tuple[str, ...]
    files: tuple[str, ...]


class Place(Protocol):
    """Every method may be called from any thread. What may pass raises StoreUnavailable."""

    def write(self, path: str, data: memoryview, *, overwrite: bool) -> None:
        """Durable when it returns. Raises FileExistsError if the name is taken, unless it may overwrite."""

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
