"""What a question must not reach: tried through the service, and of DuckDB as if nothing stood before it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from frazil.config import Config
from frazil.errors import FrazilError, LimitReached, QueryInvalid, QueryRefused, RequestTooLarge
from frazil.sql.sandbox import Sandbox, Settings, TableSource, without_constants
from frazil.tables import derived_specs
from tests.support.query.small_lake import TENANTS, Service, files_of, rows_of, running, secret_of

FILES = (
    "SELECT * FROM read_parquet('{path}')",
    "SELECT * FROM parquet_scan('{path}')",
    "SELECT * FROM '{path}'",
    'SELECT * FROM "{path}"',
    "FROM '{path}'",
    "SELECT * FROM read_parquet(['{path}'])",
    "SELECT * FROM read_parquet('file://{path}')",
    "SELECT * FROM read_blob('{path}')",
    "SELECT * FROM read_text('{path}')",
    "SELECT * FROM read_csv('{path}')",
    "SELECT * FROM read_csv_auto('{path}')",
    "SELECT * FROM sniff_csv('{path}')",
    "SELECT * FROM read_json('{path}')",
    "SELECT * FROM read_json_objects('{path}')",
    "SELECT * FROM read_ndjson('{path}')",
    "SELECT * FROM read_duckdb('{path}')",
    "SELECT * FROM parquet_metadata('{path}')",
    "SELECT * FROM parquet_schema('{path}')",
    "SELECT * FROM parquet_file_metadata('{path}')",
    "SELECT * FROM parquet_kv_metadata('{path}')",
    "SELECT * FROM parquet_bloom_probe('{path}', 'trace_id', 'x')",
    "SELECT * FROM query_table('{path}')",
    "SELECT * FROM query('FROM ''{path}''')",
    "WITH x AS (FROM '{path}') SELECT * FROM x",
    "SELECT (SELECT count(*) FROM '{path}')",
    "SELECT * FROM (VALUES (1)) v, LATERAL (FROM read_text('{path}'))",
    "SELECT 1 WHERE EXISTS (FROM '{path}')",
    "SUMMARIZE '{path}'",
    "DESCRIBE '{path}'",
    "PIVOT '{path}' ON body USING count(*)",
    "COPY logs TO '{path}.copy'",
    "COPY (SELECT 1) TO '{path}.copy' (FORMAT parquet)",
    "CREATE TABLE t AS FROM '{path}'",
    "EXPLAIN ANALYZE FROM '{path}'",
    "ATTACH '{path}' AS x",
)
NEVER = (
    "COPY logs FROM '/etc/passwd'",
    "EXPORT DATABASE '/tmp/exported'",
    "IMPORT DATABASE '/tmp/exported'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '/tmp/evil.duckdb_extension'",
    "SET memory_limit='100GB'",
    "SET GLOBAL allowed_paths=['/']",
    "SET enable_external_access=true",
    "RESET allowed_directories",
    "RESET enable_external_access",
    "PRAGMA memory_limit='100GB'",
    "SET temp_directory='/tmp/elsewhere'",
    "SELECT * FROM read_text('http://169.254.169.254/latest/meta-data/')",
    "SELECT * FROM 'http://169.254.169.254/latest/meta-data/x.parquet'",
    "SELECT * FROM read_text('https://[fd00:ec2::254]/latest/')",
    "SELECT * FROM read_parquet('s3://other-bucket/x.parquet')",
    "SELECT * FROM read_parquet('hf://datasets/x/y.parquet')",
    "SELECT * FROM read_text('/proc/self/environ')",
    "SELECT * FROM read_text('/proc/self/cmdline')",
    "SELECT * FROM read_blob('/proc/self/fd/0')",
    "SELECT * FROM read_text('/dev/stdin')",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM glob('/proc/self/*')",
    "SELECT getenv('PATH')",
)
"""Refused by both."""
PARSED_AWAY = (
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_views()",
    "SELECT * FROM duckdb_functions()",
    "SELECT * FROM duckdb_logs()",
    "SELECT * FROM duckdb_temporary_files()",
    "SELECT * FROM pg_catalog.pg_views",
    "SELECT * FROM information_schema.views",
    "SELECT * FROM sqlite_master",
    "SELECT * FROM which_secret('s3://x', 's3')",
    "SELECT current_setting('temp_directory')",
    "SELECT getvariable('x')",
    "SELECT write_log('x')",
    "SELECT current_query()",
    "SELECT json_execute_serialized_sql('x')",
    "SELECT * FROM json_execute_serialized_sql('x')",
    "SELECT pg_get_viewdef(1)",
    "SELECT nextval('x')",
    "SELECT * FROM query('SELECT 1')",
    "SELECT * FROM query_table('logs')",
    "SELECT * FROM pragma_version()",
    "SELECT * FROM pragma_table_info('logs')",
    "SELECT * FROM __tail_logs",
    "SELECT * FROM memory.main.logs",
    "SELECT * FROM system.information_schema.tables",
    "SELECT * FROM test_all_types()",
    "CALL pragma_version()",
    "CALL enable_logging()",
    "PRAGMA database_list",
    "PRAGMA show_tables",
    "CREATE SECRET x (TYPE s3)",
    "DROP SECRET x",
    "CREATE MACRO m() AS 1",
    "CREATE TABLE t (i INTEGER)",
    "CREATE VIEW logs AS SELECT 1",
    "DROP VIEW logs",
    "INSERT INTO logs VALUES (1)",
    "UPDATE logs SET body = ''",
    "DELETE FROM logs",
    "TRUNCATE logs",
    "ALTER TABLE logs RENAME TO x",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "USE memory",
    "SET VARIABLE x = 1",
    "ATTACH ':memory:' AS x",
    "CHECKPOINT",
    "VACUUM",
    "BEGIN",
    "EXPLAIN SELECT * FROM logs",
    "EXPLAIN ANALYZE SELECT * FROM logs",
    "SELECT 1; SELECT 2",
    "SELECT 1; COPY logs TO '/tmp/x'",
    "/* SELECT */ COPY logs TO '/tmp/x'",
    "",
    ";",
    "-- nothing",
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("lake")) as service:
        yield service


def settings_in(folder: Path) -> Settings:
    folder.mkdir(exist_ok=True)
    return Settings(1, 256 << 20, 64 << 20, str(folder), "otel")


COLUMNS = [("body", "VARCHAR", 10_000_001), ("event_name", "VARCHAR", 10_000_002)]


@pytest.fixture
def sandbox(service: Service, tmp_path: Path) -> Iterator[Sandbox]:
    """One of the two files of a tenant is planned, the other is not."""
    made = Sandbox(settings_in(tmp_path / "spill"))
    made.fill([TableSource("logs", COLUMNS, [str(files_of(service.config, "acme")[0])], [])])
    yield made
    made.close()


def wal_file(config: Config) -> Path:
    return next(config.wal_dir.glob("logs/*/*.parquet"))


def targets(service: Service) -> dict[str, str]:
    own = files_of(service.config, "acme")
    other = files_of(service.config, "globex")[0]
    return {
        "another tenant's file": str(files_of(service.config, "globex")[0]),
        "an own file that is not planned": str(own[1]),
        "the log": str(wal_file(service.config)),
        "a way up": f"{own[0].parent}/../../tenant_id=globex/{other.parent.name}/{other.name}",
        "a pattern": f"{own[0].parent.parent.parent}/*/*/*.parquet",
        "a pattern of own files": f"{own[0].parent.parent}/*/*.parquet",
        "passwords": "/etc/passwd",
    }


TARGETS = (
    "another tenant's file",
    "an own file that is not planned",
    "the log",
    "a way up",
    "a pattern",
    "a pattern of own files",
    "passwords",
)


@pytest.mark.parametrize("target", TARGETS)
def test_duckdb_alone_opens_no_file_that_was_not_planned(
    service: Service, sandbox: Sandbox, target: str
) -> None:
    path = targets(service)[target]
    for sql in FILES:
        with pytest.raises(duckdb.Error):
            sandbox.connection.execute(sql.format(path=path)).fetchall()
    assert not Path(f"{path}.copy").exists()
    assert sandbox.connection.execute("SELECT count(*) FROM logs").fetchone() == (60,)


@pytest.mark.parametrize("target", TARGETS)
def test_the_parser_lets_no_file_be_named(service: Service, target: str) -> None:
    path = targets(service)[target]
    for sql in FILES:
        with pytest.raises((QueryInvalid, QueryRefused)) as refused:
            service.execute(sql.format(path=path))
        assert secret_of("globex") not in str(refused.value)
    # The same question names a file that is planned, and is refused as well.
    with pytest.raises((QueryInvalid, QueryRefused)):
        service.execute(f"SELECT * FROM read_parquet('{files_of(service.config, 'acme')[0]}')")


@pytest.mark.parametrize("sql", NEVER)
def test_both_layers_refuse_each_by_itself(service: Service, sandbox: Sandbox, sql: str) -> None:
    with pytest.raises(duckdb.Error):
        sandbox.connection.execute(sql).fetchall()
    with pytest.raises((QueryInvalid, QueryRefused)):
        service.execute(sql)


@pytest.mark.parametrize("sql", PARSED_AWAY)
def test_the_parser_refuses_all_but_one_select_of_the_tables(service: Service, sql: str) -> None:
    with pytest.raises((QueryInvalid, QueryRefused)):
        service.execute(sql)


def test_a_service_that_was_attacked_answers_on(service: Service) -> None:
    assert service.execute("SELECT count(*) FROM logs").rows == [[rows_of("acme")]]


def test_duckdb_cannot_be_unlocked(sandbox: Sandbox) -> None:
    for sql in (
        "SET lock_configuration=false",
        "RESET lock_configuration",
        "SET enable_external_access=true",
    ):
        with pytest.raises(duckdb.Error):
            sandbox.connection.execute(sql)
    with pytest.raises(duckdb.Error):
        sandbox.connection.execute("FROM read_text('/etc/passwd')").fetchall()


def test_a_variable_of_the_program_is_no_table(sandbox: Sandbox) -> None:
    leaked = pa.table({"secret": [1]})
    with pytest.raises(duckdb.Error):
        sandbox.connection.execute("SELECT * FROM leaked").fetchall()
    assert leaked.num_rows == 1


def test_duckdb_reads_of_temporary_files_those_of_its_own_question_alone(tmp_path: Path) -> None:
    settings = settings_in(tmp_path / "spill")
    mine, other = Sandbox(settings), Sandbox(settings)
    mine.fill([])
    spilled = Path(other._spill) / "spilled.txt"
    spilled.write_text("of another question")
    try:
        for sql in (f"FROM read_text('{spilled}')", f"FROM glob('{tmp_path}/spill/*/*')"):
            with pytest.raises(duckdb.Error):
                mine.connection.execute(sql).fetchall()
    finally:
        mine.close()
        other.close()
    assert list((tmp_path / "spill").iterdir()) == []


@pytest.mark.parametrize("name", ["a*b", "a?b", "[ab]", "a[!x]b", "{a,b}", "q'uo\"te", "x y%20", "**"])
def test_a_planned_file_is_that_file_whatever_its_name(tmp_path: Path, name: str) -> None:
    names = ["a", "b", "ab", "axb", "a*b", "a?b", name]
    for each in names:
        schema = pa.schema(
            [
                pa.field("body", pa.string(), metadata={"PARQUET:field_id": "1"}),
                pa.field("event_name", pa.string(), metadata={"PARQUET:field_id": "2"}),
            ]
        )
        rows = pa.table({"body": [each], "event_name": [None]}, schema=schema)
        pq.write_table(rows, tmp_path / f"{each}.parquet")
    path = str(tmp_path / f"{name}.parquet")
    columns = [("body", "VARCHAR", 1), ("event_name", "VARCHAR", 2)]
    for files, tail, wanted in (
        ([path], [], [(name,)]),
        ([], [(path, [])], [(name,)]),
        ([], [(path, [(0, 1)])], [(name,)]),
        ([], [(path, [(1, 2)])], []),
    ):
        sandbox = Sandbox(settings_in(tmp_path / "spill"))
        try:
            sandbox.fill([TableSource("logs", columns, files, tail)])
            assert sandbox.connection.execute("SELECT body FROM logs").fetchall() == wanted
        finally:
            sandbox.close()


def test_of_rows_that_wait_only_the_given_ranges_are_read(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{number}.parquet") for number in range(2)]
    for path in paths:
        pq.write_table(pa.table({"body": list("abcdef"), "event_name": list("uvwxyz")}), path)
    columns = [("body", "VARCHAR", 1), ("event_name", "VARCHAR", 2)]
    sandbox = Sandbox(settings_in(tmp_path / "spill"))
    try:
        tail = [(paths[0], []), (paths[1], [(0, 2), (4, 5)])]
        sandbox.fill([TableSource("logs", columns, [], tail)])
        asked = "SELECT string_agg(body, '' ORDER BY body), count(event_name) FROM logs"
        assert sandbox.connection.execute(asked).fetchall() == [("aabbcdeef", 9)]
    finally:
        sandbox.close()


def test_a_link_to_another_tenants_file_is_not_followed_unless_planned(
    service: Service, sandbox: Sandbox, tmp_path: Path
) -> None:
    link = tmp_path / "link.parquet"
    link.symlink_to(files_of(service.config, "globex")[0])
    with pytest.raises(duckdb.Error):
        sandbox.connection.execute(f"FROM read_parquet('{link}')").fetchall()


def test_a_worker_knows_nothing_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    monkeypatch.setenv("FRAZIL_TEST_SECRET", "very-secret")
    with running(tmp_path, filled=False, workers=1) as service:
        worker = next(iter(service.queries._pool._all))
        environment = Path(f"/proc/{worker.pid}/environ").read_bytes()
        arguments = Path(f"/proc/{worker.pid}/cmdline").read_bytes()
    assert b"very-secret" not in environment + arguments


# What is strange in a question itself


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT '\udcff'",
        "SELECT 1 \x00; COPY logs TO '/tmp/x'",
        "\x00",
        "SELECT \x00 1",
        "\ufeffCOPY logs TO '/tmp/x'",
        "ＳＥＬＥＣＴ 1",
        "SELECT 1 --\n; DROP VIEW logs",
        'SELECT * FROM "lo\u0131gs"',
        "SELECT * FROM logs; ;; SELECT 1",
        "SELECT $1",
        "SELECT ?",
        "SELECT E'\\x00'",
        "SELECT " + "-" * 3001 + "1",
        "SELECT " + "NOT " * 5000 + "true",
        "SELECT " + "[" * 2000 + "1" + "]" * 2000,
        "SELECT * FROM " + "(SELECT * FROM " * 2000 + "logs" + ")" * 2000,
        "SELECT " + "+".join(["1"] * 20_000),
        "SELECT " + "||".join(["'a'"] * 8_000),
        "WITH "
        + ", ".join(f"c{n} AS (SELECT * FROM {f'c{n - 1}, c{n - 1} x' if n else 'logs'})" for n in range(40))
        + " SELECT * FROM c39",
        'SELECT 1 AS "' + "x" * 60_000 + '" FROM nowhere',
        "SELECT CASE " + "WHEN 1=2 THEN 1 " * 3000,
        "SELECT {" * 500,
        'SELECT error(\'{"exception_type": "Permission", "exception_message": "/etc/passwd"}\')',
        "SELECT '%s %d {0} {x}'::INTEGER",
    ],
    ids=lambda sql: ascii(sql[:30]),
)
def test_strange_questions_are_refused_and_the_service_answers_on(service: Service, sql: str) -> None:
    with pytest.raises((QueryInvalid, QueryRefused, LimitReached, RequestTooLarge)) as refused:
        service.execute(sql, seconds_max=5.0)
    assert str(service.config.data_dir) not in str(refused.value)
    assert len(str(refused.value)) < 5000
    assert service.execute("SELECT 41 + 1").rows == [[42]]


@pytest.mark.parametrize("terms", [10, 100, 200])
def test_a_long_sum_is_no_attack(service: Service, terms: int) -> None:
    assert service.execute("SELECT " + " + ".join(["1"] * terms)).rows == [[terms]]


def test_huge_names_and_many_columns_are_answered(service: Service) -> None:
    assert service.execute('SELECT 1 AS "' + "x" * 30_000 + '"').rows == [[1]]
    assert len(service.execute("SELECT " + ", ".join(f"{n}" for n in range(5000))).rows[0]) == 5000


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT body::INTEGER FROM logs",
        "SELECT nothing FROM logs",
        "SELECT * FROM nothing",
        "SELECT body + 1 FROM logs",
        "SELECT list_extract(body, 'x') FROM logs",
        "SELECT CAST('x' AS NOTHING)",
        "SELECT * FROM logs ORDER BY nothing",
        "SELECT count(*) FROM logs GROUP BY nothing",
        "SELECT regexp_matches(body, '(') FROM logs",
        "SELECT strptime(body, '%Y') FROM logs",
        "SELECT json_extract(body, '$.x') FROM logs",
        "SELECT error(body) FROM logs",
    ],
)
def test_errors_show_no_path_of_the_server_and_nothing_of_others(service: Service, sql: str) -> None:
    with pytest.raises((QueryInvalid, QueryRefused)) as failed:
        service.execute(sql)
    text = str(failed.value)
    assert not re.search(r"/(tmp|home|root|usr|var|work)/", text), text
    for hidden in ("parquet", "__tail", "globex", "frazil-query", "exception_type"):
        assert hidden not in text


def test_lists_of_tables_show_what_is_there_and_no_more(service: Service) -> None:
    for sql in ("SHOW TABLES", "SELECT table_name FROM information_schema.tables"):
        names = {row[0] for row in service.execute(sql).rows}
        derived = {spec.name for spec in derived_specs()}
        assert names == {"logs", "spans", "metrics", "events", "set_aside"} | derived
    for sql in ("SELECT * FROM information_schema.tables", "SELECT * FROM information_schema.columns"):
        body = service.execute(sql).body.decode()
        assert str(service.config.data_dir) not in body
        assert "parquet" not in body


def test_no_hidden_column_names_a_file(service: Service) -> None:
    for name in ("filename", "file_row_number", "file_index", "rowid", "tenant_id_1", "__segment"):
        with pytest.raises(FrazilError):
            service.execute(f"SELECT {name} FROM logs")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 'hunter2' FROM logs WHERE body = 'hunter2'",
        "SELECT $$hunter2$$",
        "SELECT E'hunter2'",
        "SELECT $tag$hunter2$tag$",
        "SELECT 1 -- hunter2",
        "SELECT 1 /* hunter2 */",
        "SELECT 'it''s hunter2'",
        "SELECT '\\' , 'hunter2'",
        "SELECT 'é', 'hunter2'",
        "SELECT x'hunter2'",
        "SELECT 'hunter2",
        "SELECT 4242 + 4_242, 0x4242, 4242e1, .4242",
    ],
)
def test_the_audit_has_no_constants(sql: str) -> None:
    noted = without_constants(sql)
    assert "hunter2" not in noted
    assert "42" not in noted


# Tenants


@pytest.mark.parametrize("tenant", TENANTS)
def test_a_tenant_sees_its_rows_and_no_others(service: Service, tenant: str) -> None:
    other = next(name for name in TENANTS if name != tenant)
    for table in ("logs", "otel.logs", "spans", "main.spans"):
        told = service.execute(f"SELECT * FROM {table}", tenant)
        assert len(told.rows) == rows_of(tenant)
        assert secret_of(other) not in told.body.decode()
        assert other not in told.body.decode()
        assert (told.stats.files_total, told.stats.tail_rows) == (2, 7 if tenant == "acme" else 4)
        assert service.execute(
            f"SELECT count(*) FROM {table} WHERE tenant_id <> '{tenant}'", tenant
        ).rows == [[0]]
        assert service.execute(f"SELECT count(*) FROM {table} WHERE tenant_id = '{other}'", tenant).rows == [
            [0]
        ]


@pytest.mark.parametrize(
    "tenant", ["nobody", "", "*", "../globex", "acme' OR '1'='1", "ACME", "acme/", "a" * 500]
)
def test_a_tenant_that_has_nothing_sees_nothing(service: Service, tenant: str) -> None:
    told = service.execute("SELECT count(*) FROM logs", tenant)
    assert told.rows == [[0]]
    assert (told.stats.files, told.stats.files_total, told.stats.tail_rows, told.stats.bytes) == (0, 0, 0, 0)
    for table in service.run(service.queries.tables(tenant)):
        assert not table.rows
        assert not table.tail_rows
        assert (table.files, table.bytes, table.first_time, table.last_time) == (0, 0, None, None)


def test_tables_count_the_tenants_own(service: Service) -> None:
    for tenant in TENANTS:
        tables = {table.name: table for table in service.run(service.queries.tables(tenant))}
        told = service.execute("SELECT min(time), max(time) FROM logs WHERE severity_number = 9", tenant)
        assert told.rows
        logs = tables["logs"]
        assert (logs.rows or 0) + (logs.tail_rows or 0) == rows_of(tenant)
        assert logs.files == 2
        size = sum(os.path.getsize(path) for path in files_of(service.config, tenant))
        assert logs.bytes == size
