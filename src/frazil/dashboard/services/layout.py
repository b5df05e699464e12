"""Places the nodes of the map in layers, from callers on the left to callees on the right.

The method is that of Sugiyama: calls that close a cycle are turned round, each node is one layer right of its
last caller, calls over several layers pass through a point in each of them, and sweeps over the layers move
nodes next to their neighbours. Equal graphs have equal layouts. The numbers of calls do not matter, so that
the map stays as it is when a page refreshes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from frazil.dashboard.services.graph import Node

NODE_WIDTH, NODE_HEIGHT = 152, 44
ROW_STEP = 64
_POINT_STEP = 30
"""The vertical space of a call that passes a layer."""
_MARGIN = 16
_ORDER_SWEEPS, _PLACE_SWEEPS = 8, 12

Ends = tuple[Node, Node]
Point = tuple[float, float]


@dataclass(frozen=True)
class _Pass:
    """The point at which a call passes a layer."""

    ends: Ends
    layer: int


_Item = Node | _Pass


@dataclass(frozen=True)
class Layout:
    width: float
    height: float
    centres: Mapping[Node, Point]
    lines: Mapping[Ends, Sequence[Point]]
    """The points of each call, from the side of its caller to the side of its callee. A call of a node to
    itself is not there.
    """


def layout(nodes: Sequence[Node], calls: Sequence[Ends], gap: float) -> Layout:
    """Returns the layout with this much space between layers."""
    layer_step = NODE_WIDTH + gap
    nodes = sorted(set(nodes))
    pairs = sorted({ends for ends in calls if ends[0] != ends[1]})
    turned = _turned(nodes, pairs)
    forward = sorted({_forward(ends, turned) for ends in pairs})
    layer_of = _layers(nodes, forward)
    layers, chains = _items(nodes, forward, layer_of)
    neighbours = _neighbours(chains)
    layers = _ordered(layers, neighbours)
    rows = _rows(layers, neighbours)
    top = min(rows.values(), default=0.0)
    bottom = max(rows.values(), default=0.0)

    def point(item: _Item, layer: int) -> Point:
        return (
            _MARGIN + NODE_WIDTH / 2 + layer * layer_step,
            _MARGIN + NODE_HEIGHT / 2 + rows[item] - top,
        )

    centres = {node: point(node, layer_of[node]) for node in nodes}
    lines: dict[Ends, Sequence[Point]] = {}
    for ends in pairs:
        caller, callee = _forward(ends, turned)
        between = [point(item, item.layer) for item in chains[caller, callee] if isinstance(item, _Pass)]
        (left, left_y), (right, right_y) = centres[caller], centres[callee]
        line = [(left + NODE_WIDTH / 2, left_y), *between, (right - NODE_WIDTH / 2, right_y)]
        lines[ends] = line[::-1] if ends in turned else line
    return Layout(
        2 * _MARGIN + NODE_WIDTH + (len(layers) - 1) * layer_step if layers else 0,
        2 * _MARGIN + NODE_HEIGHT + bottom - top if layers else 0,
        centres,
        lines,
    )


def _forward(ends: Ends, turned: set[Ends]) -> Ends:
    return (ends[1], ends[0]) if ends in turned else ends


def _turned(nodes: Sequence[Node], pairs: Sequence[Ends]) -> set[Ends]:
    """Returns the calls to turn round, so that no cycle is left: those to a node on the path from which a
    depth-first walk came. The walk starts at nodes without callers.
    """
    callees: dict[Node, list[Node]] = defaultdict(list)
    callee: Node | None
    called = {callee for _, callee in pairs}
    for caller, callee in pairs:
        callees[caller].append(callee)
    turned: set[Ends] = set()
    done: set[Node] = set()
    for start in sorted(nodes, key=lambda node: (node in called, node)):
        if start in done:
            continue
        path = [(start, iter(callees[start]))]
        on_path = {start}
        while path:
            node, rest = path[-1]
            callee = next(rest, None)
            if callee is None:
                path.pop()
                on_path.discard(node)
                done.add(node)
            elif callee in on_path:
                turned.add((node, callee))
            elif callee not in done:
                path.append((callee, iter(callees[callee])))
                on_path.add(callee)
    return turned


def _layers(nodes: Sequence[Node], forward: Sequence[Ends]) -> dict[Node, int]:
    """Returns the layer of each node: one right of the last of its callers."""
    layers = dict.fromkeys(nodes, 0)
    for _ in nodes:
        is_changed = False
        for caller, callee in forward:
            if layers[callee] <= layers[caller]:
                layers[callee] = layers[caller] + 1
                is_changed = True
        if not is_changed:
            break
    return layers


def _items(
    nodes: Sequence[Node], forward: Sequence[Ends], layer_of: Mapping[Node, int]
) -> tuple[list[list[_Item]], dict[Ends, list[_Item]]]:
    """Returns the items of each layer, and the chain of items of each call."""
    layers: list[list[_Item]] = [[] for _ in range(max(layer_of.values(), default=-1) + 1)]
    for node in nodes:
        layers[layer_of[node]].append(node)
    chains: dict[Ends, list[_Item]] = {}
    for caller, callee in forward:
        passes = [_Pass((caller, callee), layer) for layer in range(layer_of[caller] + 1, layer_of[callee])]
        chains[caller, callee] = [caller, *passes, callee]
        for each in passes:
            layers[each.layer].append(each)
    return layers, chains


def _neighbours(chains: Mapping[Ends, Sequence[_Item]]) -> dict[_Item, tuple[list[_Item], list[_Item]]]:
    """Returns the neighbours of each item in the layer left and in the layer right of it."""
    found: dict[_Item, tuple[list[_Item], list[_Item]]] = defaultdict(lambda: ([], []))
    for chain in chains.values():
        for left, right in pairwise(chain):
            found[left][1].append(right)
            found[right][0].append(left)
    return found


def _ordered(
    layers: list[list[_Item]], neighbours: Mapping[_Item, tuple[list[_Item], list[_Item]]]
) -> list[list[_Item]]:
    """Orders each layer by the mean place of the neighbours, to and fro. Returns the order with the fewest
    crossings.
    """
    best, fewest = layers, _crossings(layers, neighbours)
    for sweep in range(_ORDER_SWEEPS):
        layers = [list(layer) for layer in layers]
        side = sweep % 2
        numbers = range(len(layers)) if side == 0 else range(len(layers) - 1, -1, -1)
        place = {item: at for layer in layers for at, item in enumerate(layer)}
        for number in numbers:
            layer = layers[number]
            wanted = {
                item: _mean([place[each] for each in neighbours[item][side]], place[item])
                for item in layer
                if item in neighbours
            }
            layer.sort(key=lambda item: (wanted.get(item, place[item]), place[item]))
            place |= {item: at for at, item in enumerate(layer)}
        crossings = _crossings(layers, neighbours)
        if crossings < fewest:
            best, fewest = layers, crossings
    return best


def _crossings(
    layers: Sequence[Sequence[_Item]], neighbours: Mapping[_Item, tuple[list[_Item], list[_Item]]]
) -> int:
    place = {item: at for layer in layers for at, item in enumerate(layer)}
    count = 0
    for layer in layers:
        ends = [
            (place[item], place[each]) for item in layer if item in neighbours for each in neighbours[item][1]
        ]
        count += sum((a[0] - b[0]) * (a[1] - b[1]) < 0 for at, a in enumerate(ends) for b in ends[at + 1 :])
    return count


def _rows(
    layers: Sequence[Sequence[_Item]], neighbours: Mapping[_Item, tuple[list[_Item], list[_Item]]]
) -> dict[_Item, float]:
    """Returns the vertical place of each item: near its neighbours, in the order of its layer."""
    rows: dict[_Item, float] = {}
    for layer in layers:
        spaced = _spaced(layer, [0.0] * len(layer))
        rows |= zip(layer, spaced, strict=True)
    for sweep in range(_PLACE_SWEEPS):
        for layer in layers if sweep % 2 == 0 else layers[::-1]:
            wanted = [
                _mean([rows[each] for side in neighbours[item] for each in side], rows[item])
                if item in neighbours
                else rows[item]
                for item in layer
            ]
            rows |= zip(layer, _spaced(layer, wanted), strict=True)
    return rows


def _spaced(layer: Sequence[_Item], wanted: Sequence[float]) -> list[float]:
    """Returns the places that are closest to the wanted ones, in this order and with enough space between
    two: an isotonic regression. Neighbours that want to be closer share the mean of what they want.
    """
    offsets, offset = [], 0.0
    for at, item in enumerate(layer):
        if at:
            offset += (_space(layer[at - 1]) + _space(item)) / 2
        offsets.append(offset)
    blocks: list[tuple[float, int]] = []
    for value in (each - start for each, start in zip(wanted, offsets, strict=True)):
        mean, count = value, 1
        while blocks and blocks[-1][0] > mean:
            before, many = blocks.pop()
            mean, count = (before * many + mean * count) / (many + count), many + count
        blocks.append((mean, count))
    means = [mean for mean, count in blocks for _ in range(count)]
    return [mean + start for mean, start in zip(means, offsets, strict=True)]


def _space(item: _Item) -> float:
    return _POINT_STEP if isinstance(item, _Pass) else ROW_STEP


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
