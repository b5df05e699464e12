"""Prints the ledger as a table or as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.filesize import decimal as filesize
from rich.markup import escape
from rich.table import Table

from frazil.config import Config
from frazil.ledger.balance import Ledger, LedgerLine, balance

_LINES_MAX = 40
_STREAM_ID_LENGTH = 35
_NUMBERS = ("durable", "landed", "removed", "waiting", "set_aside", "bytes")


def main(config: Config, json_output: bool) -> int:
    """Prints the ledger. Returns 1 if rows are missing or duplicated."""
    ledger = balance(config)
    if json_output:
        print(
            json.dumps(
                {
                    "ok": not ledger.problems,
                    "lines": [asdict(line) for line in ledger.lines],
                    "problems": ledger.problems,
                }
            )
        )
    else:
        _print(ledger)
    return 1 if ledger.problems else 0


def _print(ledger: Ledger) -> None:
    console = Console()
    table = Table(box=None, header_style="bold", pad_edge=False)
    headings = [heading.replace("_", "\n") for heading in ("table", "stream", *_NUMBERS)]
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number > 1 else "left", no_wrap=True)
    lines = _by_table(ledger.lines) if len(ledger.lines) > _LINES_MAX else ledger.lines
    figures = [_numbers(line) for line in lines]
    columns = zip(headings[2:], *figures, strict=True)
    width = sum(2 + max(len(part) for cell in column for part in cell.split("\n")) for column in columns)
    width += max(len(name) for name in ("table", *(line.table for line in lines))) + 2
    streams = [_short(line.stream, console.width - width) for line in lines]
    for line, stream, numbers in zip(lines, streams, figures, strict=True):
        table.add_row(line.table, stream, *numbers, style="red" if line.problems else None)
    # Wider than the terminal if need be: figures must not be cut.
    needed = width + max(len(stream) for stream in ("stream", *streams))
    Console(width=max(console.width, needed)).print(table)
    for problem in ledger.problems:
        console.print(f"[red]✗[/red] {escape(problem)}", soft_wrap=True)
    if not ledger.problems:
        console.print(
            "[green]✓[/green] all durable rows have landed or wait to land; no row is missing or duplicated"
        )
    if any(line.set_aside for line in ledger.lines):
        console.print(
            "[yellow]![/yellow] some segments or messages could not be read: see the table set_aside"
        )


def _short(stream: str, room: int) -> str:
    """Shortens a stream id to its time and its last digits, which identify it, or to less in little room."""
    if len(stream) != _STREAM_ID_LENGTH:
        return stream
    return f"{stream[: max(0, min(15, room - 5))]}…{stream[-4:]}"


def _numbers(line: LedgerLine) -> list[str]:
    return [filesize(line.bytes) if name == "bytes" else f"{getattr(line, name):,}" for name in _NUMBERS]


def _by_table(lines: list[LedgerLine]) -> list[LedgerLine]:
    totals: dict[str, LedgerLine] = {}
    for line in lines:
        total = totals.setdefault(line.table, LedgerLine(line.table, ""))
        for name in _NUMBERS:
            setattr(total, name, getattr(total, name) + getattr(line, name))
        total.problems += line.problems
    for name, total in totals.items():
        total.stream = f"{sum(line.table == name for line in lines)} streams"
    return list(totals.values())
