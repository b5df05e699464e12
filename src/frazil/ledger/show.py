"""Prints the ledger as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.filesize import decimal as filesize
from rich.markup import escape
from rich.table import Table

from frazil.config import Config
from frazil.ledger.balance import Ledger, LedgerLine, balance
from frazil.ledger.derived import DerivedLine
from frazil.times import utc_text

_LINES_MAX = 40
_STREAM_ID_LENGTH = 35
_STREAM_TIME_LENGTH = 15
_WIDTH_MAX = 1000
_NUMBERS = ("durable", "landed", "removed", "waiting", "set_aside", "bytes")


def main(config: Config, json_output: bool) -> int:
    """Prints the ledger. Returns 1 if rows are missing or duplicated, also in derived tables."""
    ledger = balance(config)
    if json_output:
        print(
            json.dumps(
                {
                    "ok": not ledger.problems,
                    "lines": [asdict(line) for line in ledger.lines],
                    "derived": [asdict(line) for line in ledger.derived],
                    "problems": ledger.problems,
                }
            )
        )
    else:
        _print(ledger)
    return 1 if ledger.problems else 0


def _print(ledger: Ledger) -> None:
    console = Console()
    lines = _by_table(ledger.lines) if len(ledger.lines) > _LINES_MAX else ledger.lines
    table = _table(lines, _STREAM_TIME_LENGTH)
    excess = _width(table, console) - console.width
    if excess > 0:
        table = _table(lines, max(0, _STREAM_TIME_LENGTH - excess))
    # Wider than the terminal if need be: figures must not be cut.
    Console(width=max(console.width, _width(table, console))).print(table)
    if ledger.derived:
        _print_derived(console, ledger.derived)
    for problem in ledger.problems:
        console.print(f"[red]✗[/red] {escape(problem)}", soft_wrap=True)
    if not ledger.problems:
        console.print(
            "[green]✓[/green] all durable rows have landed or wait to land; no row is missing or duplicated"
        )
        if ledger.derived:
            console.print(
                "[green]✓[/green] derived tables count each row that had landed at their position once"
            )
    if any(line.set_aside for line in ledger.lines):
        console.print(
            "[yellow]![/yellow] some segments or messages could not be read: see the table set_aside"
        )


def _print_derived(console: Console, lines: Sequence[DerivedLine]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    left = ("derived table", "complete up to")
    for heading in (*left, "rows\nlanded", "rows\ncounted", "rows\nin source", "days\nleft"):
        table.add_column(heading, justify="left" if heading in left else "right", no_wrap=True)
    for line in lines:
        until = "–" if line.complete_until is None else utc_text(line.complete_until)
        numbers = [f"{each:,}" for each in (line.landed, line.counted, line.in_source, line.days_left)]
        table.add_row(line.table, until, *numbers, style="red" if line.problems else None)
    console.print()
    Console(width=max(console.width, _width(table, console))).print(table)


def _table(lines: Sequence[LedgerLine], time_length: int) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("table", "stream", *_NUMBERS):
        left = heading in ("table", "stream")
        table.add_column(heading.replace("_", "\n"), justify="left" if left else "right", no_wrap=True)
    for line in lines:
        style = "red" if line.problems else None
        table.add_row(line.table, _short(line.stream, time_length), *_numbers(line), style=style)
    return table


def _width(table: Table, console: Console) -> int:
    """Returns the width of the table if nothing is cut."""
    return console.measure(table, options=console.options.update(width=_WIDTH_MAX)).maximum


def _short(stream: str, time_length: int) -> str:
    """Shortens a stream id to its time, or the start of it, and its last digits, which identify it."""
    return f"{stream[:time_length]}…{stream[-4:]}" if len(stream) == _STREAM_ID_LENGTH else stream


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
