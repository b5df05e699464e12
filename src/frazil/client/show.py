"""What people see beside the rows: what an answer was made of, and what is wrong with a question."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len

from frazil.client.cell_format import one_line
from frazil.client.layout import Line
from frazil.errors import FrazilError, QueryInvalid, QueryRefused
from frazil.query.model import Stats

_BEFORE_CARET_MAX = 60
_LINE_MAX = 100


def stats_line(stats: Stats, seconds: float) -> str:
    """`12 rows · 3 of 540 files · 4.2 MB · 1,204 rows not yet landed · 48 ms`"""
    parts: list[str] = []
    if stats.rows is not None:
        parts.append(count(stats.rows, "row"))
    if stats.files_total:
        parts.append(f"{stats.files:,} of {count(stats.files_total, 'file')}")
        parts.append(bytes_text(stats.bytes))
    if stats.tail_rows:
        parts.append(f"{count(stats.tail_rows, 'row')} not yet landed")
    if stats.queued_seconds >= 0.1:
        parts.append(f"waited {seconds_text(stats.queued_seconds)}")
    if stats.cached:
        parts.append("cached")
    parts.append(seconds_text(seconds))
    return " · ".join(parts)


def warning_lines(stats: Stats) -> list[str]:
    """Why the answer may not be all there is."""
    lines = [f"may be behind: {one_line(stats.stale)}"] if stats.stale else []
    lines += [f"not in the answer: {one_line(what)}" for what in stats.missing]
    if stats.cut:
        lines.append(f"not in the answer: rows after the first {stats.rows or 0:,}, as asked")
    return lines


def error_lines(error: FrazilError, sql: str | None = None) -> Iterator[Line]:
    """The error, and below it the line of the SQL that it is about, with a mark at the place."""
    first, *rest = str(error).split("\n")
    yield [("error: ", "bold red"), (first, "")]
    for text in rest:
        yield [(text, "")]
    position = error.position if isinstance(error, QueryInvalid | QueryRefused) else None
    if sql is not None and position is not None and 0 <= position <= len(sql):
        yield from _quote(sql, position)
    for note in getattr(error, "__notes__", ()):
        yield [(note, "cyan")]


def _quote(sql: str, position: int) -> Iterator[Line]:
    start = sql.rfind("\n", 0, position) + 1
    end = sql.find("\n", position)
    line = sql[start : len(sql) if end < 0 else end].replace("\t", " ")
    column = position - start
    skipped = max(0, column - _BEFORE_CARET_MAX)
    head = "…" if skipped else ""
    before = head + one_line(line[skipped:column])
    label = f"  line {sql.count(chr(10), 0, position) + 1}: "
    yield [(label, "dim"), ((before + one_line(line[column:]))[:_LINE_MAX], "")]
    yield [(" " * (len(label) + cell_len(before)), ""), ("^", "bold red")]


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def bytes_text(size: float) -> str:
    """Bytes in powers of 1000, short."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def seconds_text(seconds: float) -> str:
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds) // 60} min {int(seconds) % 60} s"
