"""Merging: the same rows in fewer files, in order, for any values and any split of the inputs."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench.payloads import MAKERS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.manifest import DataFile

from frazil.config import CompactConfig, Config
from frazil.errors import StoreUnavailable
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.live_files import partition_of
from frazil.lake.tables import open_table
from frazil.otlp.decode import Decoder
from frazil.pipeline import datafile
from frazil.pipeline.datafile import Layout, file_name, write_part
from frazil.pipeline.land.task import with_segment
from frazil.pipeline.maintain.merge import sorted_runs
from frazil.pipeline.maintain.merge.merge import Merge, Merged, MergeSettings, merge
from frazil.pipeline.partition_sort import DAY_MICROS, Horizon, Part, partition_and_sort
from frazil.position import LandingPosition
from frazil.tables import DEFAULT_PROMOTED, SET_ASIDE, SIGNALS, Promoted, Signal, landed_spec
from frazil.tables.columns import TIMESTAMP
from frazil.wal.rowgroups import coded_table
from tests.support.otlp_requests import logs_requests, metrics_requests, trace_requests

DAY = 20_000
NOON = DAY * DAY_MICROS + DAY_MICROS // 2
REQUESTS = {"logs": logs_requests, "spans": trace_requests, "metrics": metrics_requests}
WIDE = Horizon(10**18, 10**18)
MANY_GROUPS = MergeSettings(2**30, 20_000, 3, False)
ONE_GROUP = MergeSettings(2**30, 2**27, 3, False)


def layout_of(root: Path, signal: Signal, extra: tuple[Promoted, ...] = ()) -> Layout:
    with contextlib.closing(open_catalog(Config(data_dir=root))) as catalog:
        ensure_namespace(catalog, "otel")
        table = open_table(catalog, "otel", landed_spec(signal, extra), LandingPosition().to_text()).table
    return Layout.of(table, landed_spec(signal, extra), 1)


def sorted_by_service(layout: Layout) -> Layout:
    """As metrics are merged, with rows that are easier to make."""
    return dataclasses.replace(layout, spec=dataclasses.replace(layout.spec, merged_as="sorted"))


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[Signal, Layout]:
    root = tmp_path_factory.mktemp("lake")
    return {signal: layout_of(root, signal) for signal in SIGNALS}


def rows_of(
    layout: Layout, body: bytes, segment: str, times: Sequence[int], received: int = NOON
) -> pa.Table:
    """A request's rows as landing has them, at these times, over and over."""
    signal: Any = layout.spec.name
    table = (
        Decoder(signal, layout.spec.promoted[len(DEFAULT_PROMOTED) :])
        .decode([body], ["acme"], [received * 1000])
        .table
    )
    table = with_segment(coded_table(table, layout.coded), segment, layout)
    micros = np.resize(np.asarray(times, np.int64), table.num_rows)
    at = table.schema.get_field_index("time")
    return table.set_column(at, table.schema.field(at), pa.array(micros).cast(TIMESTAMP))


def landed(layout: Layout, *tables: pa.Table) -> DataFile:
    (part,) = partition_and_sort(list(tables), layout.spec, WIDE).parts
    assert (part.tenant, part.day) == ("acme", DAY)
    return write_part(layout, part, file_name(layout))


