"""Unreadable files: how long they are excluded from merging."""

from __future__ import annotations

from frazil.config.maintain import DAY_SECONDS, CompactConfig
from frazil.lake.upkeep.choose import FileFacts, choose
from frazil.pipeline.maintain.compact import BadFiles

HOUR = 3600.0
LIVE = {"a", "b"}


def test_a_bad_file_is_excluded_for_some_hours_and_longer_each_time() -> None:
    bad, now, pauses = BadFiles(), 1000.0, list[float]()
    for _ in range(7):
        bad.note("logs", "a", "torn", now)
        begin = now
        while bad.excluded("logs", LIVE, now):
            now += HOUR / 2
        pauses.append((now - begin) / HOUR)
    assert pauses == [2, 4, 8, 16, 24, 24, 24]
    assert bad.excluded("spans", LIVE, now) == set()


def test_a_bad_file_is_reported_as_new_once() -> None:
    bad = BadFiles()
    assert bad.note("logs", "a", "torn", 0.0)
    assert not bad.note("logs", "a", "torn", 9 * HOUR)
    assert bad.note("logs", "a", "gone", 99 * HOUR)


def test_files_that_are_no_longer_live_are_dropped() -> None:
    bad = BadFiles()
    bad.note("logs", "a", "torn", 0.0)
    assert bad.excluded("logs", LIVE, 1.0) == {"a"}
    assert bad.excluded("logs", {"b"}, 1.0) == set()
    assert bad.excluded("logs", LIVE, 1.0) == set()


def test_a_clock_that_was_far_ahead_excludes_no_file() -> None:
    bad = BadFiles()
    bad.note("logs", "a", "torn", 1e9)
    assert bad.excluded("logs", LIVE, 1000.0) == set()


class Day:
    """Two files a minute, of which one is bad; all that is due is merged every minute."""

    def __init__(self, bad_path: str) -> None:
        self.bad_path = bad_path
        self.bad = BadFiles()
        self.files: dict[str, FileFacts] = {}
        self.read_bytes = 0
        self.merges = 0

    def land(self, number: int, now: float) -> None:
        self._add(f"landed-{number}", 200_000, now - 30, now)

    def merge(self, now: float) -> None:
        excluded = self.bad.excluded("logs", self.files, now)
        fit = [file for path, file in self.files.items() if path not in excluded]
        for group in choose(fit, CompactConfig(), now):
            self.read_bytes += group.bytes
            if any(file.path == self.bad_path for file in group.files):
                self.bad.note("logs", self.bad_path, "torn", now)
                continue
            for file in group.files:
                del self.files[file.path]
            self.merges += 1
            last = max(file.last_micros for file in group.files) / 1e6
            self._add(
                f"merged-{self.merges}", int(group.bytes * 0.85), group.files[0].first_micros / 1e6, last
            )

    def _add(self, path: str, size: int, first: float, last: float) -> None:
        micros = int(first * 1e6), int(last * 1e6)
        self.files[path] = FileFacts(path, "acme", 20_000, size, 100, *micros, 1, last)


def test_a_bad_file_costs_a_day_neither_its_merges_nor_much_reading() -> None:
    day, begin = Day("landed-100"), 20_000 * DAY_SECONDS
    for number in range(2880):
        now = begin + 30.0 * (number + 1)
        day.land(number, now)
        if number % 2:
            day.merge(now)
    for hours in range(3, 60):
        day.merge(begin + DAY_SECONDS + hours * HOUR)
    assert len(day.files) <= 6
    assert day.read_bytes < 3 * 2880 * 200_000
