"""Derives column constraints from one condition of a WHERE or ON clause, and combines constraints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from frazil.sql.constants import DAY, Constants, Constraint, Constraints, Kind, Range, Value, near

Node = Mapping[str, Any]
_DEPTH_MAX = 60
_VALUES_MAX = 1000
_FLIPPED = {
    "COMPARE_EQUAL": "COMPARE_EQUAL",
    "COMPARE_GREATERTHAN": "COMPARE_LESSTHAN",
    "COMPARE_LESSTHAN": "COMPARE_GREATERTHAN",
    "COMPARE_GREATERTHANOREQUALTO": "COMPARE_LESSTHANOREQUALTO",
    "COMPARE_LESSTHANOREQUALTO": "COMPARE_GREATERTHANOREQUALTO",
}
_PREFIX_FUNCTIONS = frozenset({"starts_with", "^@", "prefix"})
_LAST_CHARACTER = "\U0010ffff"
_SURROGATES = range(0xD800, 0xE000)
UNCONSTRAINED: Constraints = {}

Key = TypeVar("Key")
"""Identifies a column for the caller."""
FoundColumn = tuple[Key, Kind] | None
"""A column and its kind; None if either is not certain."""


def intersection(one: Constraint, other: Constraint) -> Constraint:
    """Return the constraint that is met if both are."""
    lowers = [bound for bound in (one.lower, other.lower) if bound is not None]
    uppers = [bound for bound in (one.upper, other.upper) if bound is not None]
    values = one.values if other.values is None else other.values
    if one.values is not None and other.values is not None:
        values = one.values & other.values
    return Constraint(max(lowers, default=None), min(uppers, default=None), values)


def union(one: Constraint, other: Constraint) -> Constraint:
    """Return a constraint that is met if either is."""
    if one.values is not None and other.values is not None and _no_bounds(one) and _no_bounds(other):
        return Constraint(values=one.values | other.values)
    one, other = _as_bounds(one), _as_bounds(other)
    lower = None if one.lower is None or other.lower is None else min(one.lower, other.lower)
    upper = None if one.upper is None or other.upper is None else max(one.upper, other.upper)
    return Constraint(lower, upper)


def _no_bounds(constraint: Constraint) -> bool:
    return constraint.lower is None and constraint.upper is None


def _as_bounds(constraint: Constraint) -> Constraint:
    if not constraint.values:
        return Constraint(constraint.lower, constraint.upper)
    return intersection(
        Constraint(constraint.lower, constraint.upper),
        Constraint(min(constraint.values), max(constraint.values)),
    )


def union_all(alternatives: Sequence[Mapping[Key, Constraint]]) -> dict[Key, Constraint]:
    """Combine alternatives: only columns that all of them constrain are constrained."""
    if not alternatives:
        return {}
    merged: dict[Key, Constraint] = {}
    for column in set(alternatives[0]).intersection(*alternatives[1:]):
        merged[column] = alternatives[0][column]
        for other in alternatives[1:]:
            merged[column] = union(merged[column], other[column])
    return merged


def add(constraints: dict[Key, Constraint], column: Key, more: Constraint) -> None:
    constraints[column] = intersection(constraints[column], more) if column in constraints else more


def conjuncts(condition: Node) -> Iterator[Node]:
    waiting = [condition]
    while waiting:
        node = waiting.pop()
        if node.get("class") == "CONJUNCTION" and node.get("type") == "CONJUNCTION_AND":
            waiting.extend(node["children"])
        else:
            yield node


class Conditions:
    """Derives constraints that hold where a condition is true. Constrained columns are not NULL there."""

    def __init__(self, constants: Constants) -> None:
        self._constants = constants

    def read(self, condition: Node, column: Callable[[Node], FoundColumn[Key]]) -> dict[Key, Constraint]:
        """Return the constraints of a condition. `column` returns the column that an expression names."""
        found: dict[Key, Constraint] = {}
        for term in conjuncts(condition):
            for key, constraint in self._of_term(term, column, 0):
                add(found, key, constraint)
        return found

    def _of_term(
        self, term: Node, column: Callable[[Node], FoundColumn[Key]], depth: int
    ) -> Iterator[tuple[Key, Constraint]]:
        kind, type_ = term.get("class"), term.get("type")
        if depth > _DEPTH_MAX:
            return
        if kind == "CONJUNCTION" and type_ == "CONJUNCTION_AND":
            for child in term["children"]:
                yield from self._of_term(child, column, depth + 1)
        elif kind == "CONJUNCTION" and type_ == "CONJUNCTION_OR":
            yield from self._of_alternatives(term["children"], column, depth)
        elif kind == "COMPARISON" and type_ in _FLIPPED:
            yield from self._of_comparison(type_, term["left"], term["right"], column)
            yield from self._of_comparison(_FLIPPED[type_], term["right"], term["left"], column)
        elif kind == "BETWEEN" and type_ == "COMPARE_BETWEEN":
            yield from self._of_between(term, column)
        elif kind == "OPERATOR" and type_ == "COMPARE_IN":
            yield from self._of_list(term["children"][0], term["children"][1:], column)
        elif kind == "OPERATOR" and type_ == "OPERATOR_IS_NOT_NULL":
            found = column(term["children"][0])
            if found is not None:
                yield found[0], Constraint()
        elif kind == "FUNCTION":
            yield from self._of_function(term, column)

    def _of_alternatives(
        self, children: Sequence[Node], column: Callable[[Node], FoundColumn[Key]], depth: int
    ) -> Iterator[tuple[Key, Constraint]]:
        alternatives: list[dict[Key, Constraint]] = []
        for child in children:
            one: dict[Key, Constraint] = {}
            for key, constraint in self._of_term(child, column, depth + 1):
                add(one, key, constraint)
            alternatives.append(one)
        yield from union_all(alternatives).items()

    def _of_comparison(
        self, type_: str, left: Node, right: Node, column: Callable[[Node], FoundColumn[Key]]
    ) -> Iterator[tuple[Key, Constraint]]:
        if left.get("class") == "CAST" and left["cast_type"]["id"] == "DATE":
            found = column(left["child"])
            date = self._constants.date(right) if found is not None and found[1] == "time" else None
            if found is not None and date is not None:
                # The time is within the day.
                yield found[0], _compared(type_, Range(date.low, int(date.high) + DAY))
            return
        found = column(left)
        value = None if found is None else self._constants.value(right, found[1])
        if found is not None and value is not None:
            yield found[0], _compared(type_, value)

    def _of_between(
        self, term: Node, column: Callable[[Node], FoundColumn[Key]]
    ) -> Iterator[tuple[Key, Constraint]]:
        """Read BETWEEN. DuckDB compares all operands as one type, which may differ from the column's."""
        found = column(term["input"])
        sides = (
            ("COMPARE_GREATERTHANOREQUALTO", term["lower"]),
            ("COMPARE_LESSTHANOREQUALTO", term["upper"]),
        )
        if found is None or found[1] == "time":
            for type_, side in sides:
                yield from self._of_comparison(type_, term["input"], side, column)
            return
        values = self._values([side for _, side in sides], found[1])
        for (type_, _), value in zip(sides, values or (), strict=False):
            yield found[0], _compared(type_, value)

    def _of_list(
        self, left: Node, items: Sequence[Node], column: Callable[[Node], FoundColumn[Key]]
    ) -> Iterator[tuple[Key, Constraint]]:
        found = column(left)
        if found is None or len(items) > _VALUES_MAX:
            return
        values = self._values(items, found[1])
        if values:
            merged = _compared("COMPARE_EQUAL", values[0])
            for each in values[1:]:
                merged = union(merged, _compared("COMPARE_EQUAL", each))
            yield found[0], merged

    def _values(self, items: Sequence[Node], kind: Kind) -> list[Range] | None:
        """Return the values of items that are compared with a column as one type; None if any is not known.
        Integers are compared as doubles if any item is one.
        """
        ranges: list[Range] = []
        for item in items:
            value = self._constants.value(item, kind)
            if value is None:
                return None
            ranges.append(value)
        if kind != "integer" or all(isinstance(each.low, int) for each in ranges):
            return ranges
        widened = [near(float(end)) for each in ranges for end in (each.low, each.high)]
        known = [each for each in widened if each is not None]
        if len(known) < len(widened):
            return None
        return [Range(low.low, high.high) for low, high in zip(known[::2], known[1::2], strict=True)]

    def _of_function(
        self, term: Node, column: Callable[[Node], FoundColumn[Key]]
    ) -> Iterator[tuple[Key, Constraint]]:
        name, children = term["function_name"].lower(), term["children"]
        if len(children) != 2 or name not in {*_PREFIX_FUNCTIONS, "~~"}:
            return
        found = column(children[0])
        value = None if found is None or found[1] != "text" else self._constants.value(children[1], "text")
        if found is None or value is None or not isinstance(value.low, str):
            return
        start = value.low
        if name == "~~":
            if "\\" in start:
                return
            start = min(start.partition("%")[0], start.partition("_")[0], key=len)
        yield found[0], _beginning_with(start)


def _compared(type_: str, value: Range) -> Constraint:
    if type_ == "COMPARE_EQUAL":
        if value.low == value.high:
            return Constraint(values=frozenset({value.low}))
        return Constraint(value.low, value.high)
    if type_ in ("COMPARE_GREATERTHAN", "COMPARE_GREATERTHANOREQUALTO"):
        return Constraint(lower=value.low)
    return Constraint(upper=value.high)


def _beginning_with(start: str) -> Constraint:
    """Return the range of text that begins with `start`."""
    kept = start.rstrip(_LAST_CHARACTER)
    upper: Value | None = None
    if kept:
        following = ord(kept[-1]) + 1
        upper = kept[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)
    return Constraint(start or None, upper)
