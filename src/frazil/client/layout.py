"""Rows laid out for a width: side by side, or one below the other when there are too many columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size

from frazil.client.cell_format import NULL, one_line
from frazil.query.model import ResultColumn

Line = list[tuple[str, str]]
"""Pieces of text with their style."""

_GAP = "  "
_WIDTH_MIN = 8
"""Columns are not cut to less. When that is too wide, rows are shown as records."""
_NUMBER = re.compile(
    r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?[0-9]*|LONG|REAL|(HALF_?)?FLOAT|DOUBLE|DECIMAL.*", re.IGNORECASE
)


class Grid:
    """A table of text. `width` None: nothing is cut. A cell that is None is NULL."""

    def __init__(
        self,
        columns: Sequence[ResultColumn],
        rows: Sequence[Sequence[str | None]],
        width: int | None = None,
    ) -> None:
        self._names = [one_line(column.name) for column in columns]
        self._right = [_is_number(column.type) for column in columns]
        self._rows = rows
        self._width = width
        natural = [cell_len(name) for name in self._names]
        for row in rows:
            for place, cell in enumerate(row):
                natural[place] = max(natural[place], _len(cell))
        self._widths = natural if width is None else fit_widths(natural, width)

    @property
    def as_records(self) -> bool:
        """Whether each row takes many lines."""
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
        for place, cell in enumerate(cells):
            text = cut(NULL if cell is None else cell, widths[place])
            pad = " " * (widths[place] - cell_len(text))
            if self._right[place]:
                text = pad + text
            elif place < last:
                text += pad
            line.append((text, "dim" if cell is None else style))
            if place < last:
                line.append((_GAP, ""))
        return line

    def _records(self, width: int) -> Iterator[Line]:
        name_width = max(cell_len(name) for name in self._names)
        room = max(width - name_width - len(_GAP), _WIDTH_MIN)
        for number, row in enumerate(self._rows, start=1):
            title = f"─ {number} "
            yield [(title + "─" * max(0, min(width, 60) - len(title)), "dim")]
            for name, cell in zip(self._names, row, strict=True):
                value = (NULL, "dim") if cell is None else (cut(cell, room), "")
                yield [(name + " " * (name_width - cell_len(name)) + _GAP, "bold"), value]


def fit_widths(natural: Sequence[int], width: int) -> list[int] | None:
    """Widths that fit: the widest columns give first, all to the same size. None if they cannot."""
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
    for place, size in enumerate(natural):
        if spare > 0 and fitted[place] < size:
            fitted[place] += 1
            spare -= 1
    return fitted


def cut(text: str, width: int) -> str:
    """At most `width` cells of text, with an ellipsis where it was longer."""
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
