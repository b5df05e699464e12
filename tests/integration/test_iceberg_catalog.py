"""Real engines read the lake of another process through its Iceberg catalog, and change nothing."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pyarrow as pa
import pytest
from botocore.exceptions import ClientError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import ForbiddenError, NoSuchTableError, UnauthorizedError
from pyspark.sql import SparkSession

from frazil.config import Config
from frazil.keys import new_key
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.tables import open_table
from frazil.otlp.decode import conform
from frazil.tables import landed_spec
from tests.components.process import answers, serving
from tests.components.s3 import S3Server
from tests.support.integration.documented import block
from tests.support.spark.land_lake import DECODERS, UNCLOSED_SOCKETS, _httpfs, canonical_rows

pytestmark = pytest.mark.filterwarnings(UNCLOSED_SOCKETS)
RECEIVED = 1_790_000_000_123_456_789
HOUR = 3_600_000_000_000
TENANTS = ("default", "team-a", "Team.B_2")
APPENDS = 3
DEEP = ("company", "team", "deep")
OFFLINE = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
NUMBERS = pa.table({"a": [1, 2, 3], "name": ["a b/c=d", "100% +ü", "~!*'()&?#"]})
"""Partitioned by name: the files' own names need care in URLs."""


@dataclass(frozen=True)
class Served:
    """A lake with known rows, and the catalog that another process serves of it."""

    config: Config
    url: str
    admin: str
    reader: str
    logs: pa.Table

    def properties(self, **more: str) -> dict[str, str]:
        return {"type": "rest", "uri": f"{self.url}/iceberg", "token": self.admin, **more}

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def request(self, method: str, path: str, *, key: str | None = None, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.admin if key is None else key}"}
        return httpx.request(method, f"{self.url}/iceberg{path}", headers=headers, verify=False, **options)

    def credential(self) -> dict[str, str]:
        """What comes with a table."""
        found: dict[str, str] = self.get("/v1/namespaces/otel/tables/logs").json()["config"]
        return found


def log_rows(number: int) -> pa.Table:
    """As landing makes them: of several tenants and days, with maps and lists in them."""
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add()
    resource.resource.attributes.add(key="service.name", value={"string_value": f"service {number}"})
    scope = resource.scope_logs.add()
    for hours in range(40):
        record = scope.log_records.add(
            time_unix_nano=RECEIVED - hours * HOUR, body={"string_value": f"{number}, {hours} hours ago"}
        )
        record.attributes.add(key="answer", value={"int_value": hours})
    sent = [request.SerializeToString()] * len(TENANTS)
    decoded = DECODERS["logs"].decode(sent, list(TENANTS), [RECEIVED] * len(TENANTS))
    table = conform(decoded.table, DECODERS["logs"].spec)
    segment = pa.array([f"stream/{number}"] * table.num_rows)
    table = table.append_column(pa.field("_segment", pa.string(), nullable=False), segment)
    return table.cast(landed_spec("logs").arrow_schema)


def append(catalog: Catalog, rows: pa.Table) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Parquet writer option.*bloom-filter")
        catalog.load_table("otel.logs").append(rows)


def make_lake(config: Config) -> pa.Table:
    rows = [log_rows(number) for number in range(APPENDS)]
    with contextlib.closing(open_catalog(config)) as catalog:
        ensure_namespace(catalog, "otel")
        open_table(catalog, "otel", landed_spec("logs"), "at 0")
        for each in rows:
            append(catalog, each)
        ensure_namespace(catalog, ".".join(DEEP))
        deep = catalog.create_table((*DEEP, "numbers"), schema=NUMBERS.schema)
        with deep.update_spec() as spec:
            spec.add_identity("name")
        deep.append(NUMBERS)
    return pa.concat_tables(rows)


