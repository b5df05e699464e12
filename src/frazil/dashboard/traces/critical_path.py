"""The critical path of a trace: the spans that delayed the end of the root, at each point in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from frazil.dashboard.traces.read import CONSUMER
from frazil.dashboard.traces.tree import SpanIndex, Tree, clock_shift


@dataclass(frozen=True)
class CriticalInterval:
    """A time, by the root's clock, in which the root waited for this span and not for one of its children."""

    index: SpanIndex
    start_nano: int
    end_nano: int
    shift_nano: int = 0
    """By how much the root's clock is ahead of the span's clock."""


@dataclass(frozen=True)
class Share:
    """The share of an operation in the critical path."""

    service: str
    name: str
    nano: int
    spans: int
    part: float


def critical_path(tree: Tree, root: SpanIndex) -> list[CriticalInterval]:
    """Returns intervals ordered by time, without gaps, that cover the duration of the root.

    Walks backwards from the end of the root. A span waited last for the child that ended last. Before that
    child started, it waited for the child that had ended last by then. Between children the span itself was
    working. A child counts until its parent ends: instrumentations often end a child some microseconds after
    its parent.
    """
    found: list[CriticalInterval] = []
    stack = [CriticalInterval(root, tree.spans[root].start_nano, tree.spans[root].end_nano)]
    while stack:
        current = stack.pop()
        cursor = current.end_nano
        for child in _blocking_children(tree, current):
            if child.end_nano > cursor:
                continue
            if child.end_nano < cursor:
                found.append(replace(current, start_nano=child.end_nano, end_nano=cursor))
            stack.append(child)
            cursor = child.start_nano
        if current.start_nano < cursor:
            found.append(replace(current, end_nano=cursor))
    return sorted(found, key=lambda interval: interval.start_nano)


def shares(tree: Tree, path: Sequence[CriticalInterval]) -> list[Share]:
    """Returns the operations, those with the most critical time first."""
    nanos: dict[tuple[str, str], int] = {}
    spans: dict[tuple[str, str], set[SpanIndex]] = {}
    for interval in path:
        span = tree.spans[interval.index]
        operation = (span.service, span.name)
        nanos[operation] = nanos.get(operation, 0) + interval.end_nano - interval.start_nano
        spans.setdefault(operation, set()).add(interval.index)
    total = sum(nanos.values())
    found = [
        Share(service, name, nano, len(spans[service, name]), nano / total)
        for (service, name), nano in nanos.items()
    ]
    return sorted(found, key=lambda share: (-share.nano, share.service, share.name))


def _blocking_children(tree: Tree, current: CriticalInterval) -> list[CriticalInterval]:
    """Returns the children that the span may have waited for, clipped to its time, the last to end first.

    A consumer that ends after its parent took a message for which the parent did not wait.
    """
    parent = tree.spans[current.index]
    found = []
    for index in tree.children[current.index]:
        child = tree.spans[index]
        if child.kind == CONSUMER and child.end_nano > parent.end_nano:
            continue
        shift = current.shift_nano + clock_shift(parent, child)
        start = max(child.start_nano + shift, current.start_nano)
        end = min(child.end_nano + shift, current.end_nano)
        if start < end:
            found.append(CriticalInterval(index, start, end, shift))
    return sorted(found, key=lambda part: (-part.end_nano, part.start_nano, part.index))
