"""Every code block of the documentation is run by a test or says here why it is not.

Blocks that read data run on one stack (documented.py) after a compaction, and give what the API gives.
"""

from __future__ import annotations

import ast
import contextlib
import datetime as dt
import importlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyiceberg.table.snapshots import Snapshot
from pyspark.sql import SparkSession

from frazil.config import load_config
from frazil.demo import DemoOptions, VirtualClock, run_demo
from frazil.lake.catalog import open_catalog
from frazil.lake.tags import create_tag
from frazil.pipeline.jars import EVERY
from tests.support.integration.api import running_api
from tests.support.integration.documented import (
    COMPACTS_EARLY,
    ROOT,
    RUN,
    Block,
    Stack,
    block,
    documented_blocks,
    runs,
)
from tests.support.integration.known_faults import SECOND, KnownFaults
from tests.support.spark.land_lake import UNCLOSED_SOCKETS

DEMO_SECONDS = 30
DIAGRAM, OUTPUT = "a diagram", "an output, not an input"
STARTS_ALL = "starts all roles in the foreground; tests/browser runs `frazil up`"
MAKES_A_KEY = "makes a key, reads no data; tests/unit/test_keys.py"
NEEDS_TRINO = "needs Trino, which is not among the tests' components"
ENGINES = "tests/integration/test_engines.py"
PARTIAL_ROWS = "tests/unit/query/test_engines_merge_rows.py"
OF_DERIVED = "tests/unit/query/test_documented_derived.py"
ROLLUPS = "tests/unit/query/test_engines_merge_rollups.py"

ELSEWHERE = {
    ("docs/cookbook.md", "frazil query"): "tests/integration/test_cookbook.py",
    ("docs/cookbook.md", "frazil tag create"): "tests/integration/test_cookbook.py",
    ("docs/backup.md", "mkdir frazil-pin"): "tests/integration/test_backup.py",
    ("docs/backup.md", "tar -C frazil-pin"): "tests/integration/test_backup.py",
    ("docs/backup.md", "if [ -e frazil-data ]"): "tests/integration/test_backup.py",
    ("docs/quickstart.md", "export OTEL_EXPORTER_OTLP_ENDPOINT"): "tests/integration/test_quickstart.py",
    ("docs/quickstart.md", "from opentelemetry._logs"): "tests/integration/test_quickstart.py",
    ("docs/engines.md", "from pyiceberg.catalog"): ENGINES,
    ("docs/engines.md", "import pyarrow.compute"): ENGINES,
    ("docs/engines.md", "import polars"): ENGINES,
    ("docs/engines.md", "INSTALL iceberg"): ENGINES,
    ("docs/engines.md", "-- DuckDB: an attribute"): ENGINES,
    ("docs/engines.md", "import importlib"): ENGINES,
    ("docs/engines.md", "CREATE SECRET lake_files"): "tests/integration/test_iceberg_catalog.py",
    ("docs/engines.md", "pyspark"): ENGINES,
    ("docs/engines.md", "-- Spark: an attribute"): ENGINES,
    ("docs/engines.md", "CREATE TEMPORARY FUNCTION kind_name"): ENGINES,
    ("docs/engines.md", "-- DuckDB: calls, errors"): PARTIAL_ROWS,
    ("docs/engines.md", "-- DuckDB: how many distinct"): "tests/unit/pipeline/derive/test_cardinality.py",
    ("docs/engines.md", "import math"): PARTIAL_ROWS,
    ("docs/engines.md", "from frazil.sql.merging"): PARTIAL_ROWS,
    ("docs/engines.md", "-- DuckDB, Spark and Trino (with their table names): records"): ROLLUPS,
    ("docs/engines.md", "-- DuckDB, Spark and Trino (with their table names): average"): ROLLUPS,
    ("docs/engines.md", "-- DuckDB, Spark and Trino (with their table names)\n"): OF_DERIVED,
    ("docs/querying.md", "SELECT time, service_name, sum(rate)"): OF_DERIVED,
    ("docs/querying.md", "-- The 99th percentile of a histogram"): OF_DERIVED,
    ("docs/views.md", "-- views/checkout_by_region.sql"): OF_DERIVED,
    ("docs/views.md", "SELECT region"): OF_DERIVED,
    ("docs/engines.md", "# polars\n"): ROLLUPS,
    ("docs/engines.md", "# polars: the same gauges."): ROLLUPS,
}
"""Blocks that another test reads from the page and runs. test_cookbook.py runs all SQL of docs/cookbook.md,
after a compaction too."""

