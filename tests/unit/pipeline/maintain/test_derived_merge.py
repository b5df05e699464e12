"""Compaction of a derived table: fewer rows, the same view."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import Operation

from frazil.errors import JobFailed, Refused
from frazil.lake.commits.commit import committer_of
from frazil.lake.live_files import live_files
from frazil.lake.snapshots import COMBINED
from frazil.lake.state.health import measure
from frazil.pipeline.datafile import Layout
from frazil.pipeline.maintain.merge import combined
from frazil.pipeline.maintain.merge.merge import Merge, MergeSettings, merge
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.maintain.report import TaskReport, Totals
from frazil.pipeline.maintain.rewrite import Rewrite, Swap
from frazil.sql.index import Index, of_files
from frazil.tables import Fill
from frazil.tables.columns import Column
from frazil.tables.derived.rules import ANY
from frazil.tables.derived.span_metrics import SPAN_METRICS
from tests.support.known_lake import DAY, KnownLake
from tests.support.local_runner import LocalRunner
from tests.support.partial_lake import NAME, PartialLake, Span, as_view, partial_rows

T = TypeVar("T")
R = TypeVar("R")
TODAY = 20_000
MIDNIGHT = float(TODAY * DAY)
NEVER = 400.0 * DAY
"""After all commits, whose times are those of the real clock."""


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[PartialLake]:
    compact = {"fan_in": 4}
    with contextlib.closing(PartialLake(tmp_path, maintain={"compact": compact})) as made:
        yield made


def batch(number: int, day: float = MIDNIGHT) -> list[Span]:
    """Spans of one minute, and a few late ones, that share keys with those of other batches."""
    begin = day + 60 * number
    return [
        (
            "acme",
            f"service-{at % 3}",
            f"GET /{at % 5}",
            10**6 * (number + at + 1),
            begin + at - (at == 7) * 240,
        )
        for at in range(8)
        if begin + at - 240 > day
    ] + [("acme", "web", "GET /", 5 * 10**6, begin + 1)]


def today(lake: PartialLake) -> float:
    """Midnight of the day on which the commits are made: an open day."""
    return lake.now // DAY * DAY


class Meanwhile(LocalRunner):
    """Runs something after the merges were made, before they are committed."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self._then = then

    def results(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        found = list(super().results(work, items))
        self._then()
        yield from found


def test_an_open_day_has_fewer_rows_after_a_merge_and_the_same_view(lake: PartialLake) -> None:
    lake.derive(*(batch(number, today(lake)) for number in range(5)))
    before, rows, position = lake.view(), lake.rows().num_rows, lake.checkpoint.position
    report = lake.maintainer(lake.now).run("compact", NAME)
    assert lake.view() == before
    assert (report.files_in, report.files_out) == (5, 1)
    assert report.rows == lake.rows().num_rows < rows
    assert (report.rows_combined, report.rows_removed) == (rows - report.rows, 0)
    assert report.rows == len(before), "one row of each key"
    assert lake.facts()[0].resolution is None
    assert lake.checkpoint.position == position
    snapshot = lake.table(NAME).current_snapshot()
    assert snapshot.summary.operation == Operation.REPLACE
    assert snapshot.summary[COMBINED] == str(report.rows_combined)
    assert snapshot.summary["total-records"] == str(report.rows)


def test_a_closed_day_becomes_one_file_of_each_resolution_and_stays_so(lake: PartialLake) -> None:
    lake.derive(*(batch(number) for number in range(3)), [*batch(9), ("globex", "web", "GET /", 7, MIDNIGHT)])
    before, now = lake.view(), lake.now + NEVER
    lake.maintainer(now).run("compact", NAME)
    assert lake.view() == before
    facts = [each for each in lake.facts() if each.tenant == "acme"]
    assert sorted(each.resolution or 0 for each in facts) == [60, 300, 3600, 86_400]
    assert sum(each.rows for each in lake.facts()) == len(before)
    for live in live_files(lake.table(NAME)):
        assert live.file.sort_order_id == lake.table(NAME).metadata.default_sort_order_id
        assert_sorted(pq.read_table(live.file.file_path, partitioning=None))
    files = {each.path for each in lake.facts()}
    for days in (1, 30):
        assert lake.maintainer(now + days * DAY).run("compact", NAME).is_nothing
    assert {each.path for each in lake.facts()} == files
    health = measure(lake.table(NAME), lake.config.maintain, now, spec=SPAN_METRICS)
    assert (health.waiting_files, health.lag_seconds) == (0, 0.0)


def test_both_readers_of_manifests_know_the_resolution_of_a_file(lake: PartialLake) -> None:
    lake.derive(batch(0), batch(1))
    lake.maintainer(lake.now + NEVER).run("compact", NAME)
    lake.derive(batch(2))
    table = lake.table(NAME)
    data = [live.file for live in live_files(table)]
    index = Index([of_files(data, table.spec(), table.schema(), NAME, Fill({}))])
    found = {facts.path: facts.resolution for facts in index.facts(table.schema(), {})}
    assert found == {facts.path: facts.resolution for facts in lake.facts()}
    assert sorted(each or 0 for each in found.values()) == [0, 60, 300, 3600, 86_400]


def test_late_rows_of_a_closed_day_are_merged_with_its_files(lake: PartialLake) -> None:
    lake.derive(batch(0), batch(1))
    lake.maintainer(lake.now + NEVER).run("compact", NAME)
    lake.derive(batch(1))
    before = lake.view()
    assert (
        measure(lake.table(NAME), lake.config.maintain, lake.now + NEVER, spec=SPAN_METRICS).waiting_files
        == 5
    )
    lake.maintainer(lake.now + NEVER).run("compact", NAME)
    assert lake.view() == before
    assert lake.rows().num_rows == len(before)
    assert len(lake.facts()) == 4


def test_a_dry_run_changes_nothing_and_says_how_many_files_there_would_be(lake: PartialLake) -> None:
    lake.derive(batch(0), batch(1))
    report = lake.maintainer(lake.now + NEVER).run("compact", NAME, dry_run=True)
    assert (report.files_in, report.files_out, report.rows_combined) == (2, 4, 0)
    assert len(lake.facts()) == 2


def test_a_derivation_that_commits_during_a_merge_is_not_fenced(lake: PartialLake) -> None:
    lake.derive(*(batch(number, today(lake)) for number in range(5)))
    earlier = lake.checkpoint
    lake.maintainer(lake.now).run("compact", NAME)
    lake.append(batch(5, today(lake)), earlier)  # read its position before the merge was committed
    assert len(lake.facts()) == 2
    lake.derive(*(batch(number, today(lake)) for number in range(6, 10)))

    other = PartialLake(Path(lake.config.data_dir), maintain=lake.config.maintain.model_dump())
    other.derived = lake.derived
    runner = Meanwhile(lambda: other.derive(batch(10, today(lake))))
    report = lake.maintainer(lake.now, runner).run("compact", NAME)
    other.close()
    assert report.files_out == 1
    assert report.detail["conflicts"] == 0
    spans = [span for number in range(11) for span in batch(number, today(lake))]
    assert lake.view() == as_view(partial_rows(spans))


def test_of_two_merges_of_the_same_files_one_is_discarded_and_the_view_stays(lake: PartialLake) -> None:
    lake.derive(*(batch(number, today(lake)) for number in range(5)))
    before = lake.view()
    first, runs = lake.maintainer(lake.now), list[TaskReport]()
    runner = Meanwhile(lambda: runs.append(first.run("compact", NAME)))
    report = lake.maintainer(lake.now, runner).run("compact", NAME)
    assert (report.files_out, report.rows_combined, report.detail["conflicts"]) == (0, 0, 1)
    assert runs[0].files_out == 1
    assert lake.view() == before
    assert len(lake.facts()) == 1
    folder = Path(lake.table(NAME).location().removeprefix("file://"))
    assert len(list(folder.rglob("*.parquet"))) == 6, "the files of the discarded merge are deleted"


def test_an_interrupted_merge_leaves_the_view_and_the_next_one_does_the_rest(lake: PartialLake) -> None:
    lake.derive(*(batch(number, today(lake)) for number in range(5)))
    before = lake.view()

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lake.maintainer(lake.now, Meanwhile(interrupt)).run("compact", NAME)
    assert lake.view() == before
    assert len(lake.facts()) == 5
    assert lake.maintainer(lake.now).run("compact", NAME).files_out == 1
    assert lake.view() == before


def test_a_job_that_fails_leaves_the_view(lake: PartialLake) -> None:
    lake.derive(*(batch(number, today(lake)) for number in range(5)))
    before = lake.view()

    def fail() -> None:
        raise JobFailed("no executor")

    with pytest.raises(JobFailed):
        lake.maintainer(lake.now, Meanwhile(fail)).run("compact", NAME)
    assert lake.view() == before


def test_the_metrics_count_combined_rows_apart_from_removed_ones(lake: PartialLake) -> None:
    lake.derive(*(batch(number) for number in range(3)))
    report = lake.maintainer(lake.now + NEVER).run("compact", NAME)
    registry = CollectorRegistry()
    MaintainMetrics(registry).record(report)
    assert (
        registry.get_sample_value("frazil_combined_rows_total", {"table": NAME}) == report.rows_combined > 0
    )
    assert registry.get_sample_value("frazil_compacted_rows_total", {"table": NAME}) == report.rows
    assert (
        registry.get_sample_value("frazil_removed_rows_total", {"table": NAME, "reason": "identical"}) is None
    )


def test_it_is_neither_filled_nor_are_identical_rows_merged(tmp_path: Path) -> None:
    settings = {"compact": {"fan_in": 4, "merge_identical_spans": True}}
    with contextlib.closing(PartialLake(tmp_path, maintain=settings)) as lake:
        lake.derive(batch(1), batch(1))
        before = lake.view()
        report = lake.maintainer(lake.now + NEVER).run("compact", NAME)
        assert report.rows_removed == 0
        assert lake.view() == before, "equal partial rows count twice"
        with pytest.raises(Refused, match="no promoted columns"):
            lake.maintainer(lake.now).run("fill", NAME)


def test_files_of_old_days_are_moved_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "cold").mkdir()
    maintain = {"tier": {"location": str(tmp_path / "cold"), "after_seconds": "1d"}}
    with contextlib.closing(PartialLake(tmp_path / "hot", maintain=maintain)) as lake:
        lake.derive(batch(0), batch(1))
        before, now = lake.view(), lake.now + NEVER
        assert lake.maintainer(now).run("tier", NAME).is_nothing, "the day is to be merged first"
        lake.maintainer(now).run("compact", NAME)
        assert lake.maintainer(now).run("tier", NAME).files_out == 4
        assert all(str(tmp_path / "cold") in each.path for each in lake.facts())
        assert sorted(each.resolution or 0 for each in lake.facts()) == [60, 300, 3600, 86_400]
        assert lake.maintainer(now + DAY).run("compact", NAME).is_nothing
        assert lake.view() == before


