"""Files that have moved to another place, for engines on other machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import read_manifest_list

from frazil.config import Config
from frazil.errors import Forbidden
from frazil.serve.iceberg.catalog import _served_files
from frazil.serve.iceberg.files import COLDER_FOLDER, LakeFiles
from tests.unit.pipeline.maintain.test_tier import cold, kept, move
from tests.unit.serve.iceberg.test_catalog import Client, _file_paths, key_of, signed


def test_they_are_served_too_and_nothing_else_at_that_place(tmp_path: Path) -> None:
    with kept(tmp_path) as lake:
        move(lake)
        client = Client(lake.config, lambda: lake.catalog)
        table: dict[str, Any] = client.get("/iceberg/v1/namespaces/otel/tables/logs").json()
        assert str(tmp_path) not in str(table["metadata"])
        served = {}
        for path in current_files(client, table, tmp_path):
            answer = signed(client, key_of(path), table["config"])
            assert answer.status_code == 200
            served[path] = answer.content
        assert sum(path.startswith(f"s3://iceberg/{COLDER_FOLDER}/logs/") for path in served) == len(
            cold(lake)
        )
        assert set(served.values()) == {Path(path).read_bytes() for path in lake.data_files()}
        (tmp_path / "cold" / "other.parquet").write_bytes(b"of somebody else")
        for key in ("colder/other.parquet", "colder/../other.parquet", "colder/logs/../../other.parquet"):
            assert signed(client, key, table["config"]).status_code in (403, 404)
        assert signed(client, "colder/logs/x.parquet", table["config"], "PUT").status_code == 403
        assert client.get(f"/iceberg/{key_of(next(iter(served)))}").status_code == 403, "not signed"


def current_files(client: Client, table: dict[str, Any], folder: Path) -> list[str]:
    metadata = table["metadata"]
    (current,) = (
        each for each in metadata["snapshots"] if each["snapshot-id"] == metadata["current-snapshot-id"]
    )
    local = folder / "read.avro"
    local.write_bytes(signed(client, key_of(current["manifest-list"]), table["config"]).content)
    found = []
    for manifest in list(read_manifest_list(PyArrowFileIO().new_input(str(local)))):
        local.write_bytes(signed(client, key_of(manifest.manifest_path), table["config"]).content)
        found += _file_paths(local, manifest)
    return found


def test_what_is_in_a_bucket_is_read_there(tmp_path: Path) -> None:
    """A REST catalog may have its tables on S3, whatever else is configured here."""
    tier = {"location": "s3://telemetry/colder", "after_seconds": "30d"}
    catalog = {"type": "rest", "rest": {"uri": "https://catalog.example"}}
    config = Config.model_validate(
        {"data_dir": tmp_path, "lake": {"catalog": catalog}, "maintain": {"tier": tier}}
    )
    served = _served_files(config)
    assert served is not None
    address = "s3://telemetry/colder/otel/logs/1/data/x.parquet"
    assert served.files.address(address) == address


def test_paths_there_are_checked_as_in_the_warehouse(tmp_path: Path) -> None:
    lake = LakeFiles("/data/lake", hidden=[tmp_path / "hidden"], colder=str(tmp_path))
    assert lake.address(f"file://{tmp_path}/t/f.parquet") == "s3://iceberg/colder/t/f.parquet"
    assert lake.address(f"{tmp_path}-other/f.parquet") == f"{tmp_path}-other/f.parquet"
    (tmp_path / "link.parquet").symlink_to("/etc/passwd")
    for key in ("link.parquet", "hidden/f.parquet", "f.txt", "../f.parquet"):
        with pytest.raises(Forbidden):
            lake.find(key, COLDER_FOLDER)