NOT_RUN = {
    ("README.md", "make run"): STARTS_ALL,
    ("README.md", " SDKs, Collectors"): DIAGRAM,
    ("README.md", "frazil.yaml:2:3:"): OUTPUT,
    ("docs/api.md", '{"traces": [{"trace_id",'): OUTPUT,
    ("docs/api.md", '{"from", "to", "first_bucket", "bucket_seconds": 15,'): OUTPUT,
    (
        "docs/backup.md",
        "frazil doctor --rebuild-catalog",
    ): "repairs, reads no data; tests/unit/test_doctor.py",
    ("docs/design.md", " SDKs, Collectors"): DIAGRAM,
    ("docs/engines.md", "frazil keys new"): MAKES_A_KEY,
    ("docs/engines.md", "curl -sS"): "prints SQL, reads no data; tests/unit/serve/test_pages.py",
    ("docs/engines.md", "connector.name=iceberg"): NEEDS_TRINO,
    ("docs/engines.md", "SELECT service_name"): NEEDS_TRINO,
    ("docs/engines.md", "WITH\nFUNCTION"): NEEDS_TRINO,
    ("docs/engines.md", "-- Trino: the same."): f"{NEEDS_TRINO}; compared with DuckDB's in {PARTIAL_ROWS}",
    ("docs/engines.md", "-- Spark: the same."): f"compared with DuckDB's in {PARTIAL_ROWS}",
    ("docs/erasure.md", "frazil erase"): "deletes rows; tests/unit/pipeline/maintain/test_erase.py",
    ("docs/operations.md", '{"ok": false, "role": "receiver"'): OUTPUT,
    (
        "docs/landing.md",
        "exporters:",
    ): "configures a Collector with Kafka; tests/integration/test_interop_kafka.py",
    (
        "docs/maintenance.md",
        "frazil maintain --dry-run",
    ): "changes tables; tests/integration/test_maintain_*.py",
    (
        "docs/maintenance.md",
        "frazil maintain fill",
    ): "changes tables; tests/unit/pipeline/maintain/test_fill.py",
    ("docs/querying.md", "service_name     n"): OUTPUT,
    ("docs/quickstart.md", "make run"): STARTS_ALL,
    (
        "docs/runbook.md",
        "frazil status",
    ): "shows the health of roles, reads no data; tests/integration/test_status.py",
    (
        "docs/sending.md",
        "export OTEL_EXPORTER_OTLP_ENDPOINT",
    ): "configures an SDK; tests/integration/test_sdk.py",
    (
        "docs/sending.md",
        "export OTEL_SEMCONV",
    ): "configures an SDK; tests/integration/test_older_conventions.py",
    ("docs/sending.md", "exporters:"): "configures a Collector; tests/integration/test_collector.py",
    ("docs/sending.md", "frazil keys new"): MAKES_A_KEY,
    ("docs/tuning.md", "CPU to receive"): "arithmetic; tests/unit/test_docs.py",
    ("docs/upgrading.md", "git pull"): "installs a release",
}
"""Why a block is not run."""

STATEMENTS = {
    ("README.md", "-- The slowest operations"): {},
    ("README.md", "-- Error rate and p99"): {},
    ("docs/querying.md", "-- Rows that contain all words"): {},
    ("docs/querying.md", "SELECT service_name, sum(calls)"): {},
    ("docs/self-observability.md", "-- time spent per query stage"): {"frazil-api": "cart"},
}
"""Blocks of SQL for frazil, and what is put in place of names that the demo does not have."""
RUN.update(STATEMENTS)
CONFIGURATIONS = [
    each
    for each in documented_blocks()
    if each.language == "yaml" and not each.text.startswith("exporters:")  # those are of a Collector
]
slow = pytest.mark.slow


def _statements() -> list[Any]:
    found = []
    for (page, begins), replaced in STATEMENTS.items():
        text = _with(block(page, begins).text, replaced)
        for number, statement in enumerate(duckdb.extract_statements(text)):
            found.append(pytest.param(statement.query, id=f"{page}-{number}"))
    return found


def _with(text: str, replaced: Mapping[str, str]) -> str:
    for written, here in replaced.items():
        assert written in text, f"{written} is not in the block"
        text = text.replace(written, here)
    return text


