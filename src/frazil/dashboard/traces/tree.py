"""Which span is below which, and in which rows they are shown: also without a root, with gaps and circles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from frazil.dashboard.traces.read import CLIENT, SERVER, SpanRecord, attributes

Place = int
"""Where a span is in the sequence of the trace's spans."""


CLOCKS_DIFFER = "their clocks differ"
SAME_ID = "has the same ID as another span"
IN_A_CIRCLE = "is its own ancestor"
UNTIMED = "was sent without a time, or ends before it starts"


@dataclass(frozen=True)
class Tree:
    spans: Sequence[SpanRecord]
    children: Sequence[Sequence[Place]]
    """Of each span, by their start."""
    roots: Sequence[Place]
    """Spans that nothing is above."""
    orphans: dict[str, list[Place]]
    """By the id of the parent that is not here."""
    notes: dict[Place, list[str]]
    """What is odd about a span, in words."""
    outliving: dict[Place, int]
    """Spans that go on after their parent, or start after it: when the parent ended, in unix nanoseconds."""

    @property
    def main(self) -> Place | None:
        """The span whose time is the trace's: the longest root, else orphan; the first of equals."""
        tops = self.roots or [place for places in self.orphans.values() for place in places]
        return max(tops, key=lambda place: self.spans[place].duration_ms, default=None)


@dataclass(frozen=True)
class Row:
    """`place` is None where the parent of the rows below is missing."""

    place: Place | None
    depth: int
    below: int
    """How many rows after this one are under it."""
    missing: str = ""


def build_tree(spans: Sequence[SpanRecord]) -> Tree:
    places: dict[str, Place] = {}
    notes: dict[Place, list[str]] = {}
    for place, span in enumerate(spans):
        if not span.id or span.id in places:
            _note(notes, place, "has no ID" if not span.id else SAME_ID)
        else:
            places[span.id] = place
    parents, orphans = _parents(spans, places)
    roots = [place for place, span in enumerate(spans) if not span.parent_id]
    for place in _cut_circles(spans, parents, [*roots, *(p for group in orphans.values() for p in group)]):
        _note(notes, place, IN_A_CIRCLE)
        roots.append(place)
    outliving: dict[Place, int] = {}
    for place, (span, above) in enumerate(zip(spans, parents, strict=True)):
        parent = None if above is None else spans[above]
        if note := _note_on_times(span, parent):
            _note(notes, place, note)
        if parent and span.is_timed and span.end_nano > parent.end_nano and not clock_shift(parent, span):
            outliving[place] = parent.end_nano
    return Tree(spans, _children(parents), sorted(roots), orphans, notes, outliving)


def clock_shift(parent: SpanRecord, child: SpanRecord) -> int:
    """Returns the nanoseconds to add to a child's times so that they fit its parent's clock; mostly 0.

    A server answers a client within the client's span. If it lies outside and their hosts differ, so do their
    clocks: the server is moved to the middle, as if the request and the response travelled equally long. A
    server that lasts longer than its client has more than another clock: it moves only if it lies outside
    altogether.
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
    """Each span once, below its parent, by start."""
    tops: list[tuple[int, Place | None, str]] = [
        (tree.spans[place].start_nano, place, "") for place in tree.roots
    ]
    for missing, group in tree.orphans.items():
        tops.append((min(tree.spans[place].start_nano for place in group), None, missing))
    tops.sort(key=lambda top: (top[0], top[2]))
    made: list[Row] = []
    for _, place, missing in tops:
        made.extend(_rows_of(tree, place, missing))
    return made


def _rows_of(tree: Tree, top: Place | None, missing: str) -> list[Row]:
    """Without recursion: chains of spans can be as long as a trace."""
    order: list[tuple[Place | None, int]] = []
    stack: list[tuple[Place | None, int]] = [(top, 0)]
    while stack:
        place, depth = stack.pop()
        order.append((place, depth))
        under = tree.orphans[missing] if place is None else tree.children[place]
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
        Row(place, depth, below[at], missing if place is None else "")
        for at, (place, depth) in enumerate(order)
    ]


def _parents(
    spans: Sequence[SpanRecord], places: dict[str, Place]
) -> tuple[list[Place | None], dict[str, list[Place]]]:
    parents: list[Place | None] = []
    orphans: dict[str, list[Place]] = {}
    for place, span in enumerate(spans):
        parents.append(places.get(span.parent_id) if span.parent_id else None)
        if span.parent_id and span.parent_id not in places:
            orphans.setdefault(span.parent_id, []).append(place)
    return parents, orphans


def _children(parents: Sequence[Place | None]) -> list[list[Place]]:
    """Places are in order of start, and so are the children."""
    children: list[list[Place]] = [[] for _ in parents]
    for place, parent in enumerate(parents):
        if parent is not None:
            children[parent].append(place)
    return children


def _cut_circles(
    spans: Sequence[SpanRecord], parents: list[Place | None], tops: Sequence[Place]
) -> Iterator[Place]:
    """Makes a root of the earliest span of each circle, in `parents`."""
    is_hung = [False] * len(spans)
    for top in tops:
        is_hung[top] = True
    for start in range(len(spans)):
        way: list[Place] = []
        seen: set[Place] = set()
        place: Place | None = start
        while place is not None and not is_hung[place] and place not in seen:
            way.append(place)
            seen.add(place)
            place = parents[place]
        if place is not None and place in seen:
            first = min(way[way.index(place) :])
            parents[first] = None
            yield first
        for place in way:
            is_hung[place] = True


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


def _note(notes: dict[Place, list[str]], place: Place, text: str) -> None:
    notes.setdefault(place, []).append(text)