def test_rows_of_other_tables_are_never_combined(tmp_path: Path) -> None:
    with contextlib.closing(KnownLake(tmp_path)) as lake:
        lake.fill([("acme", "a", 9, 0.0), ("acme", "b", 9, 0.0)], [("acme", "c", 9, 0.0)])
        table = lake.table("logs")
        two, one = sorted((live.file for live in live_files(table)), key=lambda file: -file.record_count)
        committer = committer_of(lake.config, lake.catalog)
        with pytest.raises(AssertionError, match="must not be combined"):
            Rewrite(table, committer, Totals(), "merged").commit([Swap([two], [one], 0.0, combined=1)])
        with pytest.raises(AssertionError, match="2 rows became 1"):
            Rewrite(table, committer, Totals(), "merged", combines=True).commit([Swap([two], [one], 0.0)])
        for combined in (0, 2, -1):
            with pytest.raises(ValueError, match="replace must keep the number of rows"):
                committer.replace(table, [two], [one], combined=combined)
        with pytest.raises(ValueError, match="replace must keep the number of rows"):
            committer.replace(table, [one], [two], combined=-1)
        assert lake.bodies().total() == 3


# The merge itself


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PartialLake]:
    with contextlib.closing(PartialLake(tmp_path_factory.mktemp("derived"))) as made:
        yield made


