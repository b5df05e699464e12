"""Keeps the number of counted source rows in the position of a derived table (`SourcePosition.counted`), with
which `frazil verify` compares the table's rows.

An append adds the source rows that it read. Days that are derived again add the difference. If the table's
rows did not agree with the number before, because files were lost or rows were counted twice, the difference
that a replaced day makes up for is not added: afterwards rows and number agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from frazil.errors import Conflict
from frazil.lake.counted import counted_in
from frazil.lake.live_files import live_files
from frazil.position import SourcePosition, source_position
from frazil.tables import TableSpec


def appended(before: SourcePosition, until: SourcePosition, source_rows: int) -> SourcePosition:
    """Returns the position after `source_rows` more rows of the source were derived, up to `until`."""
    counted = None if before.counted is None else before.counted + source_rows
    return replace(until, counted=counted, replacements=before.replacements)


def replaced(text: str, *, table: str, before: SourcePosition, change: int) -> str:
    """Returns the position after days were replaced, with `change` more rows counted. Raises Conflict if
    other days were replaced since `before` was read.
    """
    now = source_position(text)
    if now.replacements != before.replacements:
        raise Conflict(table, "days were derived again at the same time by another process")
    counted = None if now.counted is None else now.counted + change
    return replace(now, counted=counted, replacements=now.replacements + 1).to_text()


def place_of(position: SourcePosition) -> SourcePosition:
    """Returns the position in the source alone, which several tables can share."""
    return replace(position, counted=None, replacements=0)


class Counting:
    """Computes the changes of the number. One object serves all tables of a deriver."""

    def __init__(self) -> None:
        self._excess: dict[str, int] = {}
        """Rows in the table beyond the number in its position, by table. All rows of the table are read once:
        only damage changes the excess, apart from the changes here.
        """
        self._planned: dict[str, int] = {}

    def change(
        self,
        spec: TableSpec,
        table: Table,
        removed: Sequence[DataFile],
        source_rows: int,
        counted: int | None,
    ) -> int:
        """Returns by how much the number changes if the files are replaced by what was derived from
        `source_rows` rows. `counted` is the number now.
        """
        if spec.derived is None or not spec.derived.counts or counted is None:
            return 0
        excess = self._excess.get(spec.name)
        if excess is None:
            excess = counted_in(table, [each.file for each in live_files(table)], spec.derived) - counted
        change = source_rows - counted_in(table, removed, spec.derived)
        mended = 0
        if excess > 0 > change:
            mended = max(change, -excess)
        elif excess < 0 < change:
            mended = min(change, -excess)
        self._planned[spec.name] = excess + mended
        return change - mended

    def committed(self, name: str) -> None:
        """Notes that the last change was committed."""
        if name in self._planned:
            self._excess[name] = self._planned.pop(name)

    def forget(self, name: str) -> None:
        self._excess.pop(name, None)
        self._planned.pop(name, None)
