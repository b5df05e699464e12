"""Constraints on the columns of rows, and their combination."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Value = str | int | float | bool


@dataclass(frozen=True)
class Constraint:
    """A condition that all needed rows meet in one column. Bounds are inclusive and may be wider than in the
    query.

    Times are microseconds since 1970 in UTC, as in Iceberg. Rows in which the column is NULL never meet a
    constraint.
    """

    lower: Value | None = None
    upper: Value | None = None
    values: frozenset[Value] | None = None
    """The values that the column can have."""


Constraints = Mapping[str, Constraint]
"""Constraints by column; all must hold. A column without an entry may have any value."""
UNCONSTRAINED: Constraints = {}


def intersection(one: Constraint, other: Constraint) -> Constraint:
    """Return the constraint that is met if both are."""
    lowers = [bound for bound in (one.lower, other.lower) if bound is not None]
    uppers = [bound for bound in (one.upper, other.upper) if bound is not None]
    values = one.values if other.values is None else other.values
    if one.values is not None and other.values is not None:
        values = one.values & other.values
    return Constraint(max(lowers, default=None), min(uppers, default=None), values)


def union(constraints: Sequence[Constraint]) -> Constraint:
    """Return a constraint that is met if any of the constraints is. There must be at least one."""
    if all(each.values is not None and _no_bounds(each) for each in constraints):
        return Constraint(values=frozenset[Value]().union(*(each.values or () for each in constraints)))
    bounds = [_as_bounds(each) for each in constraints]
    lowers = [each.lower for each in bounds if each.lower is not None]
    uppers = [each.upper for each in bounds if each.upper is not None]
    return Constraint(
        min(lowers) if len(lowers) == len(bounds) else None,
        max(uppers) if len(uppers) == len(bounds) else None,
    )


def widened(constraint: Constraint, margin: int) -> Constraint:
    """Return a constraint that is met by all numbers at most `margin` away from one that meets this one."""
    bounds = _as_bounds(constraint)
    return Constraint(
        bounds.lower - margin if isinstance(bounds.lower, int | float) else None,
        bounds.upper + margin if isinstance(bounds.upper, int | float) else None,
    )


def _no_bounds(constraint: Constraint) -> bool:
    return constraint.lower is None and constraint.upper is None


def _as_bounds(constraint: Constraint) -> Constraint:
    if not constraint.values:
        return Constraint(constraint.lower, constraint.upper)
    return intersection(
        Constraint(constraint.lower, constraint.upper),
        Constraint(min(constraint.values), max(constraint.values)),
    )


def union_all(alternatives: Sequence[Constraints]) -> dict[str, Constraint]:
    """Combine alternatives: only columns that all of them constrain are constrained."""
    if not alternatives:
        return {}
    columns = set(alternatives[0]).intersection(*alternatives[1:])
    return {column: union([each[column] for each in alternatives]) for column in columns}