def layout_of(lake: PartialLake) -> Layout:
    return Layout.of(lake.checkpoint.table, SPAN_METRICS, 1, rewriting=True)


def read(files: Sequence[DataFile]) -> list[pa.Table]:
    return [pq.read_table(file.file_path, partitioning=None) for file in files]


def assert_sorted(rows: pa.Table) -> None:
    """NULL comes first."""
    keys = [
        tuple((value is not None, value) for value in (row[name] for name in SPAN_METRICS.sort_by))
        for row in rows.select(list(SPAN_METRICS.sort_by)).to_pylist()
    ]
    assert keys == sorted(keys)
    assert len(keys) == len(set(keys)), "a key has one row"


SPANS = st.lists(
    st.tuples(
        st.just("acme"),
        st.sampled_from(["web", "cart", "vault"]),
        st.sampled_from(["GET /", "PUT /"]),
        st.integers(0, 10**12),
        st.integers(0, 7300).map(lambda second: MIDNIGHT + second),
    ),
    min_size=1,
    max_size=40,
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    batches=st.lists(SPANS, min_size=1, max_size=6),
    by_resolution=st.booleans(),
    row_group_bytes=st.sampled_from([2_000, 10_000, 2**25]),
    target_bytes=st.sampled_from([4_000, 2**29]),
    rows_at_once=st.sampled_from([1, 7, 2**16]),
)
def test_a_merge_keeps_the_view_and_splits_no_key(
    written: PartialLake,
    batches: list[list[Span]],
    by_resolution: bool,
    row_group_bytes: int,
    target_bytes: int,
    rows_at_once: int,
) -> None:
    layout, checkpoint = layout_of(written), written.checkpoint
    inputs = [file for spans in batches for file in written.write(spans, checkpoint)]
    job = Merge(tuple(inputs), "acme", TODAY, by_resolution)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(combined, "_ROWS_AT_ONCE", rows_at_once)
        merged = merge(layout, job, MergeSettings(target_bytes, row_group_bytes, 3, False))
    assert (merged.unreadable, merged.vanished) == ({}, [])
    found = read(merged.added)
    assert_sorted(pa.concat_tables(found))
    assert as_view(pa.concat_tables(found)) == as_view(pa.concat_tables(read(inputs)))
    assert Swap(inputs, merged.added, 0.0, merged.removed, merged.combined).adds_up
    if by_resolution:
        assert all(len(set(table["resolution"].to_pylist())) == 1 for table in found)
    for file in [*inputs, *merged.added]:
        Path(file.file_path.removeprefix("file://")).unlink()


