"""Questions whose answers can be checked while rows come in: what was acked before, and sent after."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from frazil.errors import LimitReached, QueryInvalid, StoreUnavailable
from frazil.query.model import Stats
from frazil.tables import Signal
from frazil.tables.derived.rules import RESOLUTIONS
from tests.support.integration.moving_lake import TENANTS, Row, Sent

ROLLED: dict[Signal, tuple[str, str]] = {
    "logs": ("log_rollups", "records"),
    "spans": ("span_metrics", "calls"),
}
"""The rollup of each signal, and the column that counts its rows."""
KILLED = ("worker process died",)
"""What questions are told whose worker was killed."""
TEXT: dict[Signal, str] = {"logs": "body", "spans": "name"}
HttpStub = Callable[[str, str, Sequence[Any]], Awaitable[dict[str, Any]]]
"""Gives the JSON of the answer to some SQL, asked by a tenant with parameters."""


@dataclass
class Seen:
    """What the answers were made of, so that the test can say that it saw what it is about."""

    answers: int = 0
    with_tail: int = 0
    with_files: int = 0
    cached: int = 0
    snapshots: set[Any] = field(default_factory=set)
    killed: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def note(self, stats: Stats) -> None:
        self.answers += 1
        self.with_tail += bool(stats.tail_rows)
        self.with_files += bool(stats.files)
        self.cached += stats.cached
        self.snapshots |= set(stats.snapshots.values())


class Asker:
    """Asks, and compares with what had been acked before and sent after."""

    def __init__(self, answer: HttpStub, sent: Sent, seen: Seen) -> None:
        self._answer = answer
        self._sent = sent
        self._seen = seen

    async def execute(self, sql: str, tenant: str, *params: Any) -> list[list[Any]]:
        told = await self._answer(sql, tenant, params)
        stats = Stats(**told["stats"])
        assert not stats.missing, stats
        assert stats.stale is None, stats
        self._seen.note(stats)
        rows: list[list[Any]] = told["rows"]
        return rows

    def _acked(self, signal: Signal, tenant: str) -> list[Row]:
        return list(self._sent.acked[signal][tenant])

    def _rows(self, signal: Signal, tenant: str) -> list[Row]:
        return list(self._sent.rows[signal][tenant])

    async def totals(self, signal: Signal, tenant: str) -> None:
        before = self._acked(signal, tenant)
        text = TEXT[signal]
        ((count, distinct, checksum, strangers),) = await self.execute(
            f"SELECT count(*), count(DISTINCT {text}), sum(attr_int(attributes, 'number'))::BIGINT, "
            f"count(*) FILTER (tenant_id <> '{tenant}' OR NOT starts_with({text}, '{tenant}/')) "
            f"FROM {signal}",
            tenant,
        )
        after = self._rows(signal, tenant)
        assert len(before) <= count <= len(after)
        assert (distinct, strangers) == (count, 0)
        assert sum(row.number for row in before) <= (checksum or 0) <= sum(row.number for row in after)

    async def each(self, signal: Signal, tenant: str) -> None:
        before = self._acked(signal, tenant)
        found = Counter(row[0] for row in await self.execute(f"SELECT {TEXT[signal]} FROM {signal}", tenant))
        self._compare(found, before, self._rows(signal, tenant))

    async def since(self, signal: Signal, tenant: str) -> None:
        """Of a window that is still being written."""
        now = time.time_ns() // 1000
        lower = now - random.randrange(8_000_000)
        upper = lower + random.randrange(8_000_000)
        before = [row for row in self._acked(signal, tenant) if lower <= row.micros < upper]
        found = await self.execute(
            f"SELECT {TEXT[signal]} FROM {signal} "
            "WHERE time >= make_timestamp(?) AND time < make_timestamp(?)",
            tenant,
            lower,
            upper,
        )
        after = [row for row in self._rows(signal, tenant) if lower <= row.micros < upper]
        self._compare(Counter(row[0] for row in found), before, after)

    async def by_service(self, signal: Signal, tenant: str) -> None:
        before = Counter(row.service for row in self._acked(signal, tenant))
        found = dict(await self.execute(f"SELECT service_name, count(*) FROM {signal} GROUP BY ALL", tenant))
        after = Counter(row.service for row in self._rows(signal, tenant))
        assert all(before[service] <= found.get(service, 0) for service in before)
        assert all(count <= after[service] for service, count in found.items())

    async def of_service(self, signal: Signal, tenant: str) -> None:
        service = random.choice(["cart", "search"])
        before = [row for row in self._acked(signal, tenant) if row.service == service]
        found = await self.execute(
            f"SELECT {TEXT[signal]} FROM {signal} WHERE service_name = '{service}'",
            tenant,
        )
        after = [row for row in self._rows(signal, tenant) if row.service == service]
        self._compare(Counter(row[0] for row in found), before, after)

    async def joined(self, signal: Signal, tenant: str) -> None:
        """Each log belongs to the one span of its trace, which was sent before it."""
        before = len(self._pairs(self._acked("logs", tenant), self._acked("spans", tenant)))
        ((count, distinct),) = await self.execute(
            "SELECT count(*), count(DISTINCT l.body) FROM logs l JOIN spans s ON l.trace_id = s.trace_id",
            tenant,
        )
        after = len(self._pairs(self._rows("logs", tenant), self._rows("spans", tenant)))
        assert before <= count <= after
        assert distinct == count

    async def rolled(self, signal: Signal, tenant: str) -> None:
        """Counts of a rollup, which has each row once at each resolution. If the log was cleaned up before
        rows were derived, the answer says that they are missing, and it has no row twice."""
        table, column = ROLLED[signal]
        resolution = random.choice(RESOLUTIONS)
        before = Counter(row.service for row in self._acked(signal, tenant))
        told = await self._answer(
            f"SELECT service_name, sum({column}) FROM {table} WHERE resolution = {resolution} GROUP BY ALL",
            tenant,
            (),
        )
        stats, found = Stats(**told["stats"]), dict(told["rows"])
        after = Counter(row.service for row in self._rows(signal, tenant))
        assert all(count <= after[service] for service, count in found.items()), "rows that count twice"
        if stats.missing:
            assert all("derivation is late" in each for each in stats.missing), stats
            self._seen.refused["derivation is late"] += 1
            return
        assert all(before[service] <= found.get(service, 0) for service in before), "acked, and not counted"
        self._seen.note(stats)

    @staticmethod
    def _pairs(logs: Iterable[Row], spans: Iterable[Row]) -> list[Row]:
        traces = {row.trace for row in spans}
        return [row for row in logs if row.trace in traces]

    @staticmethod
    def _compare(found: Counter[str], before: Iterable[Row], after: Iterable[Row]) -> None:
        assert not {text for text, count in found.items() if count > 1}, "rows that are there twice"
        assert not {row.text for row in before} - found.keys(), "acked, and not there"
        assert not found.keys() - {row.text for row in after}, "there, and nobody sent it"

    @property
    def queries(self) -> list[Callable[[Signal, str], Any]]:
        return [self.totals, self.each, self.since, self.by_service, self.of_service, self.joined]


async def keep_asking(asker: Asker, seen: Seen, end: asyncio.Event, allowed: Collection[str]) -> None:
    """No answer may be wrong; that there is none may have one of the reasons that are `allowed`."""
    while not end.is_set():
        query = random.choice(asker.queries)
        try:
            await query(random.choice(("logs", "spans")), random.choice(TENANTS))
        except (LimitReached, QueryInvalid, StoreUnavailable) as error:
            reason = next((reason for reason in allowed if reason in str(error)), None)
            if reason is None:
                raise
            seen.refused[reason] += 1