class Documented(Stack):
    before: dict[str, list[list[Any]]]
    """By statement, the API's answer before the compaction."""

    def counts(self, table: str = "logs", where: str = "true") -> dict[str | None, int]:
        """By service, as the API gives them."""
        return dict(
            self.api.rows(f"SELECT service_name, count(*) FROM {table} WHERE {where} GROUP BY ALL")  # type: ignore[arg-type]
        )

    def python(self, block: Block, **replaced: str) -> Any:
        """Runs a block in this process with the lines of `replaced` in place of others. Returns the value of
        its last line."""
        places = {
            "sqlite:///frazil-data/catalog.db": f"sqlite:///{self.receiver.config.data_dir}/catalog.db",
            **replaced,
        }
        parsed = ast.parse(_with(block.text, {k: v for k, v in places.items() if k in block.text} | replaced))
        last = parsed.body.pop()
        assert isinstance(last, ast.Expr)
        names: dict[str, Any] = {}
        exec(compile(parsed, str(block), "exec"), names)
        with contextlib.closing(names["catalog"]):
            return eval(compile(ast.Expression(last.value), str(block), "eval"), names)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Documented]:
    with running_api(tmp_path_factory.mktemp("recipes"), COMPACTS_EARLY) as (api, receiver):
        stack = Documented(api, receiver)
        planted = KnownFaults()
        planted.plant()
        planted.log("cart", "connection refused by stock", age_seconds=60, severity=17)
        planted.span("cart", "slow and failed", "it", milliseconds=400, status=2)
        options = DemoOptions(
            endpoint=receiver.http,
            protocol="http",
            traces_per_second=1,
            duration_seconds=DEMO_SECONDS,
            seed=7,
        )
        totals = run_demo(options, clock=VirtualClock(planted.now - (DEMO_SECONDS + 60) * SECOND))
        assert totals.failed == 0, totals
        stack.land()
        planted.send(receiver)
        _send(stack)
        stack.before = {sql: api.rows(sql) for sql in (each.values[0] for each in _statements())}
        stack.land()
        stack.compact()
        yield stack


_CURL = "curl -s http://127.0.0.1:4318/v1/logs"


@runs("README.md", _CURL)
@runs("docs/sending.md", _CURL)
@runs("docs/quickstart.md", _CURL)
def _send(stack: Documented) -> None:
    for page in ("README.md", "docs/sending.md", "docs/quickstart.md"):
        sending = re.match(r"curl.*?\}'$", block(page, _CURL).text, flags=re.MULTILINE | re.DOTALL)
        assert sending is not None
        assert stack.sh(sending.group()) == "{}"


def test_every_block_of_the_documentation_is_run_or_says_why_not() -> None:
    claims = [*RUN, *ELSEWHERE, *NOT_RUN]
    for page, begins in claims:
        assert block(page, begins), "each claim is of one block"
    for each in documented_blocks():
        if each in CONFIGURATIONS or (each.page, each.language) == ("docs/cookbook.md", "sql"):
            continue
        of_it = [claim for claim in claims if claim[0] == each.page and each.text.startswith(claim[1])]
        assert len(of_it) == 1, f"{each}: run it in a test, or say in NOT_RUN why it is not"
    for (page, _), file in ELSEWHERE.items():
        assert Path(page).name in (ROOT / file).read_text()


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=str)
def test_a_configuration_of_the_documentation_is_valid(configuration: Block, tmp_path: Path) -> None:
    """`…` stands for a value of the reader's. A page may leave out what it says elsewhere."""
    text = configuration.text.replace("sha256:…", f"sha256:{'0' * 64}")
    (tmp_path / "frazil.yaml").write_text(text.replace("uri: …", "uri: postgresql://db/x"))
    environ = {"FRAZIL_WAL__KAFKA__SASL__PASSWORD": "secret"} if "sasl" in text else {}
    if "tier" in text:
        environ["FRAZIL_LAKE__WAREHOUSE"] = "s3://telemetry/lake"
    load_config(tmp_path / "frazil.yaml", environ=environ)


@slow
@pytest.mark.parametrize("sql", _statements())
def test_sql_gives_after_a_compaction_what_it_gave_before(stack: Documented, sql: str) -> None:
    found = stack.api.rows(sql)
    assert sorted(map(repr, found)) == sorted(map(repr, stack.before[sql]))


