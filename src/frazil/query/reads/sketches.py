"""SQL that adds up calls, errors and duration sketches of a rollup, in groups.

Quantiles of groups are found relationally: the sketches become rows of a code and a count, which are added
up, and a running sum finds the code of each quantile. Measured with 84,000 sketches of 100 codes in 1,451
groups: 1 s of CPU, with equal results. `merged_quantile` took 10 s for them, because it makes and sorts
lists.
"""

# ruff: noqa: S608 -- values are parameters
from __future__ import annotations

from collections.abc import Sequence

SHARES = (0.5, 0.95, 0.99)


def measured(rows: str, keys: Sequence[str], groups: Sequence[Sequence[str]]) -> str:
    """Return a SELECT with the columns `keys`, `part` (DuckDB's `grouping` of the keys), `requests`, `errors`
    and `quantiles` of `SHARES` in nanoseconds. `rows` is a SELECT of the keys, `calls`, `errors`,
    `duration_codes` and `duration_counts`. A group is a subset of the keys.
    """
    names = ", ".join(keys)
    part = f"grouping({names}) AS part"
    sets = ", ".join(f"({', '.join(group)})" for group in groups)
    sets_of_codes = ", ".join(f"({', '.join((*group, 'code'))})" for group in groups)
    codes = ", ".join(f"min(code) FILTER (until >= greatest(1, ceil({share} * total)))" for share in SHARES)
    same = " AND ".join(f"counted.{key} IS NOT DISTINCT FROM found.{key}" for key in ("part", *keys))
    return f"""
WITH partial AS ({rows}),
counted AS (
  SELECT {names}, {part}, CAST(sum(calls) AS BIGINT) AS requests, CAST(sum(errors) AS BIGINT) AS errors
  FROM partial GROUP BY GROUPING SETS ({sets})),
added AS (
  SELECT {names}, code, sum(n) AS n
  FROM (SELECT {names}, unnest(duration_codes) AS code, unnest(duration_counts) AS n FROM partial)
  GROUP BY ALL),
grouped AS (
  SELECT {names}, {part}, code, sum(n) AS n FROM added GROUP BY GROUPING SETS ({sets_of_codes})),
summed AS (
  SELECT *, sum(n) OVER (PARTITION BY part, {names} ORDER BY code) AS until,
         sum(n) OVER (PARTITION BY part, {names}) AS total
  FROM grouped),
found AS (
  SELECT {names}, part, list_transform([{codes}], lambda code: sketch_quantile([code], [1], 0.5)) AS quantiles
  FROM summed GROUP BY ALL)
SELECT counted.*, quantiles FROM counted LEFT JOIN found ON {same}"""
