"""What frazil's own commits make of a table, as Java reads it: rows, and its tables of metadata."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from frazil.lake.commits.commit import Committer, checkpoint_of
from frazil.lake.commits.manifests import rewrite_manifests
from frazil.lake.live_files import live_files
from frazil.lake.tables import open_table
from frazil.pipeline.datafile import Layout, write_part
from frazil.pipeline.partition_sort import Part
from frazil.position import LandingPosition, StreamPosition, WalPosition, landing_position
from frazil.tables import landed_spec
from tests.support.spark.land_lake import Lake, opened

DAY = 20_000
SPEC = landed_spec("logs")
NAME = ("otel", "logs")


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Iterator[Lake]:
    # A name that the session does not have yet: settings of one catalog would stay in the other's.
    with opened({"data_dir": tmp_path, "lake": {"catalog": {"name": "changes"}}}) as made:
        yield made


def data_file(table: Table, tenant: str, day: int, *bodies: str) -> DataFile:
    time = datetime.datetime.fromtimestamp(day * 86_400, datetime.UTC)
    rows = [
        {"tenant_id": tenant, "time": time, "received_time": time, "_segment": "s/0", "body": body}
        for body in bodies
    ]
    layout = Layout.of(table, SPEC, 1)
    made = pa.Table.from_pylist(rows, schema=SPEC.arrow_schema)
    return write_part(layout, Part(tenant, day, made), layout.batch)


def metadata_table(lake: Lake, name: str, columns: str = "*") -> list[dict[str, object]]:
    spark = lake.spark()
    spark.sql(f"REFRESH TABLE {lake.spark_name('logs')}")
    return [
        row.asDict(recursive=True)
        for row in spark.sql(f"SELECT {columns} FROM {lake.spark_name('logs')}.{name}").collect()
    ]


def assert_as_java_reads_it(lake: Lake, bodies: list[str]) -> None:
    table = lake.table("logs")
    lake.spark().sql(f"REFRESH TABLE {lake.spark_name('logs')}")
    assert sorted(lake.by_spark("logs")["body"].to_pylist()) == bodies
    assert sorted(lake.by_pyiceberg("logs")["body"].to_pylist()) == bodies
    live = {each.file.file_path: each for each in live_files(table)}
    files = {str(row["file_path"]): row for row in metadata_table(lake, "files")}
    assert files.keys() == live.keys()
    for path, row in files.items():
        assert row["record_count"] == live[path].file.record_count
        assert row["lower_bounds"] == {k: bytearray(v) for k, v in live[path].file.lower_bounds.items()}
    entries = metadata_table(lake, "entries", "status, snapshot_id, sequence_number, data_file")
    for row in entries:
        file = row["data_file"]
        assert isinstance(file, dict)
        if row["status"] == 2:
            assert file["file_path"] not in live
            assert not any(file[name] for name in ("lower_bounds", "upper_bounds", "value_counts"))
        else:
            known = live[file["file_path"]]
            assert (row["snapshot_id"], row["sequence_number"]) == (known.snapshot_id, known.sequence)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = {str(row["path"]): row for row in metadata_table(lake, "manifests")}
    assert manifests.keys() == {each.manifest_path for each in snapshot.manifests(table.io)}
    counted = sum(
        int(str(row["added_data_files_count"])) + int(str(row["existing_data_files_count"]))
        for row in manifests.values()
    )
    assert counted == len(live)
    snapshots = metadata_table(lake, "snapshots", "snapshot_id, operation, summary")
    assert [row["snapshot_id"] for row in snapshots] == [each.snapshot_id for each in table.snapshots()]
    summary = snapshots[-1]["summary"]
    assert isinstance(summary, dict)
    assert (summary["total-records"], summary["total-data-files"]) == (str(len(bodies)), str(len(live)))


@pytest.mark.slow
def test_java_reads_what_was_replaced_removed_and_merged(lake: Lake) -> None:
    position = LandingPosition(WalPosition({"s": StreamPosition(1, 8, 8)})).to_text()
    open_table(lake.catalog, "otel", SPEC, position)
    committer = Committer(lake.catalog, deadline_seconds=60)
    for number in range(4):
        checkpoint = checkpoint_of(lake.table("logs"))
        files = [
            data_file(checkpoint.table, tenant, DAY + number // 2, f"{tenant} {number}")
            for tenant in ("acme", "globex")
        ]
        committer.append(checkpoint, files, position)
    bodies = sorted(f"{tenant} {number}" for tenant in ("acme", "globex") for number in range(4))
    assert_as_java_reads_it(lake, bodies)

    def part(tenant: str, day: int) -> list[DataFile]:
        live = [each.file for each in live_files(lake.table("logs"))]
        return [file for file in live if (file.partition[0], file.partition[1]) == (tenant, day)]

    table = lake.table("logs")
    merged = data_file(table, "acme", DAY, "acme 0", "acme 1")
    committer.replace(table, part("acme", DAY), [merged])
    assert_as_java_reads_it(lake, bodies)
    before_removal = lake.table("logs").metadata.current_snapshot_id

    fewer = data_file(table, "acme", DAY, "acme 1")
    committer.overwrite(
        table, [merged], [fewer], lambda text: landing_position(text).with_removed({"s/0": 1}).to_text()
    )
    assert_as_java_reads_it(lake, left := [body for body in bodies if body != "acme 0"])

    committer.overwrite(
        table,
        part("globex", DAY + 1),
        [],
        lambda text: landing_position(text).with_removed({"s/0": 2}).to_text(),
    )
    left = [body for body in left if body not in ("globex 2", "globex 3")]
    assert_as_java_reads_it(lake, left)
    assert landing_position(checkpoint_of(lake.table("logs")).position).removed == 3

    assert rewrite_manifests(committer, lake.table("logs"), 1) is not None
    assert_as_java_reads_it(lake, left)
    operations = [str(row["operation"]) for row in metadata_table(lake, "snapshots")]
    assert operations == [*["append"] * 5, "replace", "overwrite", "delete", "replace"]

    name, spark = lake.spark_name("logs"), lake.spark()
    past = spark.sql(f"SELECT body FROM {name} VERSION AS OF {before_removal}").collect()
    assert sorted(row.body for row in past) == bodies
    # And Java goes on from there: filtering manifests, rewriting them, removing what has expired.
    spark.sql(f"DELETE FROM {name} WHERE body = 'acme 3'")
    spark.sql(f"CALL {lake.config.lake.catalog.name}.system.rewrite_manifests('otel.logs')")
    left.remove("acme 3")
    assert sorted(row.body for row in spark.table(name).collect()) == left
    assert sorted(lake.by_pyiceberg("logs")["body"].to_pylist()) == left
