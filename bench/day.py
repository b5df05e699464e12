"""A day of a table in a few minutes: 2,880 commits, one every 30 simulated seconds, while maintenance runs.

The rows, the commits and the maintainer live by one simulated clock, from a midnight to the next; nothing
else is pretended. Every tenth commit is a landing on Spark, from segments; the others are made as landing
makes them, without Spark: small files by its writer, put into the table by its committer. For the first hours
a second table gets the same commits and no maintenance.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import httpx
from pyspark.sql import SparkSession

from bench.cost import Meter
from bench.land import jvm_pid, local_config, running_spark
from bench.serving import running_api
from bench.simulate import (
    MEASURES,
    STEP_SECONDS,
    TENANTS,
    Clock,
    LandedSoFar,
    Landing,
    Maintenance,
    Rows,
    Sample,
    Side,
    simulated,
)
from bench.table import Bench, Row
from frazil.lake.catalog import open_catalog
from frazil.lake.upkeep.orphans import find_orphans
from frazil.position import landing_position

COMMITS, QUICK_COMMITS = 2880, 120
LANDINGS = 300
"""So many of a whole day's commits are made on Spark."""
WITHOUT_COMMITS, QUICK_WITHOUT_COMMITS = 360, 60
"""Commits to the table without maintenance."""
SAMPLE_EVERY, QUICK_SAMPLE_EVERY = 30, 10
DISTINCT, QUICK_DISTINCT = 96, 16
"""Commits whose records are made; after those they come again at other times, with other ids."""
FLAT_TARGET = 1.5
PLOT = Path(__file__).parents[1] / "docs/images/day.svg"
_DAY_SECONDS = 86_400
_HOUR_COMMITS = 3600 // STEP_SECONDS
_MAINTAIN = {"compact": {"interval_seconds": 300}}
"""All else as it is by default. Looking every minute finds no more to merge, and takes minutes of the run."""
_UPKEEP_SECONDS = 7200


@dataclass
class Result:
    samples: list[Sample]
    without: list[Sample]
    meter: Meter
    landed: LandedSoFar
    merged: Counter[str]
    """During the day."""
    closed: Counter[str]
    """And with the merges after its end."""
    files_closed: int
    orphans: int
    commits: int
    landings: int


def day(bench: Bench, compared: Bench) -> None:
    commits = QUICK_COMMITS if bench.quick else COMMITS
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="frazil-bench-day-") as place:
        result = _simulated_day(bench, Path(place), commits)
    _add(bench, compared, result, time.perf_counter() - begin)
    if not bench.quick:
        from bench.plot import plot_day

        plot_day(PLOT, result.samples, result.without)


