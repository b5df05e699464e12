"""The interface between the client and a query service."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from frazil.errors import Transient
from frazil.query.model import Progress, Query, Stats, TableInfo


class Unreachable(Transient):
    """The service cannot be reached, or its response ended early."""


@dataclass(frozen=True)
class Reply:
    """A result whose content has not been read yet. Read all `content` or call `close`: a worker waits."""

    stats: Stats
    content: Iterator[bytes]
    close: Callable[[], None] = field(default=lambda: None)


class Transport(Protocol):
    @property
    def address(self) -> str:
        """The destination of queries, for people."""

    def execute(self, query: Query) -> Reply: ...
    def tables(self) -> Sequence[TableInfo]: ...
    def progress(self, id: str) -> Progress | None: ...
    def cancel(self, id: str) -> bool: ...
    def close(self) -> None: ...
