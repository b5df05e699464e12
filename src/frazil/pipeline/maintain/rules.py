"""Which files the rules of retention concern, and which of them were searched before. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from frazil.config import RetentionRule
from frazil.config.maintain import DAY_SECONDS
from frazil.lake.live import LiveFile

RETENTION = "frazil.retention"
"""The property that remembers how far each rule has been applied, so that nothing is searched every hour."""


@dataclass(frozen=True)
class Applied:
    """A rule has been applied to all files of days up to `day` that were committed up to `sequence`."""

    day: int
    sequence: int


@dataclass(frozen=True)
class Due:
    """A file that rules concern now. Without names all of it goes, else the rows that any of these finds."""

    live: LiveFile
    names: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        return int(self.live.file.file_size_in_bytes)

    @property
    def day(self) -> int:
        return int(self.live.file.partition[1])


@dataclass(frozen=True)
class RetentionPlan:
    dropped: tuple[Due, ...] = ()
    searched: tuple[Due, ...] = ()
    """In the order in which they are best searched: see `progress`."""
    days: Mapping[str, int] = field(default_factory=dict)
    """Of each rule with a condition, the newest day that it concerns now."""


def key_of(rule: RetentionRule) -> str:
    """The same for the same rule, whatever else the configuration says."""
    text = json.dumps([rule.table, rule.tenant, rule.where, rule.after_seconds])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def newest_day(rule: RetentionRule, now_seconds: float) -> int:
    """The last day that ended so long ago, in days since 1970."""
    return int((now_seconds - rule.after_seconds) // DAY_SECONDS) - 1


def rules_of(table: str, rules: Iterable[RetentionRule]) -> list[RetentionRule]:
    return [rule for rule in rules if rule.table in (None, table)]


def plan_retention(
    files: Sequence[LiveFile],
    rules: Sequence[RetentionRule],
    now_seconds: float,
    applied: Mapping[str, Applied],
) -> RetentionPlan:
    """`rules` are those of the table. Days are counted by `time`, in UTC."""
    days = {key_of(rule): newest_day(rule, now_seconds) for rule in rules}
    dropped, searched = [], []
    for live in files:
        tenant, day = live.file.partition[0], live.file.partition[1]
        if tenant is None or day is None:
            continue
        concerning = [
            rule for rule in rules if rule.tenant in (None, tenant) and int(day) <= days[key_of(rule)]
        ]
        if any(rule.where is None for rule in concerning):
            dropped.append(Due(live))
            continue
        names = tuple(
            key
            for key in dict.fromkeys(key_of(rule) for rule in concerning)
            if not _is_done(live, int(day), applied.get(key))
        )
        if names:
            searched.append(Due(live, names))
    conditions = {key_of(rule) for rule in rules if rule.where is not None}
    return RetentionPlan(
        tuple(sorted(dropped, key=lambda due: due.day)),
        tuple(sorted(searched, key=lambda due: _order(due, applied))),
        {key: day for key, day in days.items() if key in conditions},
    )


def _is_done(live: LiveFile, day: int, applied: Applied | None) -> bool:
    return applied is not None and day <= applied.day and live.file_sequence <= applied.sequence


def _order(due: Due, applied: Mapping[str, Applied]) -> tuple[int, int]:
    """First what came late to days that were searched before, as it came; then day by day."""
    if any(_is_late(due, applied.get(name)) for name in due.names):
        return -1, due.live.file_sequence
    return 0, due.day


def _is_late(due: Due, applied: Applied | None) -> bool:
    return applied is not None and due.day <= applied.day


def progress(
    plan: RetentionPlan,
    done: int,
    applied: Mapping[str, Applied],
    sequence: int,
    failed: Collection[str] = (),
) -> dict[str, Applied]:
    """How far each rule has been applied when the first `done` files of the plan are searched. `sequence` is
    that of the newest commit whose files the plan knew. Rules that are no more are forgotten, and those that
    have failed are where they were.
    """
    found: dict[str, Applied] = {name: applied[name] for name in failed if name in applied}
    for name, newest in plan.days.items():
        if name in failed:
            continue
        before = applied.get(name)
        left = [due for due in plan.searched[done:] if name in due.names]
        late = [due.live.file_sequence for due in left if _is_late(due, before)]
        if not left:
            found[name] = Applied(max(newest, -1 if before is None else before.day), sequence)
        elif late:
            assert before is not None  # noqa: S101
            found[name] = Applied(before.day, max(before.sequence, min(late) - 1))
        else:
            found[name] = Applied(min(due.day for due in left) - 1, sequence)
    return found


def read_applied(document: Mapping[str, Any]) -> dict[str, Applied]:
    """What somebody else has written there is as if it were not: the search is done again."""
    found = {}
    for name, fields in document.items():
        if isinstance(fields, dict):
            day, sequence = fields.get("day"), fields.get("sequence")
            if isinstance(day, int) and isinstance(sequence, int):
                found[name] = Applied(day, sequence)
    return found


def write_applied(applied: Mapping[str, Applied]) -> str:
    return json.dumps(
        {name: {"day": at.day, "sequence": at.sequence} for name, at in sorted(applied.items())}
    )