@contextlib.contextmanager
def served(folder: Path, lake: dict[str, Any]) -> Iterator[Served]:
    (admin, admin_hash), (reader, reader_hash) = new_key("default"), new_key("default")
    keys = [
        {"name": "boss", "tenant": "default", "hash": admin_hash, "roles": ["admin"]},
        {"name": "reader", "tenant": "default", "hash": reader_hash, "roles": ["read", "write"]},
    ]
    settings = {"data_dir": str(folder / "data"), "lake": lake, "auth": {"keys": keys}}
    file = folder / "config.json"
    file.write_text(json.dumps(settings))
    config = Config.model_validate(settings)
    logs = make_lake(config)

    def command(port: int) -> list[str | Path]:
        return [sys.executable, "-m", "tests.support.integration.iceberg_process", str(port), file]

    def ready(port: int) -> bool:
        return answers(port, "/iceberg/v1/config", lambda status: status == 401)

    with serving("iceberg", folder, command, ready=ready) as port:
        yield Served(config, f"http://127.0.0.1:{port}", admin, reader, logs)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("a lake=100% +ü"), {}) as running:
        yield running


def same_rows(found: pa.Table, expected: pa.Table) -> bool:
    return canonical_rows("logs", found) == canonical_rows("logs", expected)


def test_pyiceberg_reads_every_row_of_the_lake(lake: Served) -> None:
    with contextlib.closing(load_catalog("remote", **lake.properties())) as remote:
        assert remote.list_namespaces() == [("company",), ("otel",)]
        assert remote.list_namespaces(("company", "team")) == [DEEP]
        assert remote.list_tables("otel") == [("otel", "logs")]
        table = remote.load_table("otel.logs")
        assert table.location().startswith("s3://iceberg/files/")
        assert same_rows(table.scan().to_arrow(), lake.logs)
        assert table.scan(row_filter="tenant_id = 'team-a'").to_arrow().num_rows == 40 * APPENDS
        old = table.snapshots()[2]
        assert table.scan(snapshot_id=old.snapshot_id).to_arrow().num_rows == 2 * 40 * len(TENANTS)
        deep = remote.load_table((*DEEP, "numbers")).scan().to_arrow()
        assert deep.sort_by("a").to_pydict() == NUMBERS.to_pydict()
        with pytest.raises(NoSuchTableError):
            remote.load_table("otel.nothing")
        assert not remote.table_exists("otel.nothing")
        assert remote.table_exists("otel.logs")
        assert remote.list_views("otel") == []


# Sees addresses alone, so it can read on any machine.
_ELSEWHERE = """
import json, sys
from pyiceberg.catalog import load_catalog
table = load_catalog("remote", **json.loads(sys.stdin.read())).load_table("otel.logs")
files = [task.file.file_path for task in table.scan().plan_files()]
assert all(file.startswith("s3://") for file in files), files
print(table.scan().to_arrow().num_rows)
"""


def test_a_process_elsewhere_reads_the_lake_without_the_servers_paths(lake: Served, tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-I", "-c", _ELSEWHERE],
        cwd=tmp_path,
        input=json.dumps(lake.properties()),
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert said.stdout.split() == [str(lake.logs.num_rows)], said.stderr


def test_on_the_same_machine_plain_paths_can_be_asked_for(lake: Served) -> None:
    with contextlib.closing(load_catalog("here", **lake.properties(warehouse="local"))) as here:
        table = here.load_table("otel.logs")
        assert table.location().startswith(lake.config.warehouse)
        assert same_rows(table.scan().to_arrow(), lake.logs)


S3 = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}


def spark_catalog(lake: Served, spark: SparkSession, **more: str) -> tuple[SparkSession, str]:
    """A session, and the name of the catalog in it."""
    session = spark.newSession()
    name = f"remote_{uuid.uuid4().hex}"
    session.conf.set(f"spark.sql.catalog.{name}", "org.apache.iceberg.spark.SparkCatalog")
    for key, value in lake.properties(**more).items():
        session.conf.set(f"spark.sql.catalog.{name}.{key}", value)
    return session, name


