"""Commits that replace data files. The rows must add up, and a commit that conflicts leaves no files.

Compaction, filling and tiering keep all rows, except that compaction combines partial rows of derived tables.
Retention and erasure remove rows.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from frazil.errors import Conflict, JobFailed, StoreUnavailable
from frazil.lake.commits.cleanup import discard
from frazil.lake.commits.commit import Committed, Committer
from frazil.pipeline.maintain.report import Totals, bytes_of, rows_of
from frazil.pipeline.maintain.search import SearchResult
from frazil.position import without

_COMMIT_SECONDS = 60.0
"""Swaps of this time are committed together, so that there are few snapshots."""

log = structlog.get_logger("frazil.maintain")


@dataclass(frozen=True)
class Swap:
    """Data files `added` that replace the data files `removed`."""

    removed: Sequence[DataFile]
    added: Sequence[DataFile]
    began: float
    """Seconds since 1970. No file of `added` is older."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Rows of `removed` that are not in `added`, by `_segment`."""
    combined: int = 0
    """By how many rows `added` has fewer because partial rows of one key became one row. They are not
    removed: a query returns the same before and after.
    """
    counted: int = 0
    """Source rows that the dropped rows of a derived table count."""
    made: int = 0
    """Rows of `added` that follow from pending rows of a derived table."""

    @classmethod
    def of(cls, found: Iterable[tuple[DataFile, SearchResult]], began: float) -> Swap:
        """Returns the swap of searched files for their rewritten versions without the matching rows."""
        matched = [(file, searched) for file, searched in found if searched.matches]
        return cls(
            [file for file, _ in matched],
            [searched.added for _, searched in matched if searched.added is not None],
            began,
            sum((searched.removed for _, searched in matched), Counter()),
            counted=sum(searched.counted for _, searched in matched),
        )

    @property
    def adds_up(self) -> bool:
        fewer = rows_of(self.removed) - rows_of(self.added)
        return self.combined >= 0 and fewer + self.made == self.dropped.total() + self.combined


class Rewrite:
    """Commits swaps to one table and counts them in `totals`. Logs each commit as `event`. The snapshot
    summary gets `facts`, and the number of dropped rows under the key `counted_as`. Swaps may combine
    rows only with `combines`, for derived tables.
    """

    def __init__(
        self,
        table: Table,
        committer: Committer,
        totals: Totals,
        event: str,
        *,
        facts: Mapping[str, str] | None = None,
        counted_as: str = "",
        combines: bool = False,
    ) -> None:
        self._table = table
        self._committer = committer
        self._totals = totals
        self._event = event
        self._facts = facts or {}
        self._counted_as = counted_as
        self._combines = combines
        self.conflicts = 0
        """Swaps that were discarded because another process had changed their files."""

    @contextlib.contextmanager
    def batches(self) -> Iterator[Callable[[Swap], None]]:
        """Yields a function that collects swaps and commits those of about a minute together. Also commits if
        a job or the store fails: otherwise a repeated failure would prevent all progress.
        """
        ready: list[Swap] = []
        since = time.monotonic()

        def add(swap: Swap) -> None:
            nonlocal ready, since
            ready.append(swap)
            if time.monotonic() - since >= _COMMIT_SECONDS:
                batch, ready = ready, []
                self.commit(batch)
                since = time.monotonic()

        try:
            yield add
        except (JobFailed, StoreUnavailable):
            self.commit(ready)
            raise
        self.commit(ready)

    def commit(self, swaps: Sequence[Swap]) -> Committed | None:
        """Commits all swaps in one commit. After a conflict, commits them one by one, so that only the swaps
        of changed files are lost. Returns None if there was a conflict or nothing to commit.
        """
        if not swaps:
            return None
        try:
            return self._commit(swaps)
        except Conflict as error:
            if len(swaps) == 1:
                self.discard(swaps[0], str(error))
            else:
                for swap in swaps:
                    self.commit([swap])
            return None

    def discard(self, swap: Swap, reason: str) -> None:
        """Deletes the files of a swap that cannot be committed because another process has changed its
        inputs.
        """
        self.conflicts += 1
        log.info("rewrite discarded: files changed by another process", table=self._name, reason=reason)
        discard(self._table, swap.added)

    def _commit(self, swaps: Sequence[Swap]) -> Committed:
        removed = [file for swap in swaps for file in swap.removed]
        added = [file for swap in swaps for file in swap.added]
        dropped: Counter[str] = sum((swap.dropped for swap in swaps), Counter())
        combined, made = sum(swap.combined for swap in swaps), sum(swap.made for swap in swaps)
        if not all(swap.adds_up for swap in swaps):
            raise AssertionError(
                f"{rows_of(removed):,} rows became {rows_of(added):,}, but {dropped.total():,} were removed "
                f"and {combined:,} combined"
            )
        if combined and (dropped or not self._combines):
            raise AssertionError(f"{combined:,} rows of {self._name} must not be combined")
        began = min(swap.began for swap in swaps)
        if dropped:
            facts = {**self._facts, **({self._counted_as: str(dropped.total())} if self._counted_as else {})}
            advance = partial(without, dropped, counted=sum(swap.counted for swap in swaps))
            committed = self._committer.overwrite(
                self._table, removed, added, advance, facts=facts, began=began
            )
        else:
            committed = self._committer.replace(
                self._table, removed, added, facts=self._facts, began=began, combined=combined, made=made
            )
        self._totals.count(removed, added, dropped.total(), combined)
        log.info(
            self._event,
            table=self._name,
            files_in=len(removed),
            files_out=len(added),
            bytes_in=bytes_of(removed),
            bytes_out=bytes_of(added),
            rows=rows_of(added),
            rows_removed=dropped.total(),
            rows_combined=combined,
            snapshot=committed.snapshot_id,
            attempts=committed.attempts,
        )
        return committed

    @property
    def _name(self) -> str:
        return self._table.name()[-1]
