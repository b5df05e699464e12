"""Executes one query and prints its result, for `frazil query` and its prompt."""

from __future__ import annotations

import dataclasses
import io
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console

from frazil.client.layout import Line
from frazil.client.output import (
    BINARY,
    TERMINAL_ROWS_FETCHED_MAX,
    OutputFormat,
    Rows,
    json_lines,
    open_output,
    print_line,
    print_table,
    read_rows,
    request_format,
    write_bytes,
    write_text,
)
from frazil.client.progress import ProgressDisplay
from frazil.client.text_format import bytes_text, count, one_line, seconds_text
from frazil.client.transport import Reply, Transport
from frazil.errors import FrazilError, QueryInvalid, QueryRefused
from frazil.query.model import Query, Stats

_BEFORE_CARET_MAX = 60
_LINE_MAX = 100


class Screen:
    """Standard output for results, standard error for messages."""

    def __init__(self, out: Console | None = None, err: Console | None = None) -> None:
        self.out = Console() if out is None else out
        self.err = Console(stderr=True) if err is None else err

    def message(self, text: str, style: str = "dim") -> None:
        print_line(self.err, [(text, style)])

    def error(self, error: FrazilError, sql: str | None = None) -> None:
        for line in error_lines(error, sql):
            print_line(self.err, line)


def execute_and_print(
    transport: Transport,
    query: Query,
    screen: Screen,
    *,
    format: OutputFormat = "table",
    output: Path | None = None,
    timing: bool = True,
) -> None:
    """Execute a query and print its result. Raises errors; on Ctrl-C, cancels the query and raises."""
    on_terminal = output is None and screen.out.is_terminal
    query = dataclasses.replace(query, format=request_format(format))
    if format == "table" and on_terminal and query.rows_max is None:
        query = dataclasses.replace(query, rows_max=TERMINAL_ROWS_FETCHED_MAX)
    began = time.monotonic()
    with ProgressDisplay(transport, query.id, screen.err) as display:
        try:
            reply = transport.execute(query)
            try:
                stats = _print_reply(reply, query, screen, format, output, display.stop)
            finally:
                reply.close()
        except KeyboardInterrupt:
            display.stop()
            transport.cancel(query.id)
            raise
    for text in warning_lines(stats):
        screen.message(text, "yellow")
    if timing and (format == "table" or screen.err.is_terminal):
        screen.message(stats_line(stats, time.monotonic() - began))


def _print_reply(
    reply: Reply,
    query: Query,
    screen: Screen,
    format: OutputFormat,
    output: Path | None,
    hide_progress: Callable[[], None],
) -> Stats:
    if query.format != "json":
        to_terminal = output is None and screen.out.is_terminal
        # The progress bar and rows on the same terminal would overwrite each other.
        content = _call_before_chunks(hide_progress, reply.content) if output is None else reply.content
        with open_output(output) as stream:
            if format in BINARY:
                write_bytes(stream, content)
            else:
                write_text(stream, content, to_terminal=to_terminal)
        return reply.stats
    rows = read_rows(reply.content, query.id)
    hide_progress()
    _print_rows(rows, screen, format, output)
    return dataclasses.replace(rows.stats, rows=len(rows.rows))


def _print_rows(rows: Rows, screen: Screen, format: OutputFormat, output: Path | None) -> None:
    if format == "table" and output is None:
        print_table(rows, screen.out)
        return
    with open_output(output) as stream:
        if format == "table":
            text = io.TextIOWrapper(stream, encoding="utf-8", write_through=True)
            print_table(rows, Console(file=text, force_terminal=False))
            text.detach()
        else:
            chunks = (line.encode("utf-8", "replace") for line in json_lines(rows))
            write_text(stream, chunks, to_terminal=output is None and screen.out.is_terminal)


def _call_before_chunks(action: Callable[[], None], content: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in content:
        action()
        yield chunk


def stats_line(stats: Stats, seconds: float) -> str:
    """Return a line such as `12 rows · 3 of 540 files · 4.2 MB · 1,204 rows not yet landed · 48 ms`"""
    parts: list[str] = []
    if stats.rows is not None:
        parts.append(count(stats.rows, "row"))
    if stats.files_total:
        parts.append(f"{stats.files:,} of {count(stats.files_total, 'file')}")
        parts.append(bytes_text(stats.bytes))
    if stats.tail_rows:
        parts.append(f"{count(stats.tail_rows, 'row')} not yet landed")
    if stats.queued_seconds >= 0.1:
        parts.append(f"queued {seconds_text(stats.queued_seconds)}")
    if stats.cached:
        parts.append("cached")
    parts.append(seconds_text(seconds))
    return " · ".join(parts)


def warning_lines(stats: Stats) -> list[str]:
    """Return why the result may be incomplete, one reason per line."""
    lines = [f"result may be stale: {one_line(stats.stale)}"] if stats.stale else []
    lines += [f"missing from the result: {one_line(reason)}" for reason in stats.missing]
    if stats.cut:
        lines.append(f"missing from the result: rows after the row limit of {stats.rows or 0:,}")
    return lines


def error_lines(error: FrazilError, sql: str | None = None) -> Iterator[Line]:
    """Yield the message, the line of the SQL with a caret at the error's position, and the notes."""
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
