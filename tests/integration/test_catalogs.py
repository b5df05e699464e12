"""Every kind of catalog with every kind of warehouse: real servers, real processes."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update import AssertRefSnapshotId, SetPropertiesUpdate

from frazil.config import Config
from frazil.errors import CatalogUnavailable
from frazil.lake.catalog import catalog_errors, ensure_namespace, open_catalog, open_existing_catalog
from frazil.lake.files import LakeFileIO
from frazil.lake.pyiceberg_compat import catalogs
from frazil.lake.tables import PromotedCheck, check_promoted, open_table
from frazil.tables import Promoted, landed_spec
from tests.components.iceberg_rest import RestCatalogServer
from tests.components.postgres import PostgresServer
from tests.components.process import dies_with_parent
from tests.components.s3 import S3Server

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])
ROUNDS = 8
PROCESSES = 3


def s3_settings(s3: S3Server) -> dict[str, Any]:
    return {
        "endpoint": s3.endpoint,
        "access_key_id": s3.access_key,
        "secret_access_key": s3.secret_key,
        "allow_http": True,
    }


@pytest.fixture(params=["sqlite", "postgres", "rest"])
def catalog_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["folder", "s3"])
def lake(request: pytest.FixtureRequest, catalog_type: str) -> dict[str, Any]:
    """The configuration's section. Servers are started only for those who need them."""

    def server(name: str) -> Any:
        return request.getfixturevalue(name)

    lake: dict[str, Any] = {"catalog": {"type": catalog_type}}
    if request.param == "s3":
        s3: S3Server = server("moto_s3")
        lake["s3"] = s3_settings(s3)
        if catalog_type != "rest":
            lake["warehouse"] = f"s3://{s3.make_bucket(f'lake-{uuid.uuid4().hex}')}/warehouse"
    if catalog_type == "postgres":
        postgres: PostgresServer = server("postgres_server")
        lake["catalog"]["postgres"] = {"uri": postgres.make_database(f"catalog-{uuid.uuid4().hex}")}
    if catalog_type == "rest":
        rest: RestCatalogServer = server("rest_catalog_on_s3" if request.param == "s3" else "rest_catalog")
        lake["catalog"]["rest"] = {"uri": rest.uri}
    return lake


def test_a_table_is_made_written_and_read_back_by_another(tmp_path: Path, lake: dict[str, Any]) -> None:
    config = Config.model_validate({"data_dir": tmp_path, "lake": lake})
    namespace = f"n{uuid.uuid4().hex}.otel"
    with contextlib.closing(open_catalog(config)) as catalog:
        ensure_namespace(catalog, namespace)
        table = catalog.create_table(f"{namespace}.logs", schema=SCHEMA)
        assert isinstance(table.io, LakeFileIO)
        for number in range(3):
            table.append(pa.table({"a": [number], "b": [f"b{number}"]}, schema=SCHEMA))
        old = catalog.load_table(f"{namespace}.logs")
        table.append(pa.table({"a": [3], "b": ["b3"]}, schema=SCHEMA))
    with contextlib.closing(open_catalog(config)) as other:
        ensure_namespace(other, namespace)
        found = other.load_table(f"{namespace}.logs")
        assert isinstance(found.io, LakeFileIO)
        assert found.scan(row_filter="a > 1").to_arrow().sort_by("a").to_pydict() == {
            "a": [2, 3],
            "b": ["b2", "b3"],
        }
        assert old.scan().to_arrow().num_rows == 3
        found.io.delete(found.metadata_location)
        assert not found.io.new_input(found.metadata_location).exists()


def test_a_commit_whose_requirement_no_longer_holds_changes_nothing(
    tmp_path: Path, lake: dict[str, Any]
) -> None:
    config = Config.model_validate({"data_dir": tmp_path, "lake": lake})
    namespace = f"n{uuid.uuid4().hex}"
    with (
        contextlib.closing(open_catalog(config)) as one,
        contextlib.closing(open_catalog(config)) as two,
    ):
        ensure_namespace(one, namespace)
        first = one.create_table(f"{namespace}.logs", schema=SCHEMA)
        second = two.load_table(f"{namespace}.logs")
        first.append(pa.table({"a": [1], "b": ["one"]}, schema=SCHEMA))
        empty = AssertRefSnapshotId(ref="main", snapshot_id=None)
        with pytest.raises(CommitFailedException):
            two.commit_table(second, (empty,), (SetPropertiesUpdate(updates={"late": "yes"}),))
        assert two.load_table(f"{namespace}.logs").properties.get("late") is None


