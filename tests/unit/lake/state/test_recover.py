"""A torn or lost metadata file sets a table back, and a lost catalog is made again from the warehouse."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from structlog.testing import capture_logs
from typer.testing import CliRunner

from frazil.cli import app
from frazil.config import Config
from frazil.errors import ConfigError, DataLost, StoreUnavailable
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.state.recover import Recovered, rebuild_catalog, recover_tables
from frazil.storage import local

SCHEMA = pa.schema([("a", pa.int64())])


def table_with(catalog: Catalog, name: str, commits: int) -> Table:
    table = catalog.create_table(f"otel.{name}", schema=SCHEMA)
    for number in range(commits):
        table.append(pa.table({"a": [number]}))
    return table


def rows(catalog: Catalog, name: str) -> list[int]:
    return sorted(catalog.load_table(f"otel.{name}").scan().to_arrow()["a"].to_pylist())


def metadata_files(table: Table) -> list[Path]:
    """From the oldest to the newest."""
    return sorted(Path(table.location(), "metadata").glob("*.metadata.json"))


def test_whole_tables_are_left_alone(catalog: Catalog) -> None:
    table_with(catalog, "logs", 2)
    assert recover_tables(catalog) == []
    assert rows(catalog, "logs") == [0, 1]


@pytest.mark.parametrize("damage", ["gone", "empty", "torn", "not json", "not metadata"])
def test_unreadable_metadata_falls_back_to_the_one_before(catalog: Catalog, damage: str) -> None:
    table = table_with(catalog, "logs", 3)
    table_with(catalog, "spans", 1)
    newest = Path(table.metadata_location)
    whole = newest.read_bytes()
    match damage:
        case "gone":
            newest.unlink()
        case "empty":
            newest.write_bytes(b"")
        case "torn":
            newest.write_bytes(whole[: len(whole) // 2])
        case "not json":
            newest.write_bytes(b"\xff\x00" * 100)
        case "not metadata":
            newest.write_bytes(b"{}")
    before = str(metadata_files(table)[-2 if newest.exists() else -1])
    with capture_logs() as logs:
        assert recover_tables(catalog) == [Recovered("otel.logs", str(newest), before)]
    assert [(entry["event"], entry["log_level"]) for entry in logs] == [
        ("table reset to earlier metadata", "error")
    ]
    assert rows(catalog, "logs") == [0, 1]
    assert rows(catalog, "spans") == [0]
    catalog.load_table("otel.logs").append(pa.table({"a": [9]}))
    assert rows(catalog, "logs") == [0, 1, 9]
    assert recover_tables(catalog) == []


def test_if_the_one_before_is_unreadable_too_the_newest_readable_is_used(catalog: Catalog) -> None:
    table = table_with(catalog, "logs", 4)
    for file in metadata_files(table)[-2:]:
        file.write_bytes(b"{")
    (recovered,) = recover_tables(catalog)
    assert recovered.used == str(metadata_files(table)[-3])
    assert rows(catalog, "logs") == [0, 1]


def test_a_table_of_which_nothing_is_left_is_reported_after_the_others_are_mended(catalog: Catalog) -> None:
    lost, mended = table_with(catalog, "a_lost", 1), table_with(catalog, "mended", 2)
    shutil.rmtree(lost.location())
    Path(mended.metadata_location).unlink()
    with pytest.raises(DataLost, match="mounted") as caught:
        recover_tables(catalog)
    assert caught.value.table == "otel.a_lost"
    assert rows(catalog, "mended") == [0]


def test_a_store_that_does_not_answer_is_no_reason_to_fall_back(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_with(catalog, "logs", 2)

    def denied(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(local.pa, "OSFile", denied)
    with pytest.raises(StoreUnavailable):
        recover_tables(catalog)
    monkeypatch.undo()
    assert catalog.load_table("otel.logs").metadata_location == table.metadata_location


def test_a_lost_catalog_is_made_again_with_the_newest_of_each_table(config: Config, catalog: Catalog) -> None:
    tables = [table_with(catalog, name, commits) for name, commits in (("logs", 12), ("spans", 0))]
    ensure_namespace(catalog, "other.deep")
    tables.append(catalog.create_table("other.deep.t", schema=SCHEMA))
    Path(config.warehouse, "otel", "no_table", "metadata").mkdir(parents=True)
    catalog.close()
    config.catalog_file.unlink()
    assert rebuild_catalog(config) == ["otel.logs", "otel.spans", "other.deep.t"]
    with contextlib.closing(open_catalog(config)) as rebuilt:
        assert rows(rebuilt, "logs") == list(range(12))
        for table in tables:
            assert rebuilt.load_table(table.name()).metadata_location == table.metadata_location


def test_of_two_metadata_files_of_one_version_the_later_is_taken_and_it_is_said(
    config: Config, catalog: Catalog
) -> None:
    table = table_with(catalog, "logs", 1)
    rival = json.loads(Path(table.metadata_location).read_bytes())
    rival["last-updated-ms"] += 1
    place = Path(table.metadata_location).with_name("00001-00000000.metadata.json")
    place.write_text(json.dumps(rival))
    catalog.close()
    config.catalog_file.unlink()
    with capture_logs() as logs:
        rebuild_catalog(config)
    assert {"metadata version found twice", "table registered"} == {entry["event"] for entry in logs}
    with contextlib.closing(open_catalog(config)) as rebuilt:
        assert rebuilt.load_table("otel.logs").metadata_location == str(place)


def test_a_catalog_that_knows_tables_is_not_rebuilt(config: Config, catalog: Catalog) -> None:
    table_with(catalog, "logs", 0)
    with pytest.raises(ConfigError, match="already has 1 tables"):
        rebuild_catalog(config)


def test_a_rest_catalog_is_not_rebuilt_from_here(tmp_path: Path) -> None:
    lake = {"catalog": {"type": "rest", "rest": {"uri": "http://127.0.0.1:9"}}}
    with pytest.raises(ConfigError, match="REST"):
        rebuild_catalog(Config.model_validate({"data_dir": tmp_path, "lake": lake}))


def test_doctor_rebuilds_the_catalog_when_asked(
    config: Config, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table_with(catalog, "logs", 1)
    catalog.close()
    config.catalog_file.unlink()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRAZIL_DATA_DIR", str(config.data_dir))
    monkeypatch.setattr("frazil.doctor.run_checks", lambda config: [])
    result = CliRunner().invoke(app, ["doctor", "--rebuild-catalog"])
    assert result.exit_code == 0, result.output
    assert "registered otel.logs" in result.stderr
    with contextlib.closing(open_catalog(config)) as rebuilt:
        assert rows(rebuilt, "logs") == [0]