@slow
def test_reading_the_data_files_counts_rows_twice(stack: Documented) -> None:
    """Why no recipe reads them."""
    files = [str(file) for file in stack.data_files("logs")]
    with contextlib.closing(duckdb.connect()) as engine:
        found = engine.execute("SELECT count(*) FROM read_parquet($1)", [files]).fetchone()
    assert found is not None
    assert found[0] > sum(stack.counts().values())


@slow
@runs("docs/landing.md", "from pyiceberg.catalog")
def test_pyiceberg_reads_what_the_api_reads(stack: Documented) -> None:
    found = stack.python(block("docs/landing.md", "from pyiceberg.catalog"))
    assert len(found) == stack.counts()["cart"] > 0


def _load_extensions() -> str:
    """In place of INSTALL, which needs a network."""
    modules = [importlib.import_module(f"duckdb_extension_{name}") for name in ("httpfs", "avro", "iceberg")]
    files = [next(Path(str(each.__file__)).parent.rglob("*.duckdb_extension")) for each in modules]
    return "; ".join(f"LOAD '{file}'" for file in files)


@slow
@runs("docs/landing.md", "import duckdb")
def test_duckdb_reads_a_table_from_its_metadata_file(stack: Documented) -> None:
    recipe = block("docs/landing.md", "import duckdb")
    loading = "INSTALL avro; INSTALL iceberg; LOAD avro; LOAD iceberg"
    assert dict(stack.python(recipe, **{loading: _load_extensions()})) == stack.counts()


@slow
@runs("docs/landing.md", "pyspark")
@pytest.mark.filterwarnings(UNCLOSED_SOCKETS)
def test_spark_reads_what_the_api_reads(stack: Documented, spark: SparkSession) -> None:
    """In the one session of the tests, which has the jars that `--packages` names."""
    starting, asking = block("docs/landing.md", "pyspark").commands
    text = starting.replace("frazil-data", str(stack.receiver.config.data_dir))
    named = re.findall(r"--packages (\S+)", text)[0].split(",")
    assert set(named) <= {package.coordinate for package in EVERY}
    session = spark.newSession()
    for key in session.conf.getAll:  # settings of another catalog of that name
        if key.startswith("spark.sql.catalog.frazil"):
            session.conf.unset(key)
    for key, value in re.findall(r"--conf (\S+?)=(\S+)", text):
        session.conf.set(key, value)
    asked = re.fullmatch(r'spark\.sql\("(.*)"\)\.show\(\)', asking)
    assert asked is not None
    found = session.sql(asked[1]).collect()
    assert dict(found) == stack.counts()


@slow
@runs("README.md", "import frazil")
@runs("docs/querying.md", "import frazil")
def test_the_client_in_python_reads_what_the_api_reads(stack: Documented) -> None:
    folder = stack.receiver.folder
    (folder / "readme.py").write_text(block("README.md", "import frazil").text)
    printed = stack.sh("python readme.py").split()
    assert [int(n) for n in printed[4::3]] == sorted(stack.counts().values(), reverse=True)
    text = block("docs/querying.md", "import frazil").text
    printing = "    print(len(result.arrow()), len(result.pandas()), len(result.polars()))"
    (folder / "querying.py").write_text(text + printing)
    assert stack.sh("python querying.py").split() == [str(stack.counts()["cart"])] * 3


@slow
@runs("docs/quickstart.md", '.venv/bin/frazil query "SELECT time, service_name, body')
@runs("docs/quickstart.md", '.venv/bin/frazil query "SELECT service_name')
def test_commands_of_the_first_pages_read_what_the_api_reads(stack: Documented) -> None:
    lines = [
        *block("README.md", _CURL).commands,
        *block("docs/quickstart.md", '.venv/bin/frazil query "SELECT time').commands,
        *block("docs/quickstart.md", '.venv/bin/frazil query "SELECT service_name').commands,
    ]
    queries = [match[0] for line in lines if (match := re.match(r'\S*frazil query ".*?"', line))]
    assert len(queries) == 3
    for query in queries:
        _same_as_the_api(stack, query)
    assert "hello from the quick start" in stack.sh(queries[1])
    stack.sh(".venv/bin/frazil verify")


