"""The critical path of a trace: which span, at each moment, the end of the root waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from frazil.dashboard.traces.read import CONSUMER
from frazil.dashboard.traces.tree import Place, Tree, clock_shift


@dataclass(frozen=True)
class Stretch:
    """From `start_nano` to `end_nano`, by the root's clock, the root waited for this span itself, not for one
    below it.
    """

    place: Place
    start_nano: int
    end_nano: int
    shift_nano: int = 0
    """How far the root's clock is ahead of the clock of the span."""


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
    what its start waited for. Between children the span itself was at work. A child counts while its parent
    lasts: instrumentations often end a child some microseconds after its parent.
    """
    found: list[Stretch] = []
    stack = [Stretch(root, tree.spans[root].start_nano, tree.spans[root].end_nano)]
    while stack:
        whole = stack.pop()
        cursor = whole.end_nano
        for child in _waited_for(tree, whole):
            if child.end_nano > cursor:
                continue
            if child.end_nano < cursor:
                found.append(replace(whole, start_nano=child.end_nano, end_nano=cursor))
            stack.append(child)
            cursor = child.start_nano
        if whole.start_nano < cursor:
            found.append(replace(whole, end_nano=cursor))
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


def _waited_for(tree: Tree, whole: Stretch) -> list[Stretch]:
    """Returns the children that may have held the span up, cut to its time; the last to end comes first.

    A consumer that goes on after its parent took a message that the parent did not wait for.
    """
    parent = tree.spans[whole.place]
    found = []
    for place in tree.children[whole.place]:
        child = tree.spans[place]
        if child.kind == CONSUMER and child.end_nano > parent.end_nano:
            continue
        shift = whole.shift_nano + clock_shift(parent, child)
        start = max(child.start_nano + shift, whole.start_nano)
        end = min(child.end_nano + shift, whole.end_nano)
        if start < end:
            found.append(Stretch(place, start, end, shift))
    return sorted(found, key=lambda part: (-part.end_nano, part.start_nano, part.place))
