"""The critical path of a trace: which span, at each moment, the end of the root waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from frazil.dashboard.trace_read import CONSUMER, SpanRecord
from frazil.dashboard.trace_tree import Place, Tree


@dataclass(frozen=True)
class Stretch:
    """From `start_nano` to `end_nano` the root waited for this span itself, not for one below it."""

    place: Place
    start_nano: int
    end_nano: int


@dataclass(frozen=True)
class Share:
    """Of an operation of a service in the critical path."""

    service: str
    name: str
    nano: int
    spans: int
    part: float


def critical_path(tree: Tree, root: Place) -> list[Stretch]:
    """By time, without gaps: together they last as long as the root.

    It is walked backwards from the end of the root. What a span waited for last is the child that ended last;
    before that child started, the one that had ended last by then, since one that was still running cannot be
    what its start waited for. Between children the span itself was at work.
    """
    found: list[Stretch] = []
    stack = [(root, tree.spans[root].start_nano, tree.spans[root].end_nano)]
    while stack:
        place, begin, end = stack.pop()
        cursor = end
        for child, child_begin, child_end in _waited_for(tree, place, begin, end):
            if child_end > cursor:
                continue
            if child_end < cursor:
                found.append(Stretch(place, child_end, cursor))
            stack.append((child, child_begin, child_end))
            cursor = child_begin
        if begin < cursor:
            found.append(Stretch(place, begin, cursor))
    return sorted(found, key=lambda stretch: stretch.start_nano)


def shares(tree: Tree, path: Sequence[Stretch]) -> list[Share]:
    """The operations with the most critical time come first."""
    nanos: dict[tuple[str, str], int] = {}
    spans: dict[tuple[str, str], set[Place]] = {}
    for stretch in path:
        span = tree.spans[stretch.place]
        operation = (span.service, span.name)
        nanos[operation] = nanos.get(operation, 0) + stretch.end_nano - stretch.start_nano
        spans.setdefault(operation, set()).add(stretch.place)
    whole = sum(nanos.values())
    made = [
        Share(service, name, nano, len(spans[service, name]), nano / whole)
        for (service, name), nano in nanos.items()
    ]
    return sorted(made, key=lambda share: (-share.nano, share.service, share.name))


def _waited_for(tree: Tree, place: Place, begin: int, end: int) -> list[tuple[Place, int, int]]:
    """The children that may have held the span up, with the part of each within its time; last ends first."""
    parent = tree.spans[place]
    found = []
    for child in tree.children[place]:
        span = tree.spans[child]
        part = (child, max(span.start_nano, begin), min(span.end_nano, end))
        if part[1] < part[2] and (span.end_nano <= parent.end_nano or not _is_left_behind(parent, span)):
            found.append(part)
    return sorted(found, key=lambda part: (-part[2], part[1], part[0]))


def _is_left_behind(parent: SpanRecord, child: SpanRecord) -> bool:
    """Whether a child that ends after its parent was not waited for.

    So it is by the same clock, and for who takes a message later. Between machines it is rather that clocks
    differ: the child then counts until its parent ends.
    """
    return child.kind == CONSUMER or parent.resource is child.resource or parent.resource == child.resource
