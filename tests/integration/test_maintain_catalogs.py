"""A table is kept with every kind of catalog, on a disk and in a bucket: nothing is lost, nothing is left."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frazil.lake.files import LakeFileIO
from frazil.lake.live_files import data_manifests, live_files
from frazil.lake.snapshots import LANDED
from frazil.lake.tags import create_tag, delete_tag, list_tags
from frazil.lake.upkeep.orphans import remove_orphans
from frazil.ledger import balance
from frazil.pipeline.land import upkeep
from frazil.pipeline.maintain.maintainer import Maintainer
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.metrics import Metrics
from tests.components.iceberg_rest import RestCatalogServer
from tests.components.postgres import PostgresServer
from tests.components.s3 import S3Server
from tests.integration.test_catalogs import s3_settings
from tests.support.known_lake import DAY, KnownLake
from tests.support.local_runner import LocalRunner

BATCHES, LAST_YEAR = 6, 300.0
HOUR, TAG = 3600, "incident-1"
MAINTAIN = {
    "compact": {"fan_in": 2},
    "expire": {"snapshots_kept": 1, "manifests_max": 2},
    "retention": {"rules": [{"table": "logs", "where": "severity_number < 9", "after_seconds": "90d"}]},
}
ROOMS = [("sqlite", "s3"), ("postgres", "folder"), ("postgres", "s3"), ("rest", "folder"), ("rest", "s3")]


@pytest.fixture(params=ROOMS, ids=lambda room: " on ".join(room))
def lake(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The configuration's section. Servers are started only for those who need them."""
    catalog_type, warehouse = request.param
    lake: dict[str, Any] = {"catalog": {"type": catalog_type}, "namespace": f"n{uuid.uuid4().hex}"}
    if warehouse == "s3":
        s3: S3Server = request.getfixturevalue("moto_s3")
        lake["s3"] = s3_settings(s3)
        if catalog_type != "rest":
            lake["warehouse"] = f"s3://{s3.make_bucket(f'lake-{uuid.uuid4().hex}')}/warehouse"
    if catalog_type == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres_server")
        lake["catalog"]["postgres"] = {"uri": postgres.make_database(f"catalog-{uuid.uuid4().hex}")}
    if catalog_type == "rest":
        server = "rest_catalog_on_s3" if warehouse == "s3" else "rest_catalog"
        rest: RestCatalogServer = request.getfixturevalue(server)
        lake["catalog"]["rest"] = {"uri": rest.uri}
    return lake


@pytest.fixture
def kept(tmp_path: Path, lake: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[KnownLake]:
    monkeypatch.setattr(upkeep.os, "sync", lambda: None)
    with contextlib.closing(KnownLake(tmp_path, lake=lake, maintain=MAINTAIN)) as made:
        yield made


class Clock:
    def __init__(self) -> None:
        self.seconds = time.time()

    def __call__(self) -> float:
        return self.seconds


def there(kept: KnownLake) -> set[str]:
    """Every data file in the store."""
    table = kept.table()
    files = LakeFileIO(table.io.properties).walk(f"{table.location()}/data")
    return {file.path.rsplit("/", 1)[-1] for file in files}


def names(paths: set[str]) -> set[str]:
    return {path.rsplit("/", 1)[-1] for path in paths}


@pytest.mark.slow
def test_a_table_is_merged_tagged_expired_and_thinned(kept: KnownLake) -> None:
    clock = Clock()
    keeper = Maintainer(
        kept.config,
        kept.catalog,
        LocalRunner(),
        MaintainMetrics(Metrics().registry),
        clock=clock,
    )
    rows = [
        [
            ("acme", f"new{number} shop", 9, 0.0),
            ("acme", f"old{number} shop", 5, LAST_YEAR),
            ("acme", f"grave{number} shop", 17, LAST_YEAR),
        ]
        for number in range(BATCHES)
    ]
    kept.fill(*rows)
    wanted = Counter(row[1] for batch in rows for row in batch)
    landed_files = kept.data_files()
    assert len(landed_files) == 2 * BATCHES

    landed = kept.table().metadata.refs[LANDED].snapshot_id
    create_tag(kept.catalog, kept.table(), TAG, landed)
    assert [tag.name for tag in list_tags(kept.table())] == [TAG]

    assert len(data_manifests(kept.table(), kept.table().current_snapshot())) > 4
    keeper.run("manifests", "logs")
    assert len(data_manifests(kept.table(), kept.table().current_snapshot())) <= 2
    assert kept.bodies() == wanted

    merged = keeper.run("compact", "logs")
    assert (merged.files_in, merged.files_out, merged.rows) == (2 * BATCHES, 2, 3 * BATCHES)
    assert kept.bodies() == wanted
    assert kept.table().metadata.refs[LANDED].snapshot_id == landed
    assert keeper.run("compact", "logs").is_nothing

    # What the tag needs stays, however old.
    clock.seconds += 2 * HOUR
    keeper.run("expire", "logs")
    assert any(tag.kind == "hour" for tag in list_tags(kept.table()))
    assert names(landed_files) <= there(kept)
    scan = kept.table().scan(snapshot_id=landed)
    assert Counter(scan.to_arrow()["body"].to_pylist()) == wanted

    thinned = keeper.run("retention", "logs")
    assert thinned.rows_removed == BATCHES
    wanted = Counter({body: times for body, times in wanted.items() if not body.startswith("old")})
    assert kept.bodies() == wanted
    assert not balance(kept.config).problems

    # Landing goes on from where it was.
    kept.fill([("acme", "later shop", 9, 0.0)])
    wanted["later shop"] += 1
    assert kept.bodies() == wanted

    assert delete_tag(kept.catalog, kept.table(), TAG)
    for _ in range(2):  # the hourly tags that hold the old files, then what they held
        clock.seconds += 3 * DAY
        keeper.run("expire", "logs")
    assert len(kept.table().metadata.snapshots) <= 3
    live = names({each.file.file_path for each in live_files(kept.table())})
    assert not names(landed_files) & there(kept)
    assert live <= there(kept)

    table = kept.table()
    lost = f"{table.location()}/data/tenant_id=acme/lost.parquet"
    LakeFileIO(table.io.properties).write(lost, b"lost")
    time.sleep(2.1)  # S3 tells the time of an object in whole seconds
    assert "lost.parquet" in names({orphan.path for orphan in remove_orphans(table, 1.0)})
    assert keeper.run("orphans", "logs").is_nothing
    assert "lost.parquet" not in there(kept)
    assert there(kept) >= live
    assert kept.bodies() == wanted
    assert not balance(kept.config).problems
