"""What carries a question to the query service and its answer back, whichever way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from frazil.errors import Transient
from frazil.query.model import Progress, Query, Stats, TableInfo


class Unreachable(Transient):
    """Nothing answers there, or the answer broke off."""


@dataclass(frozen=True)
class Reply:
    """The beginning of an answer. Exhaust `content`, or close it: a worker waits for it."""

    stats: Stats
    content: Iterator[bytes]
    close: Callable[[], None] = field(default=lambda: None)


class Transport(Protocol):
    @property
    def place(self) -> str:
        """Where questions go, for people."""

    def execute(self, query: Query) -> Reply: ...
    def tables(self) -> Sequence[TableInfo]: ...
    def progress(self, id: str) -> Progress | None: ...
    def cancel(self, id: str) -> bool: ...
    def close(self) -> None: ...
