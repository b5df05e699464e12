"""Maintenance must not lose columns, trust a wrong clock, commit deleted files, or fail with a dead JVM."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.types import ListType, LongType, NestedField, StringType, StructType

from frazil.config import Config
from frazil.errors import CatalogUnavailable, JobFailed
from frazil.lake.commits.commit import Committer
from frazil.lake.commits.metadata_commit import MAINTENANCE, maintenance_properties, set_properties
from frazil.lake.live_files import live_files
from frazil.lake.state.health import TableHealth
from frazil.ledger import balance
from frazil.pipeline.datafile import Layout
from frazil.pipeline.inputs import Input
from frazil.pipeline.land import lander
from frazil.pipeline.maintain import compact, maintainer, search
from frazil.pipeline.maintain.maintainer import Maintainer
from frazil.pipeline.maintain.merge.merge import Merged
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.metrics import Metrics
from frazil.pipeline.runner import SparkRunner
from frazil.tables import landed_spec
from tests.support.known_lake import KnownLake
from tests.support.local_runner import LocalRunner

DAY = 86_400
NAMES = ListType(3, StringType(), element_required=False)


@contextlib.contextmanager
def kept(folder: Path, **settings: Any) -> Iterator[KnownLake]:
    maintain = {"compact": {"fan_in": 2, "interval_seconds": 1}, **settings.pop("maintain", {})}
    lake = KnownLake(folder, maintain=maintain, **settings)
    with contextlib.closing(lake):
        yield lake


def maintainer_of(lake: KnownLake, config: Config | None = None, **options: Any) -> Maintainer:
    metrics = MaintainMetrics(Metrics().registry)
    return Maintainer(config or lake.config, lake.catalog, LocalRunner(), metrics, **options)


def with_columns_of_their_own(lake: KnownLake) -> None:
    """Changes the table as Spark would: ALTER TABLE, and an UPDATE that rewrites a file."""
    with lake.table().update_schema() as update:
        update.add_column("note", StringType())
        update.add_column("place", StructType(NestedField(1, "x", LongType()), NestedField(2, "y", NAMES)))
    table = lake.table()
    file = live_files(table)[0].file
    with table.io.new_input(file.file_path).open() as stream:
        rows = pq.ParquetFile(stream).read()
    types = schema_to_pyarrow(table.schema())
    bodies = rows["body"].to_pylist()
    values = {
        "note": [f"note of {body}" for body in bodies],
        "place": [{"x": ord(body), "y": [body, None]} for body in bodies],
    }
    for name, column in values.items():
        rows = rows.append_column(types.field(name), pa.array(column, types.field(name).type))
    path = file.file_path.replace(".parquet", "-updated.parquet")
    pq.write_table(rows, path)
    Committer(lake.catalog, deadline_seconds=20).replace(table, [file], [_like(file, path)])


def _like(file: DataFile, path: str, rows: int | None = None) -> DataFile:
    return DataFile.from_args(
        content=file.content,
        file_path=path,
        file_format=file.file_format,
        partition=file.partition,
        record_count=file.record_count if rows is None else rows,
        file_size_in_bytes=Path(path).stat().st_size,
    )


def theirs(lake: KnownLake) -> dict[str, Any]:
    rows = lake.table().scan(selected_fields=("body", "note", "place")).to_arrow().to_pylist()
    return {row["body"]: (row["note"], row["place"]) for row in rows}


@pytest.mark.parametrize("task", ["compact", "retention"])
def test_columns_added_by_other_engines_keep_their_values(tmp_path: Path, task: Any) -> None:
    rules = [{"after_seconds": "1d", "where": "body = 'b'", "table": "logs"}]
    with kept(tmp_path, maintain={"compact": {"fan_in": 2}, "retention": {"rules": rules}}) as lake:
        lake.fill([("acme", "a", 5, 10.0), ("acme", "b", 5, 10.0)])
        with_columns_of_their_own(lake)
        lake.fill([("acme", "c", 5, 10.0)])
        before = theirs(lake)
        assert before["a"] == ("note of a", {"x": ord("a"), "y": ["a", None]})
        report = maintainer_of(lake).run(task, "logs")
        assert not report.is_nothing
        if task == "retention":
            del before["b"]
        assert theirs(lake) == before
        assert balance(lake.config).problems == []


def test_a_column_of_another_type_than_the_tables_is_never_dropped(tmp_path: Path) -> None:
    with kept(tmp_path) as lake:
        lake.fill([("acme", "a", 5, 10.0)])
        table = lake.table()
        file = live_files(table)[0].file
        rows = pq.read_table(file.file_path)
        at = rows.schema.get_field_index("severity_number")
        rows = rows.set_column(at, "severity_number", pa.array(["not a number"] * rows.num_rows))
        path = Path(file.file_path).with_name("odd.parquet")
        pq.write_table(rows, path)
        layout = Layout.of(table, landed_spec("logs"), 1)
        with pytest.raises(ValueError, match=r"odd\.parquet.*severity_number"):
            Input(layout, _like(file, str(path)), path).read()


def test_merged_rows_that_do_not_add_up_are_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = compact.merge

    def forgetful(*arguments: Any) -> Merged:
        merged = real(*arguments)
        merged.removed["stream/0"] += 2  # one more than was left out
        merged.added = merged.added[:1]
        return merged

    monkeypatch.setattr(compact, "merge", forgetful)
    with kept(tmp_path) as lake:
        for body in "ab":
            lake.fill([("acme", body, 5, 10.0)])
        before = lake.table().metadata_location
        with pytest.raises(JobFailed, match="do not have as many rows as"):
            maintainer_of(lake).run("compact", "logs")
        assert lake.table().metadata_location == before


@pytest.mark.parametrize("torn", [0, 1, 2])
def test_one_file_that_cannot_be_read_does_not_keep_the_others_from_being_merged(
    tmp_path: Path, torn: int
) -> None:
    days = [10.0, 11.0, 12.0]
    with kept(tmp_path) as lake:
        for body in "ab":
            lake.fill([("acme", f"{body}{days_ago:g}", 5, days_ago) for days_ago in days])
        paths = sorted(lake.data_files())
        Path(paths[2 * torn]).write_bytes(b"PAR1 and no more")
        keeper = maintainer_of(lake)
        report = keeper.run("compact", "logs")
        assert (report.files_in, report.files_out, report.detail["failed"]) == (4, 2, 1)
        assert set(paths[2 * torn : 2 * torn + 2]) <= lake.data_files()
        assert keeper.run("compact", "logs").is_nothing  # it is to be tried less often
        with pytest.raises(JobFailed, match="magic bytes"):
            maintainer_of(lake).run("compact", "logs")  # nothing else is left to do


def test_merges_that_are_done_are_committed_when_a_later_one_takes_a_worker_down(tmp_path: Path) -> None:
    class Dying(LocalRunner):
        def results(self, work: Any, items: Any) -> Iterator[Any]:
            yield next(super().results(work, items))
            raise JobFailed("the worker has died")

    with kept(tmp_path) as lake:
        for body in "ab":
            lake.fill([("acme", f"{body}{days_ago:g}", 5, days_ago) for days_ago in (10.0, 11.0)])
        metrics = MaintainMetrics(Metrics().registry)
        keeper = Maintainer(lake.config, lake.catalog, Dying(), metrics)
        with pytest.raises(JobFailed, match="has died"):
            keeper.run("compact", "logs")
        assert len(lake.data_files()) == 3
        assert lake.bodies().total() == 4


def test_removed_rows_that_do_not_add_up_are_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = search._without
    monkeypatch.setattr(search, "_without", lambda *rest: _of_one_row_less(real(*rest)))
    rules = [{"after_seconds": "1d", "where": "body = 'b'", "table": "logs"}]
    with kept(tmp_path, maintain={"retention": {"rules": rules}}) as lake:
        lake.fill([("acme", body, 5, 10.0) for body in "abc"])
        before = lake.table().metadata.current_snapshot_id
        with pytest.raises(AssertionError, match="3 rows became 1, but 1 were removed"):
            maintainer_of(lake).run("retention", "logs")
        assert lake.table().metadata.current_snapshot_id == before


def _of_one_row_less(file: DataFile) -> DataFile:
    return _like(file, file.file_path, rows=file.record_count - 1)


def test_a_merge_that_took_so_long_that_its_files_may_be_gone_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that no snapshot knows are removed after a while: a machine that slept must not commit them."""
    with kept(tmp_path, maintain={"compact": {"fan_in": 2}, "orphans": {"age_seconds": "2h"}}) as lake:
        for body in "ab":
            lake.fill([("acme", body, 5, 10.0)])
        keeper = maintainer_of(lake)
        real = compact.merge

        def slow(*arguments: Any) -> Merged:
            merged = real(*arguments)
            merged.began -= 3601
            return merged

        monkeypatch.setattr(compact, "merge", slow)
        with pytest.raises(CatalogUnavailable, match=r"36\d\d s ago"):
            keeper.run("compact", "logs")
        assert sorted(lake.bodies()) == ["a", "b"]
        monkeypatch.setattr(compact, "merge", real)
        assert keeper.run("compact", "logs").files_in == 2


