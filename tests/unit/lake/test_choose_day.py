"""A day of commits, two a minute, with all that is due merged every minute: how many files there are at any
time, and how often a byte is written again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from frazil.config.maintain import DAY_SECONDS, CompactConfig
from frazil.lake.upkeep.choose import FileFacts, choose
from tests.unit.lake.upkeep.test_choose import MIB, TODAY

CONFIG = CompactConfig()
SMALL_BYTES = CONFIG.file_cost_bytes
COMMITS = 2880
SHRINK = 0.85
BEGIN = TODAY * DAY_SECONDS
CLOSED = BEGIN + DAY_SECONDS + CONFIG.closed_after_seconds + 60


@dataclass
class Tenant:
    """Its files, and what merging them cost."""

    name: str
    bytes_a_commit: int
    files: dict[str, FileFacts] = field(default_factory=dict)
    landed_bytes: int = 0
    rewritten_bytes: int = 0
    small_max: int = 0
    number: int = 0

    def land(self, size: int, begin: float, end: float, now: float) -> None:
        self.landed_bytes += size
        self.add(size, int(begin * 1e6), int(end * 1e6), now)

    def add(self, size: int, first: int, last: int, now: float) -> None:
        self.number += 1
        path = f"{self.name}-{self.number:05}.parquet"
        file = FileFacts(path, self.name, TODAY, size, size // 50, first, last, self.number, now)
        self.files[path] = file

    @property
    def small(self) -> int:
        return sum(file.bytes < SMALL_BYTES for file in self.files.values())

    @property
    def amplification(self) -> float:
        return self.rewritten_bytes / self.landed_bytes


def merge_all(tenants: dict[str, Tenant], now: float) -> None:
    while groups := choose([file for each in tenants.values() for file in each.files.values()], CONFIG, now):
        seen: set[str] = set()
        for group in groups:
            assert group.tenant is not None
            tenant = tenants[group.tenant]
            paths = {file.path for file in group.files}
            assert not paths & seen
            seen |= paths
            first, last = group.files[0].first_micros, max(file.last_micros for file in group.files)
            smallest = min(file.bytes for file in group.files)
            for path in paths:
                del tenant.files[path]
            between = [
                file
                for file in tenant.files.values()
                if first < file.first_micros < last and file.bytes <= smallest and file.path not in seen
            ]
            assert not between, "a neighbour that is as small was left between"
            size = int(group.bytes * SHRINK)
            tenant.rewritten_bytes += size
            tenant.add(size, first, last, now)


def simulate(tenants: dict[str, Tenant], *, jitter: float = 0.0, late: float = 0.0) -> None:
    chance = random.Random(11)
    for commit in range(COMMITS):
        begin = BEGIN + commit * 30.0
        for tenant in tenants.values():
            size = int(tenant.bytes_a_commit * (1 + jitter * chance.uniform(-1, 1)))
            tenant.land(size, begin, begin + 29.9, begin + 30)
            if chance.random() < late:
                then = chance.uniform(BEGIN, begin)
                tenant.land(4_000, then, begin, begin + 30)
        if commit % 2:
            merge_all(tenants, begin + 30)
            for tenant in tenants.values():
                tenant.small_max = max(tenant.small_max, tenant.small)


@pytest.mark.parametrize(("jitter", "late"), [(0.0, 0.0), (0.7, 0.1)], ids=["steady", "uneven"])
def test_a_day_stays_in_few_files_and_bytes_are_not_rewritten_often(jitter: float, late: float) -> None:
    sizes = {"20K": 20_000, "1M": MIB, "16M": 16 * MIB, "40M": 40 * MIB}
    bounds = {"20K": 2.2, "1M": 1.6, "16M": 0.9, "40M": 0.9}
    tenants = {name: Tenant(name, size) for name, size in sizes.items()}
    simulate(tenants, jitter=jitter, late=late)
    for tenant in tenants.values():
        done = len(tenant.files) - tenant.small
        assert tenant.small_max < 3 * CONFIG.fan_in, tenant.name
        assert done <= tenant.landed_bytes / SMALL_BYTES
    for name in ("20K", "1M"):
        assert len(tenants[name].files) < 3 * CONFIG.fan_in
    merge_all(tenants, CLOSED)
    for name, tenant in tenants.items():
        assert tenant.amplification <= bounds[name], name
        assert tenant.small <= 1, "the rest of the day is one file"
    assert len(tenants["20K"].files) == 1
    assert len(tenants["1M"].files) <= 8
    for name in ("16M", "40M"):
        files, landed = tenants[name].files.values(), tenants[name].landed_bytes
        done = sum(file.bytes >= 0.75 * CONFIG.target_bytes for file in files)
        assert done >= 0.6 * landed / CONFIG.target_bytes
        assert len(files) <= 2 * landed / CONFIG.target_bytes
    before = {name: dict(tenant.files) for name, tenant in tenants.items()}
    merge_all(tenants, CLOSED + 30 * DAY_SECONDS)
    assert {name: tenant.files for name, tenant in tenants.items()} == before, "rewritten for nothing"


def test_late_files_that_trickle_into_an_old_day_are_not_merged_one_by_one() -> None:
    tenant = Tenant("late", 4_000)
    tenant.add(20 * MIB, BEGIN * 10**6, (BEGIN + 80_000) * 10**6, CLOSED)
    for minute in range(600):
        now = CLOSED + DAY_SECONDS + minute * 60
        tenant.land(4_000, BEGIN + minute, BEGIN + minute + 1, now)
        merge_all({"late": tenant}, now)
        assert len(tenant.files) <= 2 * CONFIG.fan_in
    assert tenant.rewritten_bytes <= 3 * tenant.landed_bytes, "the 20 MiB were left alone"
    merge_all({"late": tenant}, CLOSED + 3 * DAY_SECONDS)
    assert len(tenant.files) == 1, "and joined when no more came"


def test_a_maintainer_that_was_away_catches_up_in_one_pass_over_the_bytes() -> None:
    tenant = Tenant("away", MIB // 4)
    for commit in range(COMMITS):
        begin = BEGIN + commit * 30.0
        tenant.land(MIB // 4, begin, begin + 29.9, begin + 30)
    merge_all({"away": tenant}, CLOSED)
    assert tenant.amplification <= 1.3
    assert len(tenant.files) <= 6