def test_promoted_columns_are_compared_with_the_tables_and_nothing_is_made_for_it(
    tmp_path: Path, lake: dict[str, Any]
) -> None:
    lake["namespace"] = namespace = f"n{uuid.uuid4().hex}"
    config = Config.model_validate({"data_dir": tmp_path, "lake": lake})
    wanted = (Promoted("retries", type="int"),)
    assert check_promoted(config, wanted) == PromotedCheck()
    assert list(tmp_path.iterdir()) == []
    if config.lake.catalog.type != "rest":
        assert open_existing_catalog(config) is None
    with contextlib.closing(open_catalog(config)) as catalog:
        ensure_namespace(catalog, namespace)
        open_table(catalog, namespace, landed_spec("spans", (Promoted("retries"),)), "at 0")
    found = check_promoted(config, wanted)
    assert found.unchecked == ""
    assert [problem.partition(",")[0] for problem in found.problems] == [
        f"tables.promoted: column retries has type string in {namespace}.spans"
    ]
    assert check_promoted(config, (Promoted("retries"),)) == PromotedCheck()


# Opens a new catalog whenever it is told to go, as several processes of frazil do on their first start.
_OPENER = """
import contextlib, sys
from frazil.config import Config
from frazil.lake.catalog import ensure_namespace, open_catalog

for _ in range(int(sys.argv[1])):
    print("ready", flush=True)
    config = Config.model_validate_json(sys.stdin.readline())
    with contextlib.closing(open_catalog(config)) as catalog:
        ensure_namespace(catalog, "company.otel")
        print(catalog.namespace_exists("company.otel"), flush=True)
"""


def test_several_processes_may_make_the_catalog_at_once(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    catalogs: list[dict[str, Any]] = [{"type": "sqlite"}] * ROUNDS
    for _ in range(ROUNDS):
        uri = postgres_server.make_database(f"new-{uuid.uuid4().hex}")
        catalogs.append({"type": "postgres", "postgres": {"uri": uri}})
    command = dies_with_parent([sys.executable, "-c", _OPENER, str(len(catalogs))])
    with contextlib.ExitStack() as stack:
        openers = [
            stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in range(PROCESSES)
        ]
        for number, catalog in enumerate(catalogs):
            config = {"data_dir": str(tmp_path / str(number)), "lake": {"catalog": catalog}}
            assert [_line(opener) for opener in openers] == ["ready"] * PROCESSES
            for opener in openers:
                _tell(opener, json.dumps(config))
            assert [_line(opener) for opener in openers] == ["True"] * PROCESSES, catalog["type"]


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _tell(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{text}\n")
    process.stdin.flush()


def test_a_catalog_that_takes_connections_and_says_nothing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogs, "RESPONSE_SECONDS_MAX", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        rest = {"uri": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        config = Config.model_validate(
            {"data_dir": tmp_path, "lake": {"catalog": {"type": "rest", "rest": rest}}}
        )
        began = time.monotonic()
        with pytest.raises(CatalogUnavailable, match="timed out"):
            open_catalog(config)
    assert time.monotonic() - began < 5


def test_a_database_whose_connections_were_cut_is_reached_again(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    name = f"cut-{uuid.uuid4().hex}"
    catalog_section = {"type": "postgres", "postgres": {"uri": postgres_server.make_database(name)}}
    config = Config.model_validate({"data_dir": tmp_path, "lake": {"catalog": catalog_section}})
    with contextlib.closing(open_catalog(config)) as catalog:
        ensure_namespace(catalog, "otel")
        with contextlib.closing(postgres_server.connect()) as admin, admin.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
            )
            assert cursor.rowcount > 0
        with catalog_errors():
            assert catalog.list_namespaces() == [("otel",)]