@pytest.mark.slow
def test_spark_reads_every_row_of_the_lake(lake: Served, spark: SparkSession) -> None:
    session, name = spark_catalog(lake, spark, **S3)
    assert same_rows(session.table(f"{name}.otel.logs").toArrow(), lake.logs)
    by_tenant = session.sql(f"SELECT count(*) FROM {name}.otel.logs WHERE tenant_id = 'team-a'")
    assert by_tenant.collect()[0][0] == 40 * APPENDS
    files = session.sql(f"SELECT file_path FROM {name}.otel.logs.files").toArrow()["file_path"].to_pylist()
    assert all(file.startswith("s3://iceberg/files/") for file in files)
    assert session.sql(f"SELECT * FROM {name}.otel.logs.history").count() == APPENDS + 1
    deep = session.sql(f"SELECT * FROM {name}.company.team.deep.numbers ORDER BY a").toArrow()
    assert deep.to_pydict() == NUMBERS.to_pydict()
    assert session.sql(f"SHOW TABLES IN {name}.otel").collect()[0]["tableName"] == "logs"


@pytest.mark.slow
@pytest.mark.parametrize("properties", [S3, {"warehouse": "local"}], ids=["remote", "local"])
def test_spark_refuses_writes_as_read_only_and_runs_no_job(
    lake: Served, spark: SparkSession, properties: dict[str, str]
) -> None:
    session, name = spark_catalog(lake, spark, **properties)
    table, group = f"{name}.otel.logs", uuid.uuid4().hex
    session.sparkContext.setJobGroup(group, "writes")
    before = sorted(Path(lake.config.warehouse).rglob("*"))
    try:
        for write in (
            f"DELETE FROM {table} WHERE tenant_id = 'team-a'",
            f"DELETE FROM {table} WHERE body LIKE '%3 hours%'",
            f"DELETE FROM {table}",
            f"TRUNCATE TABLE {table}",
            f"UPDATE {table} SET body = 'x' WHERE body LIKE '%3%'",
            f"MERGE INTO {table} a USING {table} b ON a.body = b.body WHEN MATCHED THEN DELETE",
            f"INSERT INTO {table} SELECT * FROM {table}",
            f"INSERT OVERWRITE {table} SELECT * FROM {table}",
            f"ALTER TABLE {table} ADD COLUMN x int",
            f"DROP TABLE {table}",
            f"DROP TABLE {table} PURGE",
            f"CREATE TABLE {name}.otel.mine (a int)",
            f"CREATE TABLE {name}.otel.mine AS SELECT 1 AS a",
            f"CREATE NAMESPACE {name}.mine",
        ):
            with pytest.raises(Exception, match="read-only"):
                session.sql(write)
        assert session.sparkContext.statusTracker().getJobIdsForGroup(group) == []
        assert session.table(table).count() == lake.logs.num_rows
        assert session.sparkContext.statusTracker().getJobIdsForGroup(group) != []
    finally:
        session.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    assert sorted(Path(lake.config.warehouse).rglob("*")) == before


def test_duckdb_reads_the_data_files_with_the_credentials_of_the_table(lake: Served) -> None:
    with contextlib.closing(load_catalog("remote", **lake.properties())) as remote:
        files = [task.file.file_path for task in remote.load_table("otel.logs").scan().plan_files()]
    given = lake.credential()
    with contextlib.closing(duckdb.connect(config=OFFLINE)) as engine:
        engine.execute(f"LOAD '{_httpfs()}'")
        engine.execute(
            f"CREATE SECRET (TYPE s3, KEY_ID '{given['s3.access-key-id']}', USE_SSL false, URL_STYLE 'path', "
            f"SECRET '{given['s3.secret-access-key']}', SESSION_TOKEN '{given['s3.session-token']}', "
            f"REGION '{given['s3.region']}', ENDPOINT '{given['s3.endpoint'].removeprefix('http://')}')"
        )
        query = "SELECT count(*), count(DISTINCT body) FROM read_parquet($files, hive_partitioning = false)"
        assert engine.execute(query, {"files": files}).fetchone() == (lake.logs.num_rows, 40 * APPENDS)


