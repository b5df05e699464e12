"""Expiry and the search for orphans on a lake in a bucket."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from frazil.config import Config
from frazil.config.maintain import ExpireConfig
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.tags import create_tag
from frazil.lake.upkeep.expire import expire_old
from frazil.lake.upkeep.orphans import find_orphans, remove_orphans
from frazil.storage.s3 import S3Store
from tests.components.s3 import S3Server
from tests.support.lake.history import History

DAY = 86_400.0


@pytest.fixture
def history(moto_s3: S3Server, tmp_path: Path) -> Iterator[History]:
    s3 = {
        "endpoint": moto_s3.endpoint,
        "allow_http": True,
        "access_key_id": moto_s3.access_key,
        "secret_access_key": moto_s3.secret_key,
    }
    warehouse = f"s3://{moto_s3.make_bucket(f'expire-{uuid.uuid4().hex}')}/warehouse"
    config = Config.model_validate({"data_dir": tmp_path, "lake": {"warehouse": warehouse, "s3": s3}})
    with contextlib.closing(open_catalog(config)) as catalog:
        ensure_namespace(catalog, "otel")
        yield History(catalog)


def test_what_is_not_needed_goes_with_few_requests_and_all_else_stays(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        history.land()
    create_tag(history.catalog, history.table, "incident-1", history.main)
    history.rewrite()
    history.land()
    history.rewrite()
    history.land("never committed", write_only=True)
    history.land()
    table, later = history.table, time.time() + 3600
    requests: list[int] = []
    real = S3Store.delete_all
    monkeypatch.setattr(
        S3Store,
        "delete_all",
        lambda self, paths: requests.append(len(paths)) or real(self, paths),
    )
    config = ExpireConfig(snapshots_kept=1, kept_seconds=0, hourly_tags=0)
    gone = expire_old(history.catalog, table, config, clock=lambda: later)
    assert requests == [len(gone.files)]
    assert len(gone.data_files) == 2
    history.assert_kept_are_whole()

    assert find_orphans(history.table, DAY) == []  # by the bucket's clock nothing is a day old
    found = find_orphans(history.table, DAY, time.time() + 2 * DAY)
    assert [orphan.path for orphan in found] == [
        path for path in (each.path for each in history.files.walk(table.location())) if path == found[0].path
    ]
    assert found[0].path.startswith("s3://")
    assert remove_orphans(history.table, DAY, time.time() + 2 * DAY) == found
    assert history.names() == history.needed() | history.versions()
    history.assert_kept_are_whole()