def test_a_landing_that_took_so_long_that_its_files_may_be_gone_is_landed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kept(tmp_path, maintain={"orphans": {"age_seconds": "2h"}}) as lake:
        lake.fill([("acme", "a", 5, 10.0)])
        times = iter([time.time() - 3601])
        monkeypatch.setattr(lander, "_wall_clock", lambda: next(times))
        lake.write([("acme", "b", 5, 10.0)])
        with pytest.raises(CatalogUnavailable, match=r"36\d\d s ago"):
            lake.land()
        assert sorted(lake.bodies()) == ["a"]
        monkeypatch.setattr(lander, "_wall_clock", time.time)
        lake.land()
        assert sorted(lake.bodies()) == ["a", "b"]
        assert balance(lake.config).problems == []


def test_a_task_that_was_noted_by_a_clock_far_ahead_is_not_waited_for(tmp_path: Path) -> None:
    with kept(tmp_path) as lake:
        lake.fill([("acme", "a", 5, 10.0)])
        ahead = time.time() + 1000 * DAY
        facts = {"expired_at": ahead, "orphans_at": ahead, "retained_at": ahead}
        set_properties(lake.catalog, lake.table(), maintenance_properties(lake.table().metadata, **facts))
        assert MAINTENANCE in lake.table().properties
        keeper = maintainer_of(lake)
        for task in ("expire", "orphans", "retention"):
            assert keeper._is_due(task, "logs"), task


