"""The tree of a trace's spans, its rows, and notes on anomalies. Accepts missing spans and cycles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from frazil.dashboard.format import format_duration
from frazil.dashboard.traces.read import CLIENT, SERVER, SpanRecord, Trace, attributes

SpanIndex = int
"""The index of a span in the sequence of the trace's spans."""


CLOCKS_DIFFER = "their clocks differ"
SAME_ID = "has the same ID as another span"
IN_CYCLE = "is its own ancestor"
UNTIMED = "was sent without a time, or ends before it starts"


@dataclass(frozen=True)
class Tree:
    spans: Sequence[SpanRecord]
    children: Sequence[Sequence[SpanIndex]]
    """The children of each span, by start."""
    roots: Sequence[SpanIndex]
    """Spans without a parent."""
    orphans: dict[str, list[SpanIndex]]
    """Spans whose parent is missing, by the ID of the parent."""
    notes: dict[SpanIndex, list[str]]
    """Anomalies of spans."""
    async_spans: dict[SpanIndex, int]
    """Spans that end after their parent, with the end of the parent in unix nanoseconds."""

    @property
    def main(self) -> SpanIndex | None:
        """The longest root, else the longest orphan."""
        tops = self.roots or [index for indexes in self.orphans.values() for index in indexes]
        return max(tops, key=lambda index: self.spans[index].duration_ms, default=None)


@dataclass(frozen=True)
class Row:
    """A row of the waterfall. `index` is None for a missing parent."""

    index: SpanIndex | None
    depth: int
    below: int
    """The number of rows below this one in the tree."""
    missing: str = ""


def build_tree(spans: Sequence[SpanRecord]) -> Tree:
    indexes: dict[str, SpanIndex] = {}
    notes: dict[SpanIndex, list[str]] = {}
    for index, span in enumerate(spans):
        if not span.id or span.id in indexes:
            _note(notes, index, "has no ID" if not span.id else SAME_ID)
        else:
            indexes[span.id] = index
    parents, orphans = _parents(spans, indexes)
    roots = [index for index, span in enumerate(spans) if not span.parent_id]
    for index in _cut_cycles(spans, parents, [*roots, *(p for group in orphans.values() for p in group)]):
        _note(notes, index, IN_CYCLE)
        roots.append(index)
    async_spans: dict[SpanIndex, int] = {}
    for index, (span, above) in enumerate(zip(spans, parents, strict=True)):
        parent = None if above is None else spans[above]
        if note := _note_on_times(span, parent):
            _note(notes, index, note)
        if parent and span.is_timed and span.end_nano > parent.end_nano and not clock_shift(parent, span):
            async_spans[index] = parent.end_nano
    return Tree(spans, _children(parents), sorted(roots), orphans, notes, async_spans)


def clock_shift(parent: SpanRecord, child: SpanRecord) -> int:
    """Returns the nanoseconds to add to a child's times so that they fit its parent's clock; mostly 0.

    A server span is within its client span. If it is outside and their hosts differ, their clocks differ: the
    server span is moved to the middle, as if request and response took equally long. A server span that is
    longer than its client span is moved only if the two do not overlap.
    """
    is_within = parent.start_nano <= child.start_nano and child.end_nano <= parent.end_nano
    if is_within or (parent.kind, child.kind) != (CLIENT, SERVER) or _have_one_clock(parent, child):
        return 0
    spare = parent.end_nano - parent.start_nano - (child.end_nano - child.start_nano)
    if spare >= 0:
        return parent.start_nano + spare // 2 - child.start_nano
    is_apart = child.end_nano <= parent.start_nano or child.start_nano >= parent.end_nano
    return parent.start_nano - child.start_nano if is_apart else 0


def _have_one_clock(one: SpanRecord, other: SpanRecord) -> bool:
    if one.resource is other.resource or one.resource == other.resource:
        return True
    host = _host(one)
    return host != "" and host == _host(other)


def _host(span: SpanRecord) -> str:
    return next((each.text for each in attributes(span.resource) if each.key == "host.name"), "")


def rows(tree: Tree) -> list[Row]:
    """Returns each span once, below its parent, by start."""
    tops: list[tuple[int, SpanIndex | None, str]] = [
        (tree.spans[index].start_nano, index, "") for index in tree.roots
    ]
    for missing, group in tree.orphans.items():
        tops.append((min(tree.spans[index].start_nano for index in group), None, missing))
    tops.sort(key=lambda top: (top[0], top[2]))
    listed: list[Row] = []
    for _, index, missing in tops:
        listed.extend(_rows_of(tree, index, missing))
    return listed


