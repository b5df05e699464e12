"""How many files a landing commit adds: too many are split into several commits, without changing any row."""

from __future__ import annotations

import base64
import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from frazil.pipeline.land.source import BatchResult, Pending, TaskResult
from frazil.position import LandingPosition
from tests.support.fault.land_process import Pipeline
from tests.support.known_lake import KnownLake

TASK_BYTES = 64 * 1024
TENANTS = ("acme", "globex", "initech")
SEGMENTS = 8


@contextlib.contextmanager
def backlog(
    data_dir: Path, *, segment_bytes: int = 40_000, **land: Any
) -> Iterator[tuple[KnownLake, Pipeline]]:
    """Segments that are a task each, of three tenants and two days: six files."""
    kept = KnownLake(data_dir, land={"task_bytes_max": TASK_BYTES, **land})
    noise = random.Random(1)
    for number in range(SEGMENTS):
        long = base64.b85encode(noise.randbytes(segment_bytes // 5)).decode()
        rows = [
            (tenant, f"{number}-{tenant}-{days} svc", 9, days) for tenant in TENANTS for days in (0.0, 2.0)
        ]
        kept.write([*rows, ("acme", f"{number} {long}", 9, 0.0)])
    pipeline = Pipeline(kept.config)
    with contextlib.closing(kept), contextlib.closing(pipeline.catalog):
        yield kept, pipeline


def files_of_commits(kept: KnownLake) -> list[int]:
    """Of the commits that added some."""
    added = (snapshot.summary["added-data-files"] for snapshot in kept.table().snapshots())
    return [int(each) for each in added if each is not None and int(each)]


def assert_whole(kept: KnownLake) -> None:
    bodies = Counter(body.split(" ")[0] for body in kept.bodies().elements())
    rows = [
        f"{number}-{tenant}-{days}" for number in range(SEGMENTS) for tenant in TENANTS for days in (0.0, 2.0)
    ]
    assert bodies == Counter([*rows, *map(str, range(SEGMENTS))])


def value(pipeline: Pipeline, name: str) -> float:
    return pipeline.metrics.registry.get_sample_value(name, {"table": "logs"}) or 0.0


def test_a_backlog_that_needs_too_many_files_lands_in_several_commits(tmp_path: Path) -> None:
    with backlog(tmp_path, files_per_commit_max=13) as (kept, pipeline):
        steps = pipeline.land()
        assert steps == ["again", *["landed"] * (len(steps) - 2), "idle"]
        assert set(files_of_commits(kept)) == {6, 12}  # one task, or two
        assert_whole(kept)
        assert (
            len(list((tmp_path / "warehouse").rglob("*.parquet"))) == 48
        )  # nothing is left of the first try
        assert value(pipeline, "frazil_land_too_many_files_total") == 1
        assert value(pipeline, "frazil_land_commit_files_count") == len(steps) - 2
        assert value(pipeline, "frazil_land_commit_files_sum") == 48


@pytest.mark.parametrize("segment_bytes", [40_000, 100_000])
def test_the_rows_of_one_task_land_with_any_number_of_files(tmp_path: Path, segment_bytes: int) -> None:
    """Also a single segment that is larger than a task should be."""
    with backlog(tmp_path, segment_bytes=segment_bytes, files_per_commit_max=1) as (kept, pipeline):
        steps = pipeline.land()
        assert steps == ["again", *["landed"] * SEGMENTS, "idle"]
        assert files_of_commits(kept) == [6] * SEGMENTS
        assert_whole(kept)


def test_batches_grow_again_when_fewer_files_are_needed(tmp_path: Path) -> None:
    with backlog(tmp_path, files_per_commit_max=13) as (kept, pipeline):
        pipeline.land()
        noise = random.Random(2)
        for number in range(8):
            kept.write([("acme", f"new-{number} {noise.randbytes(20_000).hex()}", 9, 0.0)])
        assert pipeline.land() == ["landed", "landed", "idle"]
        assert sum(files_of_commits(kept)[-2:]) == 8


def test_few_files_land_in_one_commit(tmp_path: Path) -> None:
    with backlog(tmp_path) as (kept, pipeline):
        assert pipeline.land() == ["landed", "idle"]
        assert files_of_commits(kept) == [6 * SEGMENTS]
        assert value(pipeline, "frazil_land_too_many_files_total") == 0


class ManyPartitions:
    """Work of Kafka: a batch has at least a message of each partition, however small it should be."""

    def __init__(self, size: int) -> None:
        self.size = size


def test_a_batch_that_is_larger_than_it_should_be_lands_in_the_end(tmp_path: Path) -> None:
    with backlog(tmp_path, files_per_commit_max=5000, batch_bytes_max=100 * TASK_BYTES) as (_, pipeline):
        lander, work = pipeline.lander, cast(Pending, ManyPartitions(99 * TASK_BYTES))
        refused = BatchResult([TaskResult(files_needed=97, too_many_files=True)] * 99, LandingPosition())
        for _ in range(10):
            if lander._files_max(work) is None:
                break
            lander._adapt_batch_size(work, refused)
        assert lander._files_max(work) is None
