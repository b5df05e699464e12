"""Spark reads a table after an expiry, and finds nothing more to do there."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from frazil.config.maintain import ExpireConfig
from frazil.lake.tags import create_tag
from frazil.lake.upkeep.expire import expire_old
from frazil.lake.upkeep.orphans import find_orphans, remove_orphans
from tests.support.lake.history import History
from tests.support.spark.land_lake import Lake, opened

DAY = 86_400.0


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession) -> Iterator[Lake]:
    with opened({"data_dir": tmp_path, "wal": {"local": {"free_bytes_min": 0}}}) as made:
        yield made


@pytest.mark.slow
def test_spark_reads_what_is_kept_and_agrees_on_what_is_not(lake: Lake) -> None:
    history, spark = History(lake.catalog), lake.spark()
    for _ in range(3):
        history.land()
    tagged = history.rewrite()
    create_tag(lake.catalog, history.table, "incident-1", tagged)
    history.land()
    history.lose_rows()
    last = history.land()
    catalog = lake.config.lake.catalog.name
    name = f"{catalog}.otel.set_aside"
    # A file of Spark's own that is not committed, and a commit of its own.
    spark.sql(f"INSERT INTO {name} SELECT * FROM {name} WHERE source = '1'")
    history.shown[history.main] = history.read(history.main)
    stray = Path(history.table.location(), "data", "00000-0-stray.parquet")
    stray.write_bytes(b"stray")

    config = ExpireConfig(snapshots_kept=1, kept_seconds=0, hourly_tags=0)
    gone = expire_old(lake.catalog, history.table, config, clock=lambda: time.time() + 3600)
    assert gone.data_files
    history.assert_kept_are_whole()

    def spark_rows(of: str) -> list[str]:
        return sorted(row[0] for row in spark.sql(f"SELECT source FROM {name} {of}").collect())

    spark.sql(f"REFRESH TABLE {name}")
    assert spark_rows("") == sorted(history.shown[history.main].elements())
    assert spark_rows("VERSION AS OF 'incident-1'") == sorted(history.shown[tagged].elements())
    snapshots = {row.snapshot_id for row in spark.sql(f"SELECT * FROM {name}.snapshots").collect()}
    assert snapshots == set(history.ids) == {tagged, last, history.main}
    refs = {row["name"]: row.snapshot_id for row in spark.sql(f"SELECT * FROM {name}.refs").collect()}
    assert refs == {key: ref.snapshot_id for key, ref in history.table.metadata.refs.items()}

    call = (
        f"CALL {catalog}.system.expire_snapshots(table => 'otel.set_aside', retain_last => 1, "
        f"older_than => TIMESTAMP '{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())}')"
    )
    row = spark.sql(call).first()
    assert row is not None
    assert sum(row) == 0, row
    history.assert_kept_are_whole()

    # Spark goes by the time of modification, ours also by when a file came to its place.
    for path in Path(history.table.location()).rglob("*"):
        os.utime(path, (time.time() - 9 * DAY,) * 2)
    listed = spark.sql(
        f"CALL {catalog}.system.remove_orphan_files(table => 'otel.set_aside', dry_run => true)"
    ).collect()
    assert find_orphans(history.table, DAY) == []
    ours = {orphan.path for orphan in find_orphans(history.table, DAY, time.time() + 2 * DAY)}
    assert {row[0].removeprefix("file:") for row in listed} == {str(stray)}
    # Spark passes over hidden files: here checksums of what was deleted without it.
    assert {path for path in ours if not path.endswith(".crc")} == {str(stray)}
    remove_orphans(history.table, DAY, time.time() + 2 * DAY)
    spark.sql(f"REFRESH TABLE {name}")
    assert spark_rows("") == sorted(history.shown[history.main].elements())
