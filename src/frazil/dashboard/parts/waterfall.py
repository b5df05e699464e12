"""The waterfall: the spans of a trace as a tree, each with a bar where it lies in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from frazil.dashboard.parts.part import part
from frazil.dashboard.theme import SEVERITY_COLOURS, service_colours, severity_level
from frazil.dashboard.traces.critical_path import Stretch
from frazil.dashboard.traces.read import LogRecord, Trace, event_times
from frazil.dashboard.traces.tree import Row, Tree, rows
from frazil.query.reads.filters import SPAN_KINDS

_TEXT_MAX = 160
_MARKS_MAX = 40
"""Events, logs and stretches drawn on one bar: more of them are a smear."""

_mount = part(__file__, '<div class="waterfall" data-testid="waterfall"></div>')


def waterfall(drawn: dict[str, Any], *, key: str, on_pick: Callable[[], None]) -> None:
    """Draws what `drawing` made. `on_pick` finds the span's handle in `st.session_state[key].picked`."""
    _mount(key=key, data=drawn, on_picked_change=on_pick)


def drawing(trace: Trace, tree: Tree, path: Sequence[Stretch]) -> dict[str, Any]:
    """All that the browser needs for the rows. Times are microseconds from the trace's start."""
    start = trace.start_nano
    end = max(trace.end_nano, start + 1)
    services = list(trace.services())
    colours = service_colours(services)
    numbers = {name: number for number, name in enumerate(services)}
    critical: dict[int, list[list[float]]] = {}
    for stretch in path:
        marks = critical.setdefault(stretch.place, [])
        own_start = stretch.start_nano - stretch.shift_nano  # by the clock of the span, as its bar is
        marks.append([_micros(own_start, start), _micros(stretch.end_nano, stretch.start_nano)])
    logs: dict[str, list[LogRecord]] = {}
    for log in trace.logs:
        logs.setdefault(log.span_id, []).append(log)
    return {
        "length": _micros(end, start),
        "services": [[name[:_TEXT_MAX], colours[name]] for name in services],
        "kinds": list(SPAN_KINDS),
        "rows": [_row(tree, row, start, numbers, critical, logs) for row in rows(tree)],
    }


def _row(
    tree: Tree,
    row: Row,
    start: int,
    services: dict[str, int],
    critical: dict[int, list[list[float]]],
    logs: dict[str, list[LogRecord]],
) -> dict[str, Any]:
    """Short names: a trace can have twenty thousand of these. What is empty is left out."""
    if row.place is None:
        group = [tree.spans[place] for place in tree.orphans[row.missing]]
        first, last = min(span.start_nano for span in group), max(span.end_nano for span in group)
        made: dict[str, Any] = {
            "n": f"missing parent {row.missing[:_TEXT_MAX]}",
            "s": _micros(first, start),
            "l": _micros(last, first),
        }
    else:
        span = tree.spans[row.place]
        made = {
            "h": span.handle,
            "n": span.name[:_TEXT_MAX],
            "v": services[span.service],
            "k": span.kind,
            "s": _micros(span.start_nano, start),
            "l": _micros(span.end_nano, span.start_nano),
            "e": span.is_error,
            "c": critical.get(row.place, [])[:_MARKS_MAX],
            "t": [
                [_micros(time, start), is_exception] for time, is_exception in event_times(span)[:_MARKS_MAX]
            ],
            "g": [
                [_micros(log.time_nano, start), SEVERITY_COLOURS[severity_level(log.severity)]]
                for log in (logs.get(span.id, []) if span.handle == span.id else [])[:_MARKS_MAX]
            ],
            "o": "; ".join(tree.notes.get(row.place, ())),
        }
        if row.place in tree.outliving:
            made["a"] = _micros(tree.outliving[row.place], start)
    made = {name: held for name, held in made.items() if held or name in ("s", "l", "v", "n", "a")}
    return made | {"d": row.depth, "b": row.below}


def _micros(nano: int, start_nano: int) -> float:
    return (nano - start_nano) / 1_000