def test_cancelling_jobs_of_a_replaced_spark_is_no_error() -> None:
    """What PySpark is left with after `stop`: the context without its JVM."""

    class Gone:
        def cancelJobGroup(self, group: str) -> None:  # noqa: N802
            raise AttributeError("'NoneType' object has no attribute 'sc'")

    runner = SparkRunner(lambda: SimpleNamespace(sparkContext=Gone()), "maintain")  # type: ignore[arg-type,return-value]
    with runner._group():
        runner.stop()
    assert runner.is_stopped


def test_tables_are_not_measured_in_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring reads all manifests; an idle pipeline must not do so every few seconds."""
    seen: list[str] = []
    real = maintainer.measure

    def measured(table: Table, *rest: Any, **more: Any) -> TableHealth:
        seen.append(table.name()[-1])
        return real(table, *rest, **more)

    monkeypatch.setattr(maintainer, "measure", measured)
    now = [time.time()]
    with kept(tmp_path, maintain={"compact": {"interval_seconds": 60}}) as lake:
        lake.fill([("acme", "a", 5, 0.0)])
        keeper = maintainer_of(lake, clock=lambda: now[0])
        for _ in range(3):
            keeper.round()
            now[0] += 5
        assert seen == ["logs"]
        now[0] += 60
        keeper.round()
        assert seen == ["logs", "logs"]