def _rows_of(tree: Tree, top: SpanIndex | None, missing: str) -> list[Row]:
    """Does not recurse: a trace can be one long chain of spans."""
    order: list[tuple[SpanIndex | None, int]] = []
    stack: list[tuple[SpanIndex | None, int]] = [(top, 0)]
    while stack:
        index, depth = stack.pop()
        order.append((index, depth))
        under = tree.orphans[missing] if index is None else tree.children[index]
        stack.extend((child, depth + 1) for child in reversed(under))
    below = [0] * len(order)
    open_rows: list[int] = []
    for at, (_, depth) in enumerate(order):
        for ended in open_rows[depth:]:
            below[ended] = at - ended - 1
        open_rows[depth:] = [at]
    for ended in open_rows:
        below[ended] = len(order) - ended - 1
    return [
        Row(index, depth, below[at], missing if index is None else "")
        for at, (index, depth) in enumerate(order)
    ]


def _parents(
    spans: Sequence[SpanRecord], indexes: dict[str, SpanIndex]
) -> tuple[list[SpanIndex | None], dict[str, list[SpanIndex]]]:
    parents: list[SpanIndex | None] = []
    orphans: dict[str, list[SpanIndex]] = {}
    for index, span in enumerate(spans):
        parents.append(indexes.get(span.parent_id) if span.parent_id else None)
        if span.parent_id and span.parent_id not in indexes:
            orphans.setdefault(span.parent_id, []).append(index)
    return parents, orphans


def _children(parents: Sequence[SpanIndex | None]) -> list[list[SpanIndex]]:
    children: list[list[SpanIndex]] = [[] for _ in parents]
    for index, parent in enumerate(parents):
        if parent is not None:
            children[parent].append(index)
    return children


def _cut_cycles(
    spans: Sequence[SpanRecord], parents: list[SpanIndex | None], tops: Sequence[SpanIndex]
) -> Iterator[SpanIndex]:
    """Makes the earliest span of each cycle a root, in `parents`. Yields these spans."""
    is_reached = [False] * len(spans)
    for top in tops:
        is_reached[top] = True
    for start in range(len(spans)):
        path: list[SpanIndex] = []
        seen: set[SpanIndex] = set()
        index: SpanIndex | None = start
        while index is not None and not is_reached[index] and index not in seen:
            path.append(index)
            seen.add(index)
            index = parents[index]
        if index is not None and index in seen:
            first = min(path[path.index(index) :])
            parents[first] = None
            yield first
        for index in path:
            is_reached[index] = True


def _note_on_times(span: SpanRecord, parent: SpanRecord | None) -> str:
    if not span.is_timed:
        return UNTIMED
    if parent is not None and span.start_nano < parent.start_nano:
        early_ms = (parent.start_nano - span.start_nano) / 1e6
        return f"starts {early_ms:.3g} ms before its parent: {CLOCKS_DIFFER}"
    if parent is not None and clock_shift(parent, span):
        late_ms = (span.end_nano - parent.end_nano) / 1e6
        return f"is outside its parent's time by {late_ms:.3g} ms: {CLOCKS_DIFFER}"
    return ""


def _note(notes: dict[SpanIndex, list[str]], index: SpanIndex, text: str) -> None:
    notes.setdefault(index, []).append(text)


_ANOMALIES = {
    CLOCKS_DIFFER: ("is outside its parent's time", "are outside their parent's time", ": clocks differ"),
    SAME_ID: ("has the ID of another span", "have the ID of another span", ""),
    IN_CYCLE: ("is its own ancestor", "are their own ancestors", ": each cycle is cut at its first span"),
    UNTIMED: ("has invalid times", "have invalid times", ""),
}


def trace_notes(trace: Trace, tree: Tree) -> list[str]:
    found = []
    roots = sum(not span.parent_id for span in tree.spans)
    if tree.spans and not roots:
        found.append("The root span is missing: it was not sent, or has not arrived yet.")
    elif roots > 1:
        found.append(f"{roots} spans have no parent; the critical path is shown for the longest.")
    # Otherwise a later end is due to a clock that is ahead.
    may_end_later = bool(tree.async_spans or tree.orphans) or len(tree.roots) > 1
    if tree.main is not None and may_end_later and trace.end_nano > trace.spans[tree.main].end_nano:
        main = trace.spans[tree.main]
        took = format_duration(main.duration_ms)
        late = format_duration((trace.end_nano - main.end_nano) / 1e6)
        found.append(f"{_main_name(roots)} took {took}; work continued for {late} after it ended.")
    if count := sum(len(group) for group in tree.orphans.values()):
        found.append(f"{_spans(count)} with a missing parent.")
    for anomaly, (one, many, why) in _ANOMALIES.items():
        if count := sum(any(anomaly in note for note in notes) for notes in tree.notes.values()):
            found.append(f"{_spans(count)} {one if count == 1 else many}{why}.")
    return found


def _main_name(roots: int) -> str:
    return "The root span" if roots == 1 else "The longest root span" if roots else "The longest span"


def _spans(count: int) -> str:
    return "1 span" if count == 1 else f"{count:,} spans"