@contextlib.contextmanager
def attached(lake: Served, attachment: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with the catalog, attached by a statement that uses the secret `frazil`."""
    extensions = [pytest.importorskip(f"duckdb_extension_{name}") for name in ("avro", "iceberg")]
    with contextlib.closing(duckdb.connect(config=OFFLINE)) as engine:
        engine.execute(f"LOAD '{_httpfs()}'")
        for extension in extensions:
            file = next(Path(extension.__file__).parent.rglob("*.duckdb_extension"))
            engine.execute(f"LOAD '{file}'")
        engine.execute(f"CREATE SECRET frazil (TYPE iceberg, TOKEN '{lake.admin}')")
        engine.execute(attachment)
        engine.execute("SET TimeZone = 'UTC'")
        yield engine


def test_duckdb_attaches_the_catalog(lake: Served) -> None:
    attachment = f"ATTACH 'frazil' AS lake (TYPE iceberg, ENDPOINT '{lake.url}/iceberg', SECRET frazil)"
    with attached(lake, attachment) as engine:
        assert same_rows(engine.execute("SELECT * FROM lake.otel.logs").to_arrow_table(), lake.logs)


def test_who_has_no_admin_key_sees_nothing(lake: Served) -> None:
    paths = [
        "/v1/config",
        "/v1/namespaces",
        "/v1/local/namespaces",
        "/v1/namespaces/otel",
        "/v1/namespaces/otel/tables",
        "/v1/namespaces/otel/views",
        "/v1/namespaces/otel/tables/logs",
        "/v1/local/namespaces/otel/tables/logs",
        "/v1/namespaces/otel/tables/nothing",
    ]
    for path in paths:
        for key, status, kind in (
            ("fz_wrong", 401, "NotAuthorizedException"),
            (lake.reader, 403, "ForbiddenException"),
        ):
            answer = lake.get(path, key=key)
            assert answer.status_code == status, path
            assert answer.json()["error"].keys() == {"message", "type", "code"}
            assert (answer.json()["error"]["type"], answer.json()["error"]["code"]) == (kind, status)
    with pytest.raises(UnauthorizedError):
        load_catalog("remote", **lake.properties(token="fz_wrong"))
    with pytest.raises(ForbiddenError):
        load_catalog("remote", **lake.properties(token=lake.reader))


def test_every_write_is_refused_and_changes_nothing(lake: Served) -> None:
    def state() -> Any:
        files = sorted(str(path) for path in Path(lake.config.warehouse).rglob("*"))
        return (
            files,
            lake.get("/v1/local/namespaces/otel/tables/logs").json(),
            lake.get("/v1/namespaces").json(),
        )

    before = state()
    table = "/v1/namespaces/otel/tables/logs"
    writes = [
        ("POST", "/v1/namespaces"),
        ("DELETE", "/v1/namespaces/otel"),
        ("POST", "/v1/namespaces/otel/properties"),
        ("POST", "/v1/namespaces/otel/tables"),
        ("POST", "/v1/namespaces/otel/register"),
        ("POST", table),
        ("DELETE", f"{table}?purgeRequested=true"),
        ("POST", "/v1/tables/rename"),
        ("POST", "/v1/transactions/commit"),
        ("POST", "/v1/local/namespaces/otel/tables/logs"),
        ("POST", "/v1/namespaces/otel/views"),
    ]
    for method, path in writes:
        body = {"json": {"requirements": [], "updates": []}} if method == "POST" else {}
        answer = lake.request(method, path, **body)
        assert answer.status_code == 403, path
        assert answer.json()["error"] == {
            "message": "read-only; frazil pipeline writes",
            "type": "ForbiddenException",
            "code": 403,
        }
        assert lake.request(method, path, key="fz_wrong", **body).status_code == 401
    with contextlib.closing(load_catalog("remote", **lake.properties())) as remote:
        with pytest.raises(ForbiddenError, match="read-only"):
            remote.drop_table("otel.logs")
        with pytest.raises(OSError, match="ACCESS_DENIED"):
            append(remote, log_rows(9))
    assert state() == before


def test_the_metadata_is_what_the_file_holds(lake: Served) -> None:
    here = lake.get("/v1/local/namespaces/otel/tables/logs").json()
    stored = json.loads(Path(here["metadata-location"]).read_bytes())
    refusing = {name for name, value in here["metadata"]["properties"].items() if "read-only" in value}
    assert refusing and all(name.startswith("write.") for name in refusing)  # noqa: PT018
    for metadata in (here["metadata"], stored):
        metadata["properties"] = {
            name: value for name, value in metadata["properties"].items() if name not in refusing
        }
    assert here["metadata"] == stored
    assert here["config"] == {}
    assert len(here["metadata"]["snapshots"]) == APPENDS + 1
    refs = lake.get("/v1/local/namespaces/otel/tables/logs?snapshots=refs").json()["metadata"]
    named = {ref["snapshot-id"] for ref in here["metadata"]["refs"].values()}
    assert {each["snapshot-id"] for each in refs["snapshots"]} == named
    assert len(named) < APPENDS + 1
    there = lake.get("/v1/namespaces/otel/tables/logs").json()
    assert lake.config.warehouse not in json.dumps(there, ensure_ascii=False)


def test_an_oauth2_client_is_told_to_send_its_key(lake: Served) -> None:
    answer = httpx.post(f"{lake.url}/iceberg/v1/oauth/tokens", data={"grant_type": "client_credentials"})
    assert answer.status_code == 400
    assert "`token`" in answer.json()["error_description"]


def test_files_are_given_only_to_who_signs_for_them(lake: Served) -> None:
    table = lake.get("/v1/namespaces/otel/tables/logs").json()
    key = table["metadata-location"].removeprefix("s3://iceberg/")
    given = table["config"]
    right = S3Server(lake.url, given["s3.access-key-id"], given["s3.secret-access-key"])
    with contextlib.closing(right.client()) as client:
        content = client.get_object(Bucket="iceberg", Key=key)["Body"].read()
        assert json.loads(content) == table["metadata"]
        assert client.head_object(Bucket="iceberg", Key=key)["ContentLength"] == len(content)
        for outside in ("files/../catalog.db", "files/../../config.json", "files/../iceberg.secret"):
            with pytest.raises(ClientError, match="AccessDenied"):
                client.get_object(Bucket="iceberg", Key=outside)
        with pytest.raises(ClientError, match="AccessDenied"):
            client.put_object(Bucket="iceberg", Key=key, Body=b"")
    with (
        contextlib.closing(replace(right, secret_key="wrong").client()) as client,
        pytest.raises(ClientError, match="SignatureDoesNotMatch"),
    ):
        client.get_object(Bucket="iceberg", Key=key)
    assert lake.get(f"/{key}").status_code == 403


def test_tables_on_s3_come_with_the_address_of_the_store_and_no_secrets(
    tmp_path: Path, moto_s3: S3Server
) -> None:
    bucket = moto_s3.make_bucket(f"lake-{uuid.uuid4().hex}")
    own = {"access_key_id": moto_s3.access_key, "secret_access_key": moto_s3.secret_key}
    s3 = {"endpoint": moto_s3.endpoint, "allow_http": True, **own}
    with served(tmp_path, {"warehouse": f"s3://{bucket}/warehouse", "s3": s3}) as lake:
        assert lake.credential() == {
            "s3.endpoint": moto_s3.endpoint,
            "s3.path-style-access": "true",
            "s3.region": "us-east-1",
            "client.region": "us-east-1",
        }
        keys = {"s3.access-key-id": moto_s3.access_key, "s3.secret-access-key": moto_s3.secret_key}
        with contextlib.closing(load_catalog("remote", **lake.properties(**keys))) as remote:
            table = remote.load_table("otel.logs")
            assert table.location().startswith(f"s3://{bucket}/")
            assert same_rows(table.scan().to_arrow(), lake.logs)
        with attached(lake, documented_attachment(lake, moto_s3)) as engine:
            assert same_rows(engine.execute("SELECT * FROM lake.otel.logs").to_arrow_table(), lake.logs)


def documented_attachment(lake: Served, s3: S3Server) -> str:
    """As docs/engines.md has it, for this store, which speaks HTTP."""
    text = block("docs/engines.md", "CREATE SECRET lake_files").text
    for written, here in {
        "KEY_ID '…'": f"KEY_ID '{s3.access_key}'",
        "SECRET '…'": f"SECRET '{s3.secret_key}'",
        "'s3.example.com'": f"'{s3.endpoint.removeprefix('http://')}', USE_SSL false",
        "http://frazil.example.com:4380": lake.url,
    }.items():
        assert written in text
        text = text.replace(written, here)
    return text