def test_many_files_are_merged_in_row_groups_about_as_large_as_those_of_the_inputs(
    written: PartialLake,
) -> None:
    layout, checkpoint = layout_of(written), written.checkpoint
    inputs = [file for number in range(40) for file in written.write(batch(number % 4 * 8), checkpoint)]
    merged = merge(layout, Merge(tuple(inputs), "acme", TODAY), MergeSettings(2**29, 4_000, 3, False))
    (file,) = merged.added
    assert merged.combined == sum(each.record_count for each in inputs) - file.record_count
    assert file.record_count < sum(each.record_count for each in inputs) / 8
    groups = pq.read_metadata(file.file_path).num_row_groups
    assert groups < 8, "not as many as the inputs need"


def with_owner(spans: pa.Table) -> pa.Table:
    rows = SPAN_METRICS.derived.derive(spans) if SPAN_METRICS.derived else spans
    return rows.append_column("owner", pc.binary_join_element_wise("team", rows["service_name"], "-"))


def test_columns_that_the_spec_does_not_have_keep_a_value_of_each_key(lake: PartialLake) -> None:
    owner = Column("owner", pa.string(), "the spans", "Who owns the service", merge=ANY)
    assert SPAN_METRICS.derived is not None
    derived = dataclasses.replace(SPAN_METRICS.derived, derive=with_owner)
    lake.spec = dataclasses.replace(SPAN_METRICS, columns=(*SPAN_METRICS.columns, owner), derived=derived)
    lake.derive(batch(0), batch(0))
    before = lake.view()
    lake.maintainer(lake.now + NEVER).run("compact", NAME)  # knows nothing of the column
    assert lake.view() == before
    assert lake.rows().num_rows == len(before)
    assert set(lake.rows()["owner"].to_pylist()) == {f"team-{row['service_name']}" for row in before}
