"""Writes results in the formats of `frazil query`."""

from __future__ import annotations

import codecs
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

from rich.console import Console
from rich.text import Text

from frazil.client.http_transport import stats_from
from frazil.client.layout import Grid, Line
from frazil.client.text_format import cell_text, terminal_safe
from frazil.client.transport import Unreachable
from frazil.errors import ConfigError
from frazil.query.model import Format, ResultColumn, Stats

OutputFormat = Literal["table", "json", "csv", "arrow", "parquet"]
FORMATS: tuple[OutputFormat, ...] = get_args(OutputFormat)
BINARY = ("arrow", "parquet")
TERMINAL_ROWS_MAX = 100
TERMINAL_RECORDS_MAX = 20
TERMINAL_ROWS_FETCHED_MAX = 10_000
"""Row limit of a query whose result is shown as a table on a terminal."""


@dataclass(frozen=True)
class Rows:
    """A decoded JSON result."""

    columns: Sequence[ResultColumn]
    rows: Sequence[Sequence[Any]]
    stats: Stats


def request_format(format: OutputFormat) -> Format:
    """Return the format to request. Tables use JSON: importing Arrow takes longer than most queries."""
    return "json" if format == "table" else format


def format_for(path: Path | None) -> OutputFormat:
    """Return the format for a file name suffix, or `table`."""
    suffix = "" if path is None else path.suffix.removeprefix(".").lower()
    return next((format for format in FORMATS if format == suffix), "table")


def read_rows(content: Iterable[bytes], id: str) -> Rows:
    try:
        body = json.loads(b"".join(content))
        columns = [ResultColumn(str(c["name"]), str(c["type"])) for c in body["columns"]]
        return Rows(columns, body["rows"], stats_from(body.get("stats"), id))
    except (ValueError, KeyError, TypeError):
        raise Unreachable("the response is incomplete or not from frazil: retry, or check the URL") from None


def json_lines(rows: Rows) -> Iterator[str]:
    """Yield a JSON array of objects, with one object per line."""
    names = unique_names([column.name for column in rows.columns])
    if not rows.rows:
        yield "[]\n"
        return
    last = len(rows.rows) - 1
    for index, row in enumerate(rows.rows):
        text = json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False, separators=(",", ":"))
        yield f"{'[' if index == 0 else ' '}{text}{']' if index == last else ','}\n"


def unique_names(names: Sequence[str]) -> list[str]:
    """Make column names unique for use as object keys. The second `n` becomes `n_1`."""
    taken: dict[str, None] = {}
    for name in names:
        unique, number = name, 0
        while unique in taken or (unique != name and unique in names):
            number += 1
            unique = f"{name}_{number}"
        taken[unique] = None
    return list(taken)


def print_table(rows: Rows, console: Console) -> None:
    """Print rows as a table. On a terminal, it is truncated to the width and to a maximum of rows."""
    if not console.is_terminal:
        _print_whole(rows, console)
        return
    shown = _cells(rows.rows[:TERMINAL_ROWS_MAX])
    grid = Grid(rows.columns, shown, console.width)
    if grid.as_records:
        shown = shown[:TERMINAL_RECORDS_MAX]
        grid = Grid(rows.columns, shown, console.width)
    for line in grid.lines():
        print_line(console, line)
    if (more := len(rows.rows) - len(shown)) > 0:
        print_line(console, [(f"… {more:,} more rows (use --format or LIMIT)", "dim")])


def print_line(console: Console, line: Line) -> None:
    text = Text.assemble(*line)
    console.print(text, soft_wrap=True, highlight=False, markup=False, emoji=False)


def write_text(stream: BinaryIO, chunks: Iterable[bytes], *, to_terminal: bool) -> None:
    """Write UTF-8 text, escaped if the output is a terminal."""
    if not to_terminal:
        write_bytes(stream, chunks)
        return
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for chunk in chunks:
        stream.write(terminal_safe(decoder.decode(chunk)).encode("utf-8", "replace"))
    stream.flush()


def write_bytes(stream: BinaryIO, chunks: Iterable[bytes]) -> None:
    for chunk in chunks:
        stream.write(chunk)
    stream.flush()


@contextmanager
def open_output(path: Path | None) -> Iterator[BinaryIO]:
    """Open standard output, or a file that is renamed to `path` when it is complete."""
    if path is None:
        yield sys.stdout.buffer
        return
    if path.exists() and not path.is_file():
        # A device or a pipe must not be replaced by a file.
        with path.open("wb") as stream:
            yield stream
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as stream:
            yield stream
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; choose another --output") from error
    finally:
        partial.unlink(missing_ok=True)


def _cells(rows: Sequence[Sequence[Any]]) -> list[list[str | None]]:
    return [[cell_text(value) for value in row] for row in rows]


def _print_whole(rows: Rows, console: Console) -> None:
    for line in (grid := Grid(rows.columns, _cells(rows.rows))).lines():
        console.file.write(grid.plain(line) + "\n")
    console.file.flush()
