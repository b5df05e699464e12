"""The rows that scenarios come to, printed as they are found and as one table at the end."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import psutil
from rich.console import Console
from rich.table import Table

MIB = 1 << 20
MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Row:
    """`latency` is how long it took: for requests until their ack, for landing in all."""

    name: str
    speed: str
    latency: str
    more: str
    target: str = ""
    met: bool | None = None


class Bench:
    """Collects the rows of one table."""

    def __init__(
        self,
        console: Console,
        quick: bool,
        latency_heading: str,
        speed_heading: str = "records per CPU-second",
    ) -> None:
        self.console = console
        self.quick = quick
        self.rows: list[Row] = []
        self._headings = ("what", speed_heading, latency_heading, "more", "target", "met")

    def add(self, row: Row) -> None:
        self.rows.append(row)
        mark = {True: "met", False: "MISSED", None: ""}[row.met]
        self.console.print(f"  {row.name}: {row.speed} {row.latency} {row.more} {mark}", highlight=False)

    def count(self, full: int) -> int:
        return max(8, full // 4) if self.quick else full

    def show(self, markdown: bool) -> None:
        lines = [
            (
                row.name,
                row.speed,
                row.latency,
                row.more,
                row.target,
                {True: "yes", False: "no", None: ""}[row.met],
            )
            for row in self.rows
        ]
        if markdown:
            print("| " + " | ".join(self._headings) + " |")
            print("|---|--:|--:|---|---|---|")
            for line in lines:
                print("| " + " | ".join(line) + " |")
            return
        table = Table(*self._headings, title=machine())
        for line in lines:
            table.add_row(*line)
        self.console.print(table)


def machine() -> str:
    memory = psutil.virtual_memory().total / 2**30
    cores, python = psutil.cpu_count(), platform.python_version()
    return f"{cores} cores, {memory:.0f} GiB, Python {python}, {platform.system()}"
