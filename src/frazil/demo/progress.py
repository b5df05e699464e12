"""Runs the demo with a progress bar, or with a line every ten seconds if there is no terminal."""

from __future__ import annotations

import time

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from frazil.demo.options import DemoOptions, DemoTotals
from frazil.demo.run import run_demo

_LINE_INTERVAL_SECONDS = 10.0


def run_with_progress(options: DemoOptions, *, console: Console | None = None) -> DemoTotals:
    """Run the demo until its duration is over or Ctrl-C, and show its progress."""
    console = console or Console()
    began = time.monotonic()
    totals = (_run_with_bar if console.is_terminal else _run_with_lines)(options, console)
    _report(console, totals, time.monotonic() - began)
    return totals


class _Rate:
    """Items per second, over the last few reports."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, int]] = [(0.0, 0)]

    def update(self, elapsed_seconds: float, sent: int) -> float:
        self._marks = [*self._marks[-5:], (elapsed_seconds, sent)]
        (begin, before), (end, after) = self._marks[0], self._marks[-1]
        return (after - before) / (end - begin) if end > begin else 0.0


def describe(options: DemoOptions, totals: DemoTotals, elapsed_seconds: float, rate: float) -> str:
    """Return a line with totals, rate and incident."""
    parts = [
        f"{totals.traces:,} traces",
        f"{totals.spans:,} spans",
        f"{totals.logs:,} logs",
        f"{totals.points:,} points",
        f"{rate:,.0f}/s",
    ]
    if totals.failed:
        parts.append(f"{totals.failed:,} failed")
    if (incident := options.incident_at(elapsed_seconds)) is not None:
        left = options.incident_after_seconds + options.incident_seconds - elapsed_seconds
        parts.append(f"incident '{incident}' active, {left:.0f} s left")
    elif options.incident is not None and elapsed_seconds < options.incident_after_seconds:
        parts.append(
            f"incident '{options.incident}' in {options.incident_after_seconds - elapsed_seconds:.0f} s"
        )
    return " · ".join(parts)


def _run_with_bar(options: DemoOptions, console: Console) -> DemoTotals:
    """Show a bar (a spinner without a duration), and below it the totals and the last error."""
    duration = options.duration_seconds
    columns: list[ProgressColumn] = [TimeElapsedColumn()]
    if duration is None:
        columns.insert(0, SpinnerColumn())
    else:
        columns += [BarColumn(), TextColumn(f"of {duration:.0f} s")]
    bar = Progress(*columns)
    task = bar.add_task("", total=duration)
    status = Text()
    rate = _Rate()

    def on_progress(totals: DemoTotals, elapsed_seconds: float) -> None:
        bar.update(task, completed=elapsed_seconds)
        status.plain = describe(options, totals, elapsed_seconds, rate.update(elapsed_seconds, totals.sent))
        if totals.last_error:
            status.append(f"\n{totals.last_error}", style="dim")

    with Live(Group(bar, status), console=console, refresh_per_second=4, transient=True):
        return run_demo(options, on_progress=on_progress)


def _run_with_lines(options: DemoOptions, console: Console) -> DemoTotals:
    rate = _Rate()
    next_line = _LINE_INTERVAL_SECONDS

    def on_progress(totals: DemoTotals, elapsed_seconds: float) -> None:
        nonlocal next_line
        if elapsed_seconds < next_line:
            return
        next_line = elapsed_seconds + _LINE_INTERVAL_SECONDS
        text = describe(options, totals, elapsed_seconds, rate.update(elapsed_seconds, totals.sent))
        error = f" · {totals.last_error}" if totals.last_error else ""
        _print_line(console, f"{elapsed_seconds:.0f} s · {text}{error}")

    return run_demo(options, on_progress=on_progress)


def _report(console: Console, totals: DemoTotals, elapsed_seconds: float) -> None:
    _print_line(
        console,
        f"sent {totals.spans:,} spans, {totals.logs:,} logs and {totals.points:,} metric points "
        f"from {totals.traces:,} traces in {elapsed_seconds:.0f} s; {totals.failed:,} failed",
    )
    if totals.failed and totals.last_error:
        _print_line(console, f"last error: {totals.last_error}")


def _print_line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
