"""How a derived table is declared: its source, the function that computes its rows, and how rows of one key merge.

A derived table holds partial rows: each round of derivation appends rows for the source rows that are new. Rows
with the same key are parts of one result, and merge by the rule of each column. The rules are associative and
commutative, so it does not matter in how many parts, in which order or how late the source rows arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from frazil.tables.derived.view import ViewQuery

Rule = Literal["key", "sum", "min", "max", "any", "first", "last", "counts", "counted", "union"]
"""How the values of one column merge. Except for `first` and `last`, NULL is ignored: the result is NULL
only if all values are.

- `key`: part of the key.
- `sum`, `min`, `max`: of numbers; `min` and `max` also of times and booleans. `min` and `max` ignore NaN, unless
  there is no number.
- `any`: all rows of a key have the same value.
- `first`, `last`: the value of the row in which the column `by` is smallest or largest, even if that value is
  NULL. Rows in which `by` is NULL are ignored. `by` is an integer or a time and has rule `min` or `max` itself.
  All columns with the same rule and `by` get their values from the same row. Of several rows with that `by`, it
  is the one whose values in these columns, compared in the order in which they are declared, are smallest
  (`first`) or largest (`last`). A number is preferred to NaN, and any value to NULL.
- `counts` and `counted`: two lists of the same length. The column with rule `counts` has the number of times that
  the value in the column `by` (rule `counted`) occurred. Merging adds the counts of equal values and sorts by value.
- `union`: the distinct values of lists of text, sorted.
"""

RESOLUTIONS = (60, 300, 3600, 86_400)
"""The lengths in seconds of the buckets of rollups."""
LIST_VALUES_MAX = 4096
"""The most values of a merged list. Of `counts` lists the smallest values are added up, so that high quantiles stay
right; of `union` lists the last in sort order are dropped.
"""


@dataclass(frozen=True)
class Merge:
    rule: Rule
    by: str = ""


KEY = Merge("key")
SUM = Merge("sum")
MIN = Merge("min")
MAX = Merge("max")
ANY = Merge("any")
UNION = Merge("union")

Derive = Callable[[pa.Table], pa.Table]
Settle = Callable[[pa.Table, int], tuple[pa.Table, pa.Table]]
Dialect = Literal["duckdb", "spark", "trino"]
Complete = Callable[[Dialect, str], str]
GiveUp = Callable[[pa.Table], pa.Table]

OPEN, SETTLED = 0, 1
"""The resolutions of pending rows: those that have not been settled, and those that stayed pending when they were."""
PENDING_RESOLUTIONS = (OPEN, SETTLED)


@dataclass(frozen=True)
class Pending:
    """Rows of a derived table that are not a part of a result yet, because rows of the source that belong to them may
    arrive later or in another task: `derive` gives them the resolution `OPEN`. Queries make rows of the results from
    them. When nothing is expected any more, compaction *settles* them: it puts rows of the results in their place.

    The table must have a hot column `received_time`, which says when the source rows of a pending row arrived and is NULL
    in other rows: its bounds say which files are to be settled.
    """

    by: str
    """The column whose equal values say that pending rows belong together: the first after `resolution` in `sort_by`."""
    spread_seconds: int
    """How far apart in `time` rows that belong together may be. Others are not put together."""
    settled_after_seconds: int
    """How long after the last row of a group has arrived the group is settled: at least, and at most twice as long."""
    complete: Complete
    """Returns a SELECT of the rows that follow from pending rows, at each resolution, with the columns that SQL has. The
    argument is a FROM item with rows of the table, of which only pending ones are used.
    """
    settle: Settle
    """Gets the pending rows of complete groups of a tenant and day, and the latest time of arrival, in microseconds since
    1970, of groups to settle. Returns the rows that follow from them, as `derive` does, and the rows that stay pending.
    """
    give_up: GiveUp
    """Gets pending rows that are not kept, because their tenant has too many on that day. Returns the rows that follow
    from each of them alone, of the same day, as `derive` does.
    """


@dataclass(frozen=True)
class Derived:
    """What makes a table a derived one.

    `derive` gets rows of the source with (at least) `columns`, `tenant_id` and `time`, in any order, text maybe
    dictionary-encoded. It returns rows of the table, by column name, in any column order; columns that are missing
    are NULL. Rows of one key need not be merged. It is a module-level function, because Spark's workers run it.

    With `resolutions`, `derive` returns rows at the time of their source rows, and the framework makes the rows of each
    resolution. Rows to which `derive` gives a value of the column `resolution` keep it, and their time.
    """

    source: str
    columns: tuple[str, ...]
    derive: Derive
    resolutions: tuple[int, ...] = ()
    kept_days: tuple[tuple[int, int | None], ...] = ((0, 90),)
    """How many days rows are kept, by resolution; 0 stands for all rows. None: forever."""
    counts: str = ""
    """The column with rule `sum` that counts the rows of the source, if there is one. Each row of the source is counted
    once in each resolution.
    """
    spread_seconds: int = 0
    """How far apart in `time` rows of one key may be, if `time` is not part of the key. A query for a time range reads
    rows of this much more time before and after it.
    """
    limited_key: str = ""
    """The integer column, part of the key like the day in `time`, of which one tenant has at most
    `derive.series_per_day_max` values a day.
    """
    once_per_seconds: int | None = None
    """A row with a key that was written in the same period of this many seconds is not written again, unless it has another
    value in an integer column with rule `min` or `max`.
    """
    pending: Pending | None = None
    view: ViewQuery | None = None
    """The Spark SQL that computes the rows, in a Spark job of its own. Then nothing calls `derive`."""

    def kept_days_of(self, resolution: int) -> int | None:
        """Returns how many days rows of a resolution are kept. None: forever."""
        kept = dict(self.kept_days)
        return kept.get(resolution, kept.get(0))

    @property
    def longest_kept(self) -> int:
        """The resolution whose rows are kept longest; 0 if there are none."""
        kept = {each: self.kept_days_of(each) for each in self.resolutions}
        return max(kept, key=lambda each: (kept[each] is None, kept[each] or 0, each), default=0)
