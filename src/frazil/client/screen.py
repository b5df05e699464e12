"""One question asked and its answer shown, as `frazil query` and its prompt do."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rich.console import Console

from frazil.client.output import (
    BINARY,
    TERMINAL_ROWS_ASKED_MAX,
    OutputFormat,
    Rows,
    json_lines,
    opened,
    print_line,
    print_table,
    read_rows,
    wire_format,
    write_bytes,
    write_text,
)
from frazil.client.progress import ProgressDisplay
from frazil.client.show import error_lines, stats_line, warning_lines
from frazil.client.transport import Reply, Transport
from frazil.errors import FrazilError
from frazil.query.model import Query, Stats


class Screen:
    """Where answers and what is said about them go."""

    def __init__(self, out: Console | None = None, err: Console | None = None) -> None:
        self.out = Console() if out is None else out
        self.err = Console(stderr=True) if err is None else err

    def say(self, text: str, style: str = "dim") -> None:
        print_line(self.err, [(text, style)])

    def error(self, error: FrazilError, sql: str | None = None) -> None:
        for line in error_lines(error, sql):
            print_line(self.err, line)


def ask_and_show(
    transport: Transport,
    query: Query,
    screen: Screen,
    *,
    format: OutputFormat = "table",
    output: Path | None = None,
    timing: bool = True,
) -> None:
    """Errors are raised, for the caller to show. Ctrl-C cancels the query and is raised too."""
    on_terminal = output is None and screen.out.is_terminal
    query = dataclasses.replace(query, format=wire_format(format))
    if format == "table" and on_terminal and query.rows_max is None:
        query = dataclasses.replace(query, rows_max=TERMINAL_ROWS_ASKED_MAX)
    began = time.monotonic()
    with ProgressDisplay(transport, query.id, screen.err) as watch:
        try:
            reply = transport.execute(query)
            try:
                stats = _show(reply, query, screen, format, output, watch.stop)
            finally:
                reply.close()
        except KeyboardInterrupt:
            watch.stop()
            transport.cancel(query.id)
            raise
    for text in warning_lines(stats):
        screen.say(text, "yellow")
    if timing and (format == "table" or screen.err.is_terminal):
        screen.say(stats_line(stats, time.monotonic() - began))


def _show(
    reply: Reply,
    query: Query,
    screen: Screen,
    format: OutputFormat,
    output: Path | None,
    ready: Callable[[], None],
) -> Stats:
    if query.format != "json":
        to_terminal = output is None and screen.out.is_terminal
        # A bar and rows on one screen would overwrite each other.
        content = _after(ready, reply.content) if output is None else reply.content
        with opened(output) as stream:
            if format in BINARY:
                write_bytes(stream, content)
            else:
                write_text(stream, content, to_terminal=to_terminal)
        return reply.stats
    rows = read_rows(reply.content, query.id)
    ready()
    _show_rows(rows, screen, format, output)
    return dataclasses.replace(rows.stats, rows=len(rows.rows))


def _show_rows(rows: Rows, screen: Screen, format: OutputFormat, output: Path | None) -> None:
    if format == "table" and output is None:
        print_table(rows, screen.out)
        return
    with opened(output) as stream:
        if format == "table":
            import io

            text = io.TextIOWrapper(stream, encoding="utf-8", write_through=True)
            print_table(rows, Console(file=text, force_terminal=False))
            text.detach()
        else:
            chunks = (line.encode("utf-8", "replace") for line in json_lines(rows))
            write_text(stream, chunks, to_terminal=output is None and screen.out.is_terminal)


def _after(ready: Callable[[], None], content: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in content:
        ready()
        yield chunk
