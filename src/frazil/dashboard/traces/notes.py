"""What is odd about a trace as a whole, in sentences."""

from __future__ import annotations

from frazil.dashboard.format import duration
from frazil.dashboard.traces.read import Trace
from frazil.dashboard.traces.tree import CLOCKS_DIFFER, IN_A_CIRCLE, SAME_ID, UNTIMED, Tree

_ODD = {
    CLOCKS_DIFFER: ("is outside its parent's time", "are outside their parent's time", ": clocks differ"),
    SAME_ID: ("has the ID of another span", "have the ID of another span", ""),
    IN_A_CIRCLE: ("is its own ancestor", "are their own ancestors", ": each cycle is cut at its first span"),
    UNTIMED: ("has invalid times", "have invalid times", ""),
}


def trace_notes(trace: Trace, tree: Tree) -> list[str]:
    told = []
    roots = sum(not span.parent_id for span in tree.spans)
    if tree.spans and not roots:
        told.append("The root span is missing: it was not sent, or has not arrived yet.")
    elif roots > 1:
        told.append(f"{roots} spans have no parent; the critical path is shown for the longest.")
    # Without any of these, what ends later is by a clock that is ahead.
    may_end_later = bool(tree.outliving or tree.orphans) or len(tree.roots) > 1
    if tree.main is not None and may_end_later and trace.end_nano > trace.spans[tree.main].end_nano:
        main = trace.spans[tree.main]
        late = duration((trace.end_nano - main.end_nano) / 1e6)
        told.append(
            f"{_the_main(roots)} took {duration(main.duration_ms)}; work continued for {late} after it ended."
        )
    if count := sum(len(group) for group in tree.orphans.values()):
        told.append(f"{_spans(count)} with a missing parent.")
    for sign, (one, many, why) in _ODD.items():
        if count := sum(any(sign in note for note in noted) for noted in tree.notes.values()):
            told.append(f"{_spans(count)} {one if count == 1 else many}{why}.")
    return told


def _the_main(roots: int) -> str:
    return "The root span" if roots == 1 else "The longest root span" if roots else "The longest span"


def _spans(count: int) -> str:
    return "1 span" if count == 1 else f"{count:,} spans"