def made(layout: Layout, files: int, records: int = 200) -> list[DataFile]:
    """Files whose times overlap."""
    rng, signal = np.random.default_rng(7), layout.spec.name
    return [
        landed(
            layout,
            *(
                rows_of(
                    layout,
                    MAKERS[signal](10 * number + part, records // 2),
                    f"stream/{number}",
                    NOON + number * 50 + rng.integers(0, 200, records),
                )
                for part in range(2)
            ),
        )
        for number in range(files)
    ]


def merged(layout: Layout, files: Sequence[DataFile], settings: MergeSettings = ONE_GROUP) -> Merged:
    return merge(layout, Merge(tuple(files), "acme", DAY), settings)


def read(files: Sequence[DataFile], schema: pa.Schema) -> pa.Table:
    tables = [pq.read_table(file.file_path, partitioning=None) for file in files]
    return pa.concat_tables([table.select(schema.names) for table in tables])


def multiset(table: pa.Table) -> Counter[str]:
    """As text: NaN is not equal to itself, and -0.0 is equal to 0.0."""
    return Counter(repr(row) for row in table.to_pylist())


def keys(table: pa.Table, layout: Layout) -> list[tuple[Any, ...]]:
    columns = [table[name].to_pylist() for name in layout.spec.sort_by]
    # In the order of UTF-8, NULL first.
    return [
        tuple((value is not None, value.encode() if isinstance(value, str) else value) for value in row)
        for row in zip(*columns, strict=True)
    ]


def in_folder(layout: Layout) -> list[str]:
    folder = Path(layout.location.removeprefix("file://")) / "data"
    return sorted(str(path) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("signal", SIGNALS)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_merge_holds_exactly_the_rows_of_its_inputs(
    layouts: dict[Signal, Layout], signal: Signal, data: st.DataObject
) -> None:
    layout = layouts[signal]
    files = []
    for number in range(data.draw(st.integers(1, 4))):
        body = data.draw(REQUESTS[signal]()).SerializeToString()
        times = data.draw(st.lists(st.integers(NOON, NOON + 3), min_size=1, max_size=5))
        rows = rows_of(layout, body, f"stream/{number}", times)
        if rows.num_rows:
            files.append(landed(layout, rows))
    if not files:
        return
    row_group_bytes = data.draw(st.sampled_from([1, 2000, 20_000, 2**27]))
    result = merged(layout, files, MergeSettings(2**30, row_group_bytes, 1, False))
    assert (result.vanished, result.removed) == ([], Counter())
    got, given_rows = read(result.added, layout.coded), read(files, layout.coded)
    assert multiset(got) == multiset(given_rows)
    assert result.rows == got.num_rows == sum(file.record_count for file in result.added)
    if layout.spec.merged_as == "sorted":
        assert keys(got, layout) == sorted(keys(got, layout))


@pytest.mark.parametrize("signal", ["logs", "metrics"])
def test_row_groups_follow_each_other_in_the_order_of_the_table(
    layouts: dict[Signal, Layout], signal: Signal
) -> None:
    layout = sorted_by_service(layouts[signal])
    files = made(layout, 7)
    result = merged(layout, files, MANY_GROUPS)
    (file,) = result.added
    assert pq.read_metadata(file.file_path).num_row_groups > 3
    got = read(result.added, layout.coded)
    assert multiset(got) == multiset(read(files, layout.coded))
    assert keys(got, layout) == sorted(keys(got, layout))
    assert file.sort_order_id == layout.sort_order_id == 1


def test_row_groups_of_spans_are_stretches_of_time_each_in_order(layouts: dict[Signal, Layout]) -> None:
    layout = layouts["spans"]
    files = [
        landed(layout, rows_of(layout, MAKERS["spans"](n, 100), f"s/{n}", NOON + n * 1000 + np.arange(100)))
        for n in range(8)
    ]
    result = merged(layout, files[::-1], MergeSettings(2**30, 60_000, 3, False))
    (file,) = result.added
    parquet = pq.ParquetFile(file.file_path)
    groups = [parquet.read_row_group(number) for number in range(parquet.num_row_groups)]
    assert 1 < len(groups) < 8
    for group in groups:
        assert keys(group, layout) == sorted(keys(group, layout))
    spans_of_time = [(min(group["time"].to_pylist()), max(group["time"].to_pylist())) for group in groups]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(spans_of_time))
    assert file.sort_order_id == 0
    assert merged(layout, files).added[0].sort_order_id == layout.sort_order_id


def test_merged_files_can_be_merged_again(layouts: dict[Signal, Layout]) -> None:
    for layout in layouts.values():
        files = made(layout, 6)
        first = merged(layout, files[:4], MANY_GROUPS).added
        again = merged(layout, [*first, *files[4:]], MANY_GROUPS)
        assert multiset(read(again.added, layout.coded)) == multiset(read(files, layout.coded))


def test_columns_promoted_since_are_filled_as_landing_fills_them(tmp_path: Path) -> None:
    extra = (Promoted("user.id", "record"), Promoted("app.elapsed_ms", "record", "double", "elapsed_ms"))
    before, body = layout_of(tmp_path, "logs"), MAKERS["logs"](1, 50)
    old = landed(before, rows_of(before, body, "s/0", [NOON]))
    after = layout_of(tmp_path, "logs", extra)
    new = landed(after, rows_of(after, body, "s/1", [NOON]))
    result = merged(after, [old, new])
    got = read(result.added, after.coded)
    assert got.num_rows == 100
    wanted = read([new], after.coded)
    for name in ("user_id", "elapsed_ms"):
        assert None not in wanted[name].to_pylist()
        assert Counter(got[name].to_pylist()) == Counter(wanted[name].to_pylist() * 2)


def test_a_file_is_written_as_landing_writes_them(layouts: dict[Signal, Layout]) -> None:
    """Statistics, Bloom filters, page indexes, ids, bounds."""
    layout = layouts["logs"]
    files = made(layout, 3)
    (file,) = merged(layout, files).added
    ours, theirs = pq.read_metadata(file.file_path), pq.read_metadata(files[0].file_path)
    assert ours.schema.equals(theirs.schema)
    for number in range(ours.num_columns):
        a, b = ours.row_group(0).column(number), theirs.row_group(0).column(number)
        assert a.is_stats_set == b.is_stats_set
        assert (a.has_offset_index, a.has_column_index) == (b.has_offset_index, b.has_column_index)
        assert a.compression == "ZSTD"
    assert set(file.lower_bounds) == set(files[0].lower_bounds)
    field = layout.schema.find_field("time").field_id
    first, last = (
        int.from_bytes(bounds[field], "little") for bounds in (file.lower_bounds, file.upper_bounds)
    )
    assert first == min(int.from_bytes(each.lower_bounds[field], "little") for each in files)
    assert last == max(int.from_bytes(each.upper_bounds[field], "little") for each in files)
    assert list(file.partition) == ["acme", DAY]
    assert file.file_size_in_bytes == os.path.getsize(file.file_path)
    assert file.record_count == 600


def test_an_input_that_is_gone_is_named_and_nothing_is_written(layouts: dict[Signal, Layout]) -> None:
    layout = layouts["logs"]
    files = made(layout, 3)
    os.unlink(files[1].file_path)
    before = in_folder(layout)
    result = merged(layout, files)
    assert result.vanished == [files[1].file_path]
    assert (result.added, result.rows) == ([], 0)
    assert in_folder(layout) == before


@pytest.mark.parametrize("signal", ["logs", "spans"])
def test_a_merge_that_fails_anywhere_leaves_no_file(
    layouts: dict[Signal, Layout], signal: Signal, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = layouts[signal]
    files = made(layout, 4)
    before = in_folder(layout)
    small = MergeSettings(sum(file.file_size_in_bytes for file in files) // 2, 20_000, 3, False)
    calls, fail_at = 0, 1
    real_write, real_publish = datafile.RowGroupWriter.write, type(layout.io).publish

    def counted(real: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == fail_at:
                raise StoreUnavailable("no space left")
            return real(*arguments)

        return call

    monkeypatch.setattr(datafile.RowGroupWriter, "write", counted(real_write))
    monkeypatch.setattr(type(layout.io), "publish", counted(real_publish))
    while True:
        calls = 0
        try:
            result = merged(layout, files, small)
        except StoreUnavailable:
            assert in_folder(layout) == before, f"the {fail_at}th operation failed"
            fail_at += 1
            continue
        break
    assert fail_at > 5
    assert len(result.added) == 2


def test_inputs_far_over_the_target_become_several_files_that_do_not_overlap(
    layouts: dict[Signal, Layout],
) -> None:
    layout = sorted_by_service(layouts["logs"])
    files = made(layout, 6)
    target = sum(file.file_size_in_bytes for file in files) // 3
    result = merged(layout, files, MergeSettings(target, 20_000, 3, False))
    assert len(result.added) == 3
    assert multiset(read(result.added, layout.coded)) == multiset(read(files, layout.coded))
    got = read(result.added, layout.coded)
    assert keys(got, layout) == sorted(keys(got, layout))


def out_of_order(layout: Layout) -> DataFile:
    rows = rows_of(layout, MAKERS["logs"](99, 100), "s/9", NOON + np.arange(100)[::-1])
    return write_part(layout, Part("acme", DAY, rows), file_name(layout))


@pytest.mark.parametrize("row_group_bytes", [2**27, 5_000])
def test_a_file_in_another_order_is_sorted_however_large(
    layouts: dict[Signal, Layout], row_group_bytes: int
) -> None:
    layout = sorted_by_service(layouts["logs"])
    files = [*made(layout, 2), out_of_order(layout)]
    result = merged(layout, files, MergeSettings(2**30, row_group_bytes, 3, False))
    got = read(result.added, layout.coded)
    assert multiset(got) == multiset(read(files, layout.coded))
    assert keys(got, layout) == sorted(keys(got, layout))


def test_rows_of_many_files_wait_on_the_disk_and_leave_nothing_there(
    layouts: dict[Signal, Layout], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    layout = sorted_by_service(layouts["logs"])
    files = made(layout, sorted_runs._OPEN_MAX + 4, 50)
    bytes_of = sum(pq.read_metadata(file.file_path).row_group(0).total_byte_size for file in files)
    seen: list[int] = []
    real = sorted_runs.SpilledRows

    def watched(table: pa.Table, batch_rows: int) -> Any:
        seen.append(table.num_rows)
        return real(table, batch_rows)

    monkeypatch.setattr(sorted_runs, "SpilledRows", watched)
    result = merged(layout, files, MergeSettings(2**30, bytes_of // 4, 3, False))
    assert sum(seen) == 50 * len(files)
    assert 1 < len(seen) < len(files), "of several files each"
    got = read(result.added, layout.coded)
    assert multiset(got) == multiset(read(files, layout.coded))
    assert keys(got, layout) == sorted(keys(got, layout))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_for_temporary_rows_is_reported_and_leaves_nothing(
    layouts: dict[Signal, Layout], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = sorted_by_service(layouts["logs"])
    files = made(layout, sorted_runs._OPEN_MAX + 1, 50)
    before = in_folder(layout)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(StoreUnavailable, match="temporary"):
        merged(layout, files, MANY_GROUPS)
    assert in_folder(layout) == before


def test_rows_that_are_all_equal_to_sort_by_are_cut_all_the_same(layouts: dict[Signal, Layout]) -> None:
    layout = layouts["logs"]
    files = [landed(layout, rows_of(layout, MAKERS["logs"](5, 300), f"s/{n}", [NOON])) for n in range(4)]
    (file,) = merged(layout, files, MANY_GROUPS).added
    metadata = pq.read_metadata(file.file_path)
    rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert len(rows) > 3
    assert max(rows) < 600


def test_large_rows_of_one_service_make_row_groups_of_fewer_rows(
    layouts: dict[Signal, Layout], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Averages would put them into one."""
    layout = sorted_by_service(layouts["logs"])
    small = [landed(layout, rows_of(layout, MAKERS["logs"](n, 1000), f"s/{n}", [NOON])) for n in range(3)]
    large = rows_of(layout, MAKERS["logs"](50, 200), "s/50", [NOON])
    at = large.schema.get_field_index("service_name")
    name = pa.DictionaryArray.from_arrays(pa.array([0] * 200, pa.int32()), ["zzz"])
    large = large.set_column(at, large.schema.field(at), name)
    bodies = pa.array(["x" * 20_000 + str(number) for number in range(200)])
    large = large.set_column(large.schema.get_field_index("body"), large.schema.field("body"), bodies)
    files = [*small, landed(layout, large)]
    held: list[int] = []
    real = sorted_runs.sorted_by_key

    def watched(tables: list[pa.Table], key: Any) -> pa.Table:
        held.append(sum(table.nbytes for table in tables))
        return real(tables, key)

    monkeypatch.setattr(sorted_runs, "sorted_by_key", watched)
    result = merged(layout, files, MergeSettings(2**30, 400_000, 3, False))
    assert multiset(read(result.added, layout.coded)) == multiset(read(files, layout.coded))
    assert max(held) < 3_000_000 < 200 * 20_000, "of 4 MB of large rows some at a time"


def test_a_dictionary_that_ends_in_mid_column_is_read_as_text(layouts: dict[Signal, Layout]) -> None:
    """Nested columns cannot be read as codes then."""
    layout = layouts["logs"]
    rows = rows_of(layout, MAKERS["logs"](3, 1000), "s/0", NOON + np.arange(1000))
    values = pa.array([f"{number:04}" + "y" * 2000 for number in range(1000)]).dictionary_encode()
    resource = pa.MapArray.from_arrays(
        pa.array(range(1001), pa.int32()),
        pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), ["k"]),
        values,
        layout.coded.field("resource_attributes").type,
    )
    at = rows.schema.get_field_index("resource_attributes")
    rows = rows.set_column(at, rows.schema.field(at), resource)
    plain = [rows_of(layout, MAKERS["logs"](4, 100), "s/1", [NOON])]
    files = [landed(layout, rows), landed(layout, *plain)]
    for settings_ in (ONE_GROUP, MANY_GROUPS):
        result = merged(layout, files, settings_)
        assert multiset(read(result.added, layout.coded)) == multiset(read(files, layout.coded))


def test_settings_are_those_of_the_configuration() -> None:
    config = CompactConfig(merge_identical_spans=True)
    assert MergeSettings.of(config) == MergeSettings(
        config.target_bytes, config.row_group_bytes, config.compression_level, True
    )


def test_rows_without_a_tenant_are_merged_too(tmp_path: Path) -> None:
    with contextlib.closing(open_catalog(Config(data_dir=tmp_path))) as catalog:
        ensure_namespace(catalog, "otel")
        layout = Layout.of(open_table(catalog, "otel", SET_ASIDE, "").table, SET_ASIDE, 1)
    files = []
    for number in range(3):
        row = {
            "time": NOON - number,
            "table_name": "logs",
            "source": f"s/{number}",
            "reason": "x",
            "bytes": 1,
        }
        rows = pa.Table.from_pylist([row], schema=SET_ASIDE.arrow_schema)
        files.append(write_part(layout, Part(None, None, rows), file_name(layout)))
    result = merge(layout, Merge(tuple(files), None, None), ONE_GROUP)
    assert read(result.added, layout.coded)["source"].to_pylist() == ["s/2", "s/1", "s/0"]
    assert partition_of(result.added[0]) == (None, None)
