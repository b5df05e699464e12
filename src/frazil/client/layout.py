"""Lays out rows as a table, or as one record per row if there are too many columns for the width."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size

from frazil.client.text_format import NULL, one_line
from frazil.query.model import ResultColumn

Line = list[tuple[str, str]]
"""Pairs of text and style."""

_GAP = "  "
_WIDTH_MIN = 8
"""Minimum column width. If the columns still do not fit, rows are shown as records."""
_NUMBER = re.compile(
    r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?[0-9]*|LONG|REAL|(HALF_?)?FLOAT|DOUBLE|DECIMAL.*", re.IGNORECASE
)


class Grid:
    """A table of text. With `width` None, nothing is truncated. None as a cell means NULL."""

    def __init__(
        self, columns: Sequence[ResultColumn], rows: Sequence[Sequence[str | None]], width: int | None = None
    ) -> None:
        self._names = [one_line(column.name) for column in columns]
        self._right = [_is_number(column.type) for column in columns]
        self._rows = rows
        self._width = width
        natural = [cell_len(name) for name in self._names]
        for row in rows:
            for index, cell in enumerate(row):
                natural[index] = max(natural[index], _len(cell))
        self._widths = natural if width is None else fit_widths(natural, width)

    @property
    def as_records(self) -> bool:
        """True if each row is shown as a record, with one line per column."""
        return self._widths is None

    def lines(self) -> Iterator[Line]:
        if self._widths is None:
            yield from self._records(self._width or 0)
            return
        yield self._line(self._names, self._widths, "bold")
        yield [(_GAP.join("─" * width for width in self._widths), "dim")]
        for row in self._rows:
            yield self._line(row, self._widths, "")

    @staticmethod
    def plain(line: Line) -> str:
        return "".join(text for text, _ in line)

    def _line(self, cells: Sequence[str | None], widths: Sequence[int], style: str) -> Line:
        line: Line = []
        last = len(cells) - 1
        for index, cell in enumerate(cells):
            text = truncate(NULL if cell is None else cell, widths[index])
            pad = " " * (widths[index] - cell_len(text))
            if self._right[index]:
                text = pad + text
            elif index < last:
                text += pad
            line.append((text, "dim" if cell is None else style))
            if index < last:
                line.append((_GAP, ""))
        return line

    def _records(self, width: int) -> Iterator[Line]:
        name_width = max(cell_len(name) for name in self._names)
        room = max(width - name_width - len(_GAP), _WIDTH_MIN)
        for number, row in enumerate(self._rows, start=1):
            title = f"─ {number} "
            yield [(title + "─" * max(0, min(width, 60) - len(title)), "dim")]
            for name, cell in zip(self._names, row, strict=True):
                value = (NULL, "dim") if cell is None else (truncate(cell, room), "")
                yield [(name + " " * (name_width - cell_len(name)) + _GAP, "bold"), value]


def fit_widths(natural: Sequence[int], width: int) -> list[int] | None:
    """Shrink the widest columns to a common size so that all fit. Returns None if they cannot."""
    room = width - len(_GAP) * (len(natural) - 1)
    if sum(natural) <= room:
        return list(natural)
    if sum(min(size, _WIDTH_MIN) for size in natural) > room:
        return None
    low, high = _WIDTH_MIN, max(natural)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(size, middle) for size in natural) <= room:
            low = middle
        else:
            high = middle - 1
    fitted = [min(size, low) for size in natural]
    spare = room - sum(fitted)
    for index, size in enumerate(natural):
        if spare > 0 and fitted[index] < size:
            fitted[index] += 1
            spare -= 1
    return fitted


def truncate(text: str, width: int) -> str:
    """Shorten the text to `width` terminal cells, with an ellipsis."""
    if len(text) <= width and text.isascii():
        return text
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - 1, 0)).rstrip() + "…"


def _len(cell: str | None) -> int:
    if cell is None:
        return len(NULL)
    return len(cell) if cell.isascii() else cell_len(cell)


def _is_number(type: str) -> bool:
    return _NUMBER.fullmatch(type) is not None
