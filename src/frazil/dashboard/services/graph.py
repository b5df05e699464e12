"""The graph of calls as the map shows it: nodes with their load, and one call for each pair of nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from frazil.query.reads.edges import SERVICE, Edge
from frazil.query.reads.services import Figures

NODES_MAX = 60
CALLS_MAX = 150
"""The most nodes and calls that are drawn: those with the most calls."""
WARN_SHARE, BAD_SHARE = 0.01, 0.05
"""Shares of failed calls from which a node or a call is drawn as a warning, or as bad."""
Level = Literal["ok", "warn", "bad"]


@dataclass(frozen=True, order=True)
class Node:
    kind: str
    """`service`; or `database`, `messaging` (a queue) or `external`, which send no spans."""
    name: str

    @property
    def is_service(self) -> bool:
        return self.kind == SERVICE


@dataclass(frozen=True)
class Load:
    per_second: float
    error_share: float
    p50_ms: float | None = None
    p99_ms: float | None = None

    @property
    def level(self) -> Level:
        if self.error_share >= BAD_SHARE:
            return "bad"
        return "warn" if self.error_share >= WARN_SHARE else "ok"


@dataclass(frozen=True)
class Call:
    """All calls from one node to another."""

    caller: Node
    callee: Node
    connection: str
    """That of most calls."""
    protocols: Sequence[str]
    calls: int
    load: Load


@dataclass(frozen=True)
class CallGraph:
    nodes: Mapping[Node, Load | None]
    """By name, so that the map does not change with the numbers of calls. The load of a service that only
    calls others is None.
    """
    calls: Sequence[Call]
    """Those with the most calls first."""
    nodes_left_out: int = 0
    calls_left_out: int = 0


def call_graph(
    edges: Sequence[Edge], seconds: float, services: Mapping[str, Figures], services_seconds: float
) -> CallGraph:
    """Returns the graph of edges that were read for `seconds`. The load of a service is that of its requests
    in `services_seconds`, if they were read; of other nodes, that of the calls to them.
    """
    known = {edge.caller for edge in edges} | set(services)
    known |= {edge.callee for edge in edges if edge.connection == SERVICE}
    grouped: dict[tuple[Node, Node], list[Edge]] = defaultdict(list)
    for edge in edges:
        # A message goes to the service that reads it, if that is known, and to its queue otherwise.
        is_service = edge.connection == SERVICE or (
            edge.connection == "messaging" and (edge.is_read_by_service or edge.callee in known)
        )
        callee = Node(SERVICE if is_service else edge.connection, edge.callee)
        grouped[Node(SERVICE, edge.caller), callee].append(edge)
    calls = [_call(*ends, found, seconds) for ends, found in grouped.items()]
    calls.sort(key=lambda call: (-call.calls, call.caller, call.callee))
    return CallGraph(
        _loads(
            calls,
            {Node(SERVICE, name): _load(each, services_seconds) for name, each in services.items()},
        ),
        calls,
    )


def _call(caller: Node, callee: Node, edges: Sequence[Edge], seconds: float) -> Call:
    """Quantiles of several protocols cannot be merged here: the longest ones are shown."""
    largest = max(edges, key=lambda edge: (edge.calls, edge.connection))
    count = sum(edge.calls for edge in edges)
    load = Load(
        count / seconds,
        sum(edge.errors for edge in edges) / count if count else 0.0,
        _longest(edge.p50_ms for edge in edges),
        _longest(edge.p99_ms for edge in edges),
    )
    protocols = sorted({edge.protocol for edge in edges if edge.protocol})
    return Call(caller, callee, largest.connection, protocols, count, load)


def _loads(calls: Sequence[Call], services: Mapping[Node, Load]) -> dict[Node, Load | None]:
    incoming: dict[Node, list[Call]] = defaultdict(list)
    for call in calls:
        incoming[call.callee].append(call)
    ends = {node for call in calls for node in (call.caller, call.callee)}
    return {node: services.get(node) or _load_of(incoming[node]) for node in sorted(ends)}


def _load_of(calls: Sequence[Call]) -> Load | None:
    if not calls:
        return None
    count = sum(call.calls for call in calls)
    errors = sum(call.calls * call.load.error_share for call in calls)
    return Load(
        sum(call.load.per_second for call in calls),
        errors / count if count else 0.0,
        _longest(call.load.p50_ms for call in calls),
        _longest(call.load.p99_ms for call in calls),
    )


def _load(figures: Figures, seconds: float) -> Load:
    return Load(figures.requests / seconds, figures.error_share, figures.p50_ms, figures.p99_ms)


def _longest(found: Iterable[float | None]) -> float | None:
    return max((each for each in found if each is not None), default=None)


def around(graph: CallGraph, node: Node, *, caller: str | None = None) -> CallGraph:
    """Returns the calls from and to one node, or only those that a caller makes to it."""
    calls = [
        call
        for call in graph.calls
        if (call.callee == node and call.caller.name == caller)
        or (caller is None and node in (call.caller, call.callee))
    ]
    return _with_calls(graph, calls, () if caller else {node})


def matching(graph: CallGraph, text: str) -> CallGraph:
    """Returns the calls from and to nodes whose names contain the text, in any case."""
    if not text:
        return graph
    found = {node for node in graph.nodes if text.lower() in node.name.lower()}
    calls = [call for call in graph.calls if call.caller in found or call.callee in found]
    return _with_calls(graph, calls, found)


def drawn(graph: CallGraph, kept: Collection[Node] = ()) -> CallGraph:
    """Returns the part that is drawn: the nodes and calls with the most calls, and the nodes `kept`."""
    counts: dict[Node, int] = defaultdict(int)
    for call in graph.calls:
        counts[call.caller] += call.calls
        counts[call.callee] += call.calls
    busiest = sorted(graph.nodes, key=lambda node: (node not in kept, -counts[node], node))[:NODES_MAX]
    chosen = set(busiest)
    among = [call for call in graph.calls if call.caller in chosen and call.callee in chosen]
    found = _with_calls(graph, among[:CALLS_MAX], chosen)
    return replace(
        found,
        nodes_left_out=len(graph.nodes) - len(found.nodes),
        calls_left_out=len(graph.calls) - len(found.calls),
    )


def _with_calls(graph: CallGraph, calls: Sequence[Call], kept: Collection[Node]) -> CallGraph:
    ends = {node for call in calls for node in (call.caller, call.callee)}
    nodes = {node: load for node, load in graph.nodes.items() if node in ends or node in kept}
    return CallGraph(nodes, calls)
