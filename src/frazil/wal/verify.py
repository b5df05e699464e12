"""The WAL's ledger: is every segment whole, and are streams without gaps?"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from frazil.config import Config
from frazil.errors import SegmentCorrupt, SegmentUnknown, StoreUnavailable
from frazil.tables import SIGNALS, Signal
from frazil.wal.reader import WalReader
from frazil.wal.store import open_store


@dataclass
class StreamLedger:
    signal: Signal
    stream: str
    segments: int = 0
    rows: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class WalLedger:
    streams: tuple[StreamLedger, ...]
    set_aside: int

    @property
    def problems(self) -> list[str]:
        return [problem for stream in self.streams for problem in stream.problems]


def verify_wal(config: Config, *, set_aside: bool = False) -> WalLedger:
    """Reads every byte of every segment; checks checksums, and that sequences and row counts have no gap.

    With `set_aside`, a copy of each segment that cannot be read is kept apart, with the reason. Streams begin
    at 0: whatever will clean segments up must bring the positions to begin from.
    """
    reader = WalReader(open_store(config))
    streams: dict[tuple[Signal, str], StreamLedger] = {}
    for signal in SIGNALS:
        expected: dict[str, tuple[int, int]] = {}
        for segment in reader.segments(signal):
            name = segment.name
            ledger = streams.setdefault((signal, name.stream), StreamLedger(signal, name.stream))
            ledger.segments += 1
            ledger.bytes += segment.size
            sequence, rows_before = expected.get(name.stream, (0, 0))
            if name.sequence != sequence:
                ledger.problems.append(f"{name.path}: sequence {sequence} is missing before it")
                rows_before = -1
            try:
                facts = reader.facts(name)
            except FileNotFoundError:  # cleaned up meanwhile
                expected[name.stream] = (name.sequence + 1, -1)
                continue
            except (SegmentCorrupt, SegmentUnknown, StoreUnavailable) as error:
                ledger.problems.append(str(error))
                if set_aside and not isinstance(error, StoreUnavailable):
                    reader.set_aside(name, error)
                expected[name.stream] = (name.sequence + 1, -1)
                continue
            if rows_before >= 0 and facts.stream_rows != rows_before + facts.rows:
                ledger.problems.append(f"{name.path}: the stream's row count jumps from {rows_before}")
            ledger.rows += facts.rows
            expected[name.stream] = (name.sequence + 1, facts.stream_rows)
    return WalLedger(tuple(streams.values()), sum(1 for _ in reader.set_aside_segments()))


def main(config: Config, json_output: bool, set_aside: bool = False) -> int:
    """Prints the ledger; 1 if anything is missing or broken."""
    ledger = verify_wal(config, set_aside=set_aside)
    if json_output:
        print(json.dumps({**asdict(ledger), "problems": ledger.problems}))
        return 1 if ledger.problems else 0
    console = Console()
    table = Table(title=f"WAL at {open_store(config).describe()}")
    for heading in ("signal", "streams", "segments", "rows", "bytes", "problems"):
        table.add_column(heading, justify="left" if heading == "signal" else "right")
    for signal in SIGNALS:
        of_signal = [stream for stream in ledger.streams if stream.signal == signal]
        table.add_row(
            signal,
            str(len(of_signal)),
            f"{sum(stream.segments for stream in of_signal):,}",
            f"{sum(stream.rows for stream in of_signal):,}",
            f"{sum(stream.bytes for stream in of_signal):,}",
            str(sum(len(stream.problems) for stream in of_signal)),
        )
    console.print(table)
    for problem in ledger.problems:
        console.print(f"[red]✗[/red] {escape(problem)}", soft_wrap=True)
    if ledger.set_aside:
        console.print(f"{ledger.set_aside} segments are set aside")
    if not ledger.problems:
        console.print(
            "[green]✓[/green] every segment is whole, no sequence is missing, all row counts add up"
        )
    return 1 if ledger.problems else 0
