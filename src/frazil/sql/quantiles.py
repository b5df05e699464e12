"""SQL for quantiles of sketches and histograms, of one row and of all rows of a group, and for the number of
distinct values.

Sketches and histograms are two lists: values (codes of a sketch, or upper bounds of buckets) and how often
each occurred. Values may be repeated and in any order, as the merging views return them. The pairs of value
and count are sorted and read once, by `list_reduce`. Macros have no variables: a list of one element is
transformed instead, so that DuckDB evaluates the element once. The words that end with _ are unlikely to be
names of columns.
"""

from __future__ import annotations

import math

from frazil.tables.derived.metric_cardinality import REGISTERS, SIGMA_TERMS
from frazil.tables.derived.sketch import GAMMA, INFINITE, OFFSET

_LOG_GAMMA = math.log(GAMMA)
_LOG_MIDDLE = math.log(2 / (GAMMA + 1))
"""From the upper end of a bucket to its estimate. As a logarithm: the upper end of the last one overflows."""
_INFINITY = "'infinity'::DOUBLE"
_RANK = "greatest(0, least(1, share::DOUBLE)) * list_sum(list_transform(pairs_, lambda pair_: pair_.count))"


def _of_row(values: str) -> str:
    return f"list_zip({values}, counts)"


def _of_group(values: str) -> str:
    """Returns pairs of distinct values: a group can have millions of pairs. Measured: adding them up first
    takes a fifth of the time that sorting all of them takes.
    """
    every = f"flatten(list(list_zip({values}, counts)) FILTER (WHERE {values} IS NOT NULL))"
    named = f"list_transform({every}, lambda pair_: {{'value': pair_[1], 'count': pair_[2]}})"
    pairs = f"SELECT unnest({named}) AS each_"
    added_up = f"SELECT each_.value AS value_, sum(each_.count) AS count_ FROM ({pairs}) GROUP BY value_"  # noqa: S608
    return f"(SELECT list(row(value_, count_)) FROM ({added_up}))"  # noqa: S608


def _found(pairs: str, pair: str, found: str, result: str) -> str:
    """Returns `result` of `found_`, which is `found` in the sorted `pairs_`. Each of them is made by `pair`
    from one of the `pairs`. NULL if there are no pairs.
    """
    made = f"list_sort(list_transform({pairs}, lambda pair_: {pair}))"
    return (
        f"list_transform(list_transform([{made}], lambda pairs_: {found}), "
        f"lambda found_: CASE WHEN share IS NOT NULL THEN {result} END)[1]"
    )


_CODE = "{'value': pair_[1], 'count': coalesce(pair_[2], 0)::DOUBLE}"
# The sum begins with minus the rank: the code is found when the sum is 0 or more.
_CODE_FOUND = (
    "list_reduce(pairs_, lambda sum_, pair_: CASE WHEN sum_.count >= 0 THEN sum_ "
    "ELSE {'value': pair_.value, 'count': sum_.count + pair_.count} END, "
    f"{{'value': NULL, 'count': -greatest(1, ceil({_RANK}))}})"
)
# The sum stays below 0 only if all counts are 0.
_ESTIMATE = (
    "CASE WHEN found_.count < 0 THEN NULL WHEN found_.value = 0 THEN 0::DOUBLE "
    f"WHEN abs(found_.value) >= {INFINITE} THEN sign(found_.value) * {_INFINITY} "
    "ELSE sign(found_.value) "
    f"* exp((abs(found_.value) - {OFFSET}) * {_LOG_GAMMA!r}::DOUBLE + {_LOG_MIDDLE!r}::DOUBLE) END"
)
SKETCH_QUANTILE = _found(_of_row("codes"), _CODE, _CODE_FOUND, _ESTIMATE)
MERGED_QUANTILE = _found(_of_group("codes"), _CODE, _CODE_FOUND, _ESTIMATE)

_BUCKET = (
    "{'upper': pair_[1]::DOUBLE, 'count': coalesce(pair_[2], 0)::DOUBLE, 'lower': NULL::DOUBLE, "
    "'before': 0::DOUBLE}"
)
# Buckets of one bound are added up. `before` is the number of values in lower buckets, minus the rank.
_BUCKET_FOUND = (
    "list_reduce(pairs_, lambda sum_, pair_: CASE "
    "WHEN pair_.upper = sum_.upper THEN {'upper': sum_.upper, 'count': sum_.count + pair_.count, "
    "'lower': sum_.lower, 'before': sum_.before} "
    "WHEN sum_.count > 0 AND sum_.before + sum_.count >= 0 THEN sum_ "
    "ELSE {'upper': pair_.upper, 'count': pair_.count, 'lower': sum_.upper, "
    "'before': sum_.before + sum_.count} END, "
    f"{{'upper': NULL, 'count': 0, 'lower': NULL, 'before': -({_RANK})}})"
)
_INTERPOLATED = (
    "CASE WHEN found_.count = 0 THEN NULL "
    f"WHEN found_.upper = {_INFINITY} THEN found_.lower "
    "WHEN found_.lower IS NULL AND found_.upper <= 0 THEN found_.upper "
    "ELSE coalesce(found_.lower, 0) "
    "+ (found_.upper - coalesce(found_.lower, 0)) * (-found_.before / found_.count) END"
)
HISTOGRAM_QUANTILE = _found(_of_row("bounds"), _BUCKET, _BUCKET_FOUND, _INTERPOLATED)
MERGED_HISTOGRAM_QUANTILE = _found(_of_group("bounds"), _BUCKET, _BUCKET_FOUND, _INTERPOLATED)

# Rows may be partial, and a group may have several keys, such as hours: a register's highest rank counts.
_REGISTERS = "list(DISTINCT {'register_': registers, 'rank_': ranks}) FILTER (WHERE ranks IS NOT NULL)"
_UNNESTED = f"SELECT unnest({_REGISTERS}) AS pair_"
_HIGHEST = f"SELECT max(pair_.rank_) AS highest_ FROM ({_UNNESTED}) GROUP BY pair_.register_"  # noqa: S608
_SUMS = f"SELECT 1 - count(*) / {REGISTERS} AS unused_, sum(pow(2, -highest_)) AS sum_ FROM ({_HIGHEST})"  # noqa: S608
_SIGMA = (
    f"unused_ + list_sum(list_transform(range(1, {SIGMA_TERMS + 1}), "
    "lambda k_: pow(unused_, pow(2, k_)) * pow(2, k_ - 1)))"
)
_SQUARE = REGISTERS**2 / (2 * math.log(2))
MERGED_CARDINALITY = (
    f"(SELECT coalesce({_SQUARE!r}::DOUBLE / (sum_ + {REGISTERS} * ({_SIGMA})), 0) FROM ({_SUMS}))"  # noqa: S608
)
"""As `frazil.tables.derived.metric_cardinality.estimate`."""