def _same_as_the_api(stack: Documented, command: str, *params: Any) -> None:
    """A `frazil query` as typed, and its SQL asked of the API."""
    found = re.search(r'query "(.*?)"', command)
    assert found is not None
    rows = json.loads(stack.sh(f"{command} --format json"))
    expected = stack.api.rows(found[1], *params)
    assert rows, command
    assert sorted(repr(list(row.values())) for row in rows) == sorted(map(repr, expected))


@slow
@runs("docs/querying.md", 'frazil query "SELECT service_name', 'frazil query "SELECT body')
def test_frazil_query_reads_what_the_api_reads(stack: Documented) -> None:
    [grouped] = block("docs/querying.md", 'frazil query "SELECT service_name').commands
    _same_as_the_api(stack, grouped)
    [bound] = block("docs/querying.md", 'frazil query "SELECT body').commands
    _same_as_the_api(stack, bound, "cart", 17)


def _rows(snapshot: Snapshot) -> int:
    return int((snapshot.summary and snapshot.summary["total-records"]) or 0)


@slow
@runs("docs/querying.md", 'frazil query "SELECT count(*) FROM logs" --as-of')
def test_the_past_is_read_after_the_compaction_too(stack: Documented) -> None:
    """As of the landing of the demo: files that compaction has replaced since."""
    with contextlib.closing(open_catalog(stack.receiver.config)) as catalog:
        table = catalog.load_table("otel.logs")
        first = next(each for each in table.snapshots() if _rows(each))
        create_tag(catalog, table, "release-7", first.snapshot_id)
        then = dt.datetime.fromtimestamp(first.timestamp_ms / 1000, dt.UTC)
        rows = _rows(first)
    replaced = {
        "2026-11-15T10:00:00Z": then.isoformat().replace("+00:00", "Z"),
        "6051743928744651823": str(first.snapshot_id),
    }
    for line in block("docs/querying.md", 'frazil query "SELECT count(*) FROM logs" --as-of').commands:
        assert stack.sh(f"{line} --format csv", replaced).split()[-1] == str(rows), line
    assert 0 < rows < sum(stack.counts().values())


@slow
@runs("docs/api.md", "curl -s localhost:4380")
def test_curl_reads_what_sql_reads(stack: Documented) -> None:
    rows = stack.api.rows
    traced = rows("SELECT trace_id FROM spans WHERE service_name = 'cart' ORDER BY ALL LIMIT 1")[0][0]
    replaced = {"5b8efff798038103d269b633813fc60c": traced}
    recent = "time > now() - INTERVAL 15 MINUTE"
    sql, logs, counted, spans, traces, trace = (
        json.loads(stack.sh(line, replaced)) for line in block("docs/api.md", "curl").commands
    )
    assert dict(sql["rows"]) == stack.counts("logs", recent)
    failed = f"severity_number >= 17 AND {recent}"
    words = rows(f"SELECT body FROM logs WHERE search(body, 'connection refused') AND {failed}")
    assert sorted([each["body"]] for each in logs["records"]) == sorted(words) != []
    assert counted["total"] == sum(stack.counts("logs", failed).values()) > 0
    slow_spans = "service_name = 'cart' AND status_code = 2 AND duration_nano >= 250e6"
    wanted = rows(f"SELECT span_id FROM spans WHERE {slow_spans} AND time > now() - INTERVAL 1 HOUR")
    assert sorted([each["span_id"]] for each in spans["records"]) == sorted(wanted) != []
    of_errors = "service_name = 'cart' AND status_code = 2 AND time > now() - INTERVAL 1 HOUR"
    wanted = rows(f"SELECT DISTINCT trace_id FROM spans WHERE {of_errors}")
    assert sorted([each["trace_id"]] for each in traces["traces"]) == sorted(wanted) != []
    sent = [s for r in trace["resourceSpans"] for scope in r["scopeSpans"] for s in scope["spans"]]
    assert [[len(sent)]] == rows("SELECT count(*) FROM spans WHERE trace_id = ?", traced)


@slow
@runs("docs/api.md", '{"sql": "SELECT body')
def test_a_request_for_sql_reads_the_past_too(stack: Documented) -> None:
    now = dt.datetime.now(dt.UTC).isoformat().replace("+00:00", "Z")
    text = _with(block("docs/api.md", '{"sql": "SELECT body').text, {"2026-11-15T10:00:00Z": now})
    answer = stack.api.post("/api/v1/sql", content=text, headers={"content-type": "application/json"})
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["rows"]) == min(10, stack.counts()["cart"])
