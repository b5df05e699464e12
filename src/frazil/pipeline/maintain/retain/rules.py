"""Plans a round of retention: which files the rules apply to, and which were searched before. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.table.metadata import TableMetadata

from frazil.config import RetentionRule
from frazil.config.maintain import DAY_SECONDS, RetentionConfig
from frazil.lake.clock import Late, Partition, by_partition, landed_late, partition_texts, trusted_now
from frazil.lake.live_files import LiveFile, partition_of
from frazil.pipeline.maintain.retain.check import concerns
from frazil.tables.columns import RESOLUTION, TableSpec

RETENTION = "frazil.retention"
"""The table property with the progress of each rule, so that no file is searched twice for a rule."""


@dataclass(frozen=True)
class RetentionRun:
    """One round of retention. `clock` is the current time in seconds since 1970. `confirmed`: an operator has
    checked the clock and the number of rows, so the clock is trusted and any share of rows may be removed.
    For `others` see `trusted_now`.
    """

    clock: float
    dry_run: bool = False
    confirmed: bool = False
    others: float | None = None

    def trusted_time(self, metadata: TableMetadata, config: RetentionConfig) -> float:
        """Returns the time that decides which rows are due."""
        if self.confirmed:
            return self.clock
        return trusted_now(metadata, self.clock, config.clock_gap_seconds_max, self.others)


@dataclass(frozen=True)
class RuleProgress:
    """The rule was applied to all files of days up to `day` that were committed up to `sequence`."""

    day: int
    sequence: int
    late: Late = field(default_factory=dict)
    """For partitions with late rows: the time of the round that last applied the rule to the whole
    partition.
    """


@dataclass(frozen=True)
class Due:
    """A file to which rules apply now. Without names all rows are removed, else those that any of these rules
    matches.
    """

    live: LiveFile
    names: tuple[str, ...] = ()
    since: float = 0.0
    """When the first of these rules fell due, in seconds since 1970."""

    @property
    def bytes(self) -> int:
        return int(self.live.file.file_size_in_bytes)

    @property
    def day(self) -> int:
        return self.partition[1]

    @property
    def partition(self) -> tuple[str, int]:
        tenant, day = partition_of(self.live.file)
        return str(tenant), int(day or 0)


@dataclass(frozen=True)
class RetentionPlan:
    dropped: tuple[Due, ...] = ()
    searched: tuple[Due, ...] = ()
    """In the order of the search; see `progress`."""
    days: Mapping[str, int] = field(default_factory=dict)
    """For each rule with a condition, the newest day to which it applies now."""
    next_due: float = math.inf
    """When the next file falls due, in seconds since 1970."""
    late: Late = field(default_factory=dict)
    now: float = 0.0
    """The time of the round, in seconds since 1970."""

    @property
    def files(self) -> frozenset[str]:
        return frozenset(due.live.file.file_path for due in (*self.dropped, *self.searched))


def key_of(rule: RetentionRule) -> str:
    """Returns an id of the rule that depends on nothing else in the configuration."""
    text = json.dumps([rule.table, rule.tenant, rule.where, rule.after_seconds])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def newest_day(rule: RetentionRule, now_seconds: float) -> int:
    """Returns the newest day to which the rule applies, in days since 1970."""
    return int((now_seconds - rule.after_seconds) // DAY_SECONDS) - 1


def rules_of(spec: TableSpec, rules: Iterable[RetentionRule]) -> list[RetentionRule]:
    """Returns the rules that apply to a table: those that concern it, or the built-in rules of a derived
    table that no rule names.
    """
    found = [rule for rule in rules if concerns(rule, spec)]
    return found or built_in_rules(spec)


def built_in_rules(spec: TableSpec) -> list[RetentionRule]:
    """Returns the rules that the declaration of a derived table makes."""
    if spec.derived is None:
        return []
    return [
        RetentionRule(
            table=spec.name,
            where=f"{RESOLUTION} = {resolution}" if resolution else None,
            after_seconds=days * DAY_SECONDS,
        )
        for resolution, days in spec.derived.kept_days
        if days is not None
    ]


def due_at(rule: RetentionRule, day: int, landed: float | None) -> float:
    """Returns when the rule applies to rows of a day, in seconds since 1970. `landed` is when the last late
    rows of the day landed, if any: their `time` may be wrong, so their age counts from then.
    """
    return max((day + 1) * float(DAY_SECONDS), landed or 0.0) + rule.after_seconds


def plan_retention(
    files: Sequence[LiveFile],
    rules: Sequence[RetentionRule],
    now_seconds: float,
    applied: Mapping[str, RuleProgress],
    late: Late | None = None,
) -> RetentionPlan:
    """Plans a round with the rules of the table. Days are those of `time`, in UTC. See `due_at` for
    `late`.
    """
    late = late or {}
    keys = [(rule, key_of(rule)) for rule in rules]
    dropped, searched, next_due = [], [], math.inf
    for live in files:
        tenant, day = partition_of(live.file)
        if tenant is None or day is None:
            continue
        day, landed = int(day), landed_late(late, tenant, int(day))
        concerning: dict[str, float] = {}
        is_whole = False
        for rule, key in keys:
            if rule.tenant not in (None, tenant):
                continue
            at = due_at(rule, day, landed)
            done = applied.get(key)
            # When the late rows of a day fall due, the rule may already have been applied to that day.
            is_current = landed is None or (done is not None and done.late.get((tenant, day), 0.0) >= at)
            if rule.where is not None and is_current and _is_done(live, day, done):
                continue
            if at > now_seconds:
                next_due = min(next_due, at)
                continue
            concerning[key] = at
            is_whole = is_whole or rule.where is None
        if is_whole:
            dropped.append(Due(live, since=min(concerning.values())))
        elif concerning:
            searched.append(Due(live, tuple(concerning), min(concerning.values())))
    return RetentionPlan(
        tuple(sorted(dropped, key=lambda due: due.day)),
        tuple(sorted(searched, key=lambda due: _order(due, applied))),
        {key: newest_day(rule, now_seconds) for rule, key in keys if rule.where is not None},
        next_due,
        late,
        now_seconds,
    )


def is_first_search(due: Due, applied: Mapping[str, RuleProgress]) -> bool:
    """Returns whether some rule applies to the file's day for the first time. Files that were merged or moved
    after the rule was applied to their day are searched again, but have no new rows.
    """
    return not due.names or any(not _is_late(due, applied.get(name)) for name in due.names)


def _is_done(live: LiveFile, day: int, applied: RuleProgress | None) -> bool:
    return applied is not None and day <= applied.day and live.file_sequence <= applied.sequence


def _order(due: Due, applied: Mapping[str, RuleProgress]) -> tuple[int, int]:
    """Returns the sort key of the search: first days that were searched before their late rows were due, by
    day; then files that were committed to searched days later, by commit; then the other days.
    """
    if any(_is_done(due.live, due.day, applied.get(name)) for name in due.names):
        return -2, due.day
    if any(_is_late(due, applied.get(name)) for name in due.names):
        return -1, due.live.file_sequence
    return 0, due.day


def _is_late(due: Due, applied: RuleProgress | None) -> bool:
    return applied is not None and due.day <= applied.day


def progress(
    plan: RetentionPlan,
    done: int,
    applied: Mapping[str, RuleProgress],
    sequence: int,
    failed: Collection[str] = (),
) -> dict[str, RuleProgress]:
    """Returns the progress of each rule after the first `done` files of the plan were searched. `sequence` is
    that of the newest commit in the plan. Removed rules are dropped; failed rules keep their progress.
    """
    found: dict[str, RuleProgress] = {name: applied[name] for name in failed if name in applied}
    for name, newest in plan.days.items():
        if name in failed:
            continue
        before = applied.get(name)
        left = [due for due in plan.searched[done:] if name in due.names]
        late = [due.live.file_sequence for due in left if _is_late(due, before)]
        partitions = _late_done(plan, done, name, before)
        if not left:
            found[name] = RuleProgress(
                max(newest, -1 if before is None else before.day), sequence, partitions
            )
        elif late:
            assert before is not None  # noqa: S101
            found[name] = RuleProgress(before.day, max(before.sequence, min(late) - 1), partitions)
        else:
            found[name] = RuleProgress(min(due.day for due in left) - 1, sequence, partitions)
    return found


def _late_done(
    plan: RetentionPlan, done: int, name: str, before: RuleProgress | None
) -> dict[Partition, float]:
    """Returns the partitions with late rows whose due files were all searched, now or before."""
    left = {due.partition for due in plan.searched[done:] if name in due.names}
    found: dict[Partition, float] = {} if before is None else {**before.late}
    for due in plan.searched[:done]:
        if name in due.names and due.partition not in left:
            found[due.partition] = plan.now
    return {
        (tenant, day): at
        for (tenant, day), at in found.items()
        if day is not None and landed_late(plan.late, tenant, day) is not None
    }


def read_applied(document: Mapping[str, Any]) -> dict[str, RuleProgress]:
    """Parses the property `RETENTION`. Ignores invalid values: these rules search again."""
    found = {}
    for name, fields in document.items():
        if isinstance(fields, dict):
            day, sequence = fields.get("day"), fields.get("sequence")
            if isinstance(day, int) and isinstance(sequence, int):
                found[name] = RuleProgress(day, sequence, by_partition(fields.get("late")))
    return found


def write_applied(applied: Mapping[str, RuleProgress]) -> str:
    return json.dumps(
        {
            name: {
                "day": at.day,
                "sequence": at.sequence,
                **({"late": partition_texts(at.late)} if at.late else {}),
            }
            for name, at in sorted(applied.items())
        }
    )
