"""Prints the results of commands. Imports no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from frazil.position import SourcePosition, parse_position
from frazil.times import utc_text


def output() -> Console:
    """Returns a console that does not cut lines if the output is not a terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=200)


def print_tags(tagged: Sequence[Mapping[str, Any]]) -> None:
    """Prints tags as `TaggedTables.as_dict` returns them. Of a derived table, the rows are those of its
    source that it contains.
    """
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("tag", "table", "committed", "snapshot", "total rows landed"):
        table.add_column(heading, justify="right" if "rows" in heading else "left", overflow="fold")
    for each in tagged:
        for tag in each["tables"]:
            committed = utc_text(tag["committed_at_ms"] / 1000)
            rows = "" if tag["position"] is None else f"{_rows_landed(tag['position']):,}"
            table.add_row(each["name"], tag["table"], committed, str(tag["snapshot_id"]), rows)
        for name in each["missing"]:
            table.add_row(
                each["name"], name, "[red]not tagged: delete and create the tag again[/red]", "", ""
            )
    output().print(table)


def _rows_landed(text: str) -> int:
    position = parse_position(text)
    return (position.landing if isinstance(position, SourcePosition) else position).rows
