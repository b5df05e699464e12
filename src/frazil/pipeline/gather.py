"""Work cut into tasks of a bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Piece = TypeVar("Piece")


def gathered(pieces: Iterable[Piece], bytes_of: Callable[[Piece], int], bytes_max: int) -> list[list[Piece]]:
    """In their order, as many together as are no more than `bytes_max`; a larger one is alone."""
    groups: list[list[Piece]] = []
    size = 0
    for piece in pieces:
        if not groups or size + bytes_of(piece) > bytes_max:
            groups.append([])
            size = 0
        groups[-1].append(piece)
        size += bytes_of(piece)
    return groups