def _simulated_day(bench: Bench, folder: Path, commits: int) -> Result:
    query = {"result_cache_bytes_max": 0, "metadata_age_max_seconds": 0, "workers": 1}
    config, other = (local_config(folder / name / "data", maintain=_MAINTAIN) for name in ("day", "without"))
    midnight = (int(time.time()) // _DAY_SECONDS + 1) * _DAY_SECONDS
    clock = Clock(midnight)
    with contextlib.ExitStack() as stack:
        stack.enter_context(simulated(clock))
        spark = stack.enter_context(running_spark(config))
        client = stack.enter_context(httpx.Client(timeout=120))
        sides = []
        for each in (config, other):
            each.data_dir.mkdir(parents=True, exist_ok=True)
            catalog = stack.enter_context(contextlib.closing(open_catalog(each)))
            url = stack.enter_context(running_api(each.data_dir, query=query))
            sides.append(Side(each, catalog, url, client))
        return _passed(bench, spark, clock, sides[0], sides[1], commits)


def _passed(bench: Bench, spark: SparkSession, clock: Clock, side: Side, other: Side, commits: int) -> Result:
    quick = bench.quick
    rows = Rows(clock(), QUICK_DISTINCT if quick else DISTINCT)
    meter = Meter([jvm_pid()])
    landing, maintenance = Landing(side, spark, clock), Maintenance(side, spark, clock, meter)
    samples: list[Sample] = []
    without: list[Sample] = []
    without_commits = QUICK_WITHOUT_COMMITS if quick else WITHOUT_COMMITS
    sample_every = QUICK_SAMPLE_EVERY if quick else SAMPLE_EVERY
    first, landings, upkeep_at = clock(), 0, clock() + _UPKEEP_SECONDS
    for number in range(commits):
        clock.seconds = first + (number + 1) * STEP_SECONDS
        table = rows.at(number)
        if (number + 1) * LANDINGS // COMMITS > landings:
            landings += 1
            landing.receive(table, clock)
            with meter.during("landing"):
                landing.land()
        else:
            with meter.during("landing", on_spark=False):
                side.commit(table)
        if number < without_commits:
            other.commit(table)
        if number == 0:
            side.warm_up()
            other.warm_up()
        maintenance.when_due()
        if clock() >= upkeep_at:
            upkeep_at += _UPKEEP_SECONDS
            landing.keep_up()
        if (number + 1) % sample_every == 0:
            samples.append(side.sample(number + 1, clock(), maintenance.merges["rows"]))
            if number < without_commits:
                without.append(other.sample(number + 1, clock(), 0))
            _tell(bench, samples[-1])
    merged = Counter(maintenance.merges)
    clock.seconds = first + _DAY_SECONDS + side.config.maintain.compact.closed_after_seconds + 600
    while maintenance.run("compact").files_in:
        pass
    maintenance.run("expire")
    orphans = len(find_orphans(side.table, 0))
    _check(side)
    return Result(
        samples,
        without,
        meter,
        side.landed,
        merged,
        Counter(maintenance.merges),
        side.total("data-files"),
        orphans,
        commits,
        landings,
    )


def _check(side: Side) -> None:
    """Check that no row is lost or duplicated: of the queried tenant, and of all tenants in the position."""
    position = landing_position(side.checkpoint().position)
    assert position.rows == side.landed.rows, (position.rows, side.landed.rows)
    assert side.total("records") == side.landed.rows
    of_tenant = next(iter(TENANTS.values()))
    expected = side.landed.rows * of_tenant // sum(TENANTS.values())
    assert side.execute("SELECT count(*) FROM logs") == [[expected]]


def _tell(bench: Bench, sample: Sample) -> None:
    if sample.commit % (2 * _HOUR_COMMITS) == 0:
        bench.console.print(f"  {sample.commit:,} commits: {sample.files} files", highlight=False)


def _add(bench: Bench, compared: Bench, result: Result, seconds: float) -> None:
    """In its first hour a table has fewer snapshots than expiry keeps: what is flat is so from then on."""
    part = min(_HOUR_COMMITS, result.commits // 3)
    first = [sample for sample in result.samples if sample.commit <= part]
    second = [sample for sample in result.samples if part < sample.commit <= 2 * part]
    last = [sample for sample in result.samples if sample.commit > result.commits - part]
    period = "hour" if part == _HOUR_COMMITS else f"{part * STEP_SECONDS // 60} minutes"
    for name, (title, unit, factor) in MEASURES.items():
        young, before, after = (
            statistics.median(getattr(sample, name) for sample in of) * factor for of in (first, second, last)
        )
        highest = max(getattr(sample, name) for sample in result.samples) * factor
        alone = getattr(result.without[-1], name) * factor
        has_target, without = name.endswith("_ms") and not bench.quick, result.without[-1].commit
        compared.add(
            Row(
                f"{title}, the second {period} of {result.commits:,} commits and the last",
                f"{after:,.0f} {unit}".strip(),
                f"{before:,.0f} {unit}".strip(),
                f"{after / before:.2f} ×; in the first {young:,.0f}, {highest:,.0f} at most; without "
                f"maintenance {alone:,.0f} after {without:,} commits",
                f"≤ {FLAT_TARGET:g} ×" if has_target else "",
                after / before <= FLAT_TARGET if has_target else None,
            )
        )
    _add_cost(bench, result, seconds)


def _add_cost(bench: Bench, result: Result, seconds: float) -> None:
    landed, cpu = result.landed, result.meter.cpu_seconds
    bench.add(
        Row(
            f"a day's {result.commits:,} commits, {result.landings} of them by Spark",
            f"{landed.rows / cpu['landing']:,.0f}",
            f"{result.meter.wall_seconds['landing']:.0f} s",
            f"{cpu['landing']:.0f} CPU-seconds; {landed.rows:,} rows of {len(TENANTS)} tenants in "
            f"{landed.files:,} files of {landed.bytes / landed.files / 1000:.0f} kB; all in "
            f"{seconds:.0f} s",
        )
    )
    merged, closed = result.merged, result.closed
    amplified = (
        f"each row written again {merged['rows'] / landed.rows:.2f} times by the end of the day and "
        f"{closed['rows'] / landed.rows:.2f} times after it, bytes "
        f"{merged['bytes_out'] / landed.bytes:.2f} and {closed['bytes_out'] / landed.bytes:.2f} times"
    )
    bench.add(
        Row(
            "merging during the day, and after it",
            f"{closed['rows'] / cpu['compact']:,.0f}" if cpu["compact"] else "",
            f"{result.meter.wall_seconds['compact']:.0f} s",
            f"{cpu['compact']:.0f} CPU-seconds, {cpu['compact'] / cpu['landing']:.2f} × landing; "
            f"{amplified}; {closed['files_in']:,} files became {closed['files_out']:,}, "
            f"{result.files_closed} are left",
            "CPU ≤ landing's",
            cpu["compact"] <= cpu["landing"],
        )
    )
    others = {name: cpu[name] for name in ("manifests", "expire")}
    bench.add(
        Row(
            "manifests, snapshots and tags",
            "",
            f"{sum(result.meter.wall_seconds[name] for name in others):.0f} s",
            ", ".join(f"{name} {used:.0f} CPU-seconds" for name, used in others.items())
            + f"; {result.orphans} orphaned files",
        )
    )
