"""A table that only this test declares, with no log, gets all that follows from its spec."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry

from frazil.errors import QueryInvalid, Refused
from frazil.lake.commits.commit import committer_of
from frazil.lake.live_files import live_files, partition_of
from frazil.lake.tables import open_table
from frazil.pipeline.datafile import Layout, write_part
from frazil.pipeline.maintain.maintainer import Maintainer
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.maintain.retain.check import check_rules
from frazil.pipeline.maintain.tag_tables import tag_tables, untag_tables
from frazil.pipeline.metrics import Metrics
from frazil.pipeline.partition_sort import partition_and_sort
from frazil.position import LandingPosition
from frazil.query.model import AsOf
from frazil.tables import Column, TableSpec, View, declared, markdown, table_specs
from frazil.tables.columns import TIMESTAMP
from tests.support.known_lake import DAY, KnownLake
from tests.support.query.small_lake import serving
from tests.unit.status.test_watcher import Said, Story

EDGES = TableSpec(
    "edges",
    "One row per call between two services.",
    (
        Column("tenant_id", pa.string(), "the spans", "Whose services", "hot", required=True, coded=True),
        Column("time", TIMESTAMP, "the spans", "When it was called", "hot", required=True),
        Column("service_name", pa.string(), "the spans", "Who called", "hot", coded=True),
        Column("callee", pa.string(), "the spans", "Who was called", "hot"),
        Column("calls", pa.int64(), "the spans", "How often"),
    ),
    sort_by=("service_name", "time"),
    bloom_filters=("callee",),
    views=(View("known_edges", "The edges with a service.", not_null="service_name"),),
)
ROWS = [("acme", "web", "cart", 3, 0.0), ("acme", None, "web", 1, 0.0), ("acme", "web", "old", 5, 40.0)]
OTHERS = [("globex", "gate", "vault", 7, 0.0)]


class Edges(KnownLake):
    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **settings)

    def add(self, rows: list[tuple[str, str | None, str, int, float]], spec: TableSpec = EDGES) -> None:
        """By the writer and the committer that every table has, in a commit."""
        checkpoint = open_table(self.catalog, "otel", spec, LandingPosition().to_text())
        layout = Layout.of(checkpoint.table, spec, 1)
        times = [datetime.datetime.fromtimestamp(self.now - days * DAY, datetime.UTC) for *_, days in rows]
        columns = dict(
            zip(("tenant_id", "service_name", "callee", "calls"), zip(*rows, strict=True), strict=False)
        )
        named = {"time": times, **{name: list(column) for name, column in columns.items()}}
        table = pa.table({name: named.get(name, [None] * len(rows)) for name in spec.arrow_schema.names})
        parts = partition_and_sort([table.cast(spec.arrow_schema)], spec).parts
        files = [write_part(layout, part, f"{layout.batch}-{at}") for at, part in enumerate(parts)]
        committer_of(self.config, self.catalog).append(checkpoint, files, checkpoint.position)

    @property
    def maintainer(self) -> Maintainer:
        metrics = MaintainMetrics(CollectorRegistry())
        return Maintainer(self.config, self.catalog, self.runner, metrics)

    def callees(self) -> list[str]:
        return sorted(self.table("edges").scan().to_arrow()["callee"].to_pylist())


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Edges]:
    rule = {"table": "edges", "where": "calls > 4", "after_seconds": "30d"}
    retention = {"rules": [rule], "confirm_rows_min": 1000}
    settings = {"maintain": {"retention": retention, "compact": {"fan_in": 4}}}
    with declared(EDGES), contextlib.closing(Edges(tmp_path, **settings)) as made:
        made.add(ROWS)
        made.add(OTHERS)
        yield made


def test_it_is_known_while_it_is_declared() -> None:
    with declared(EDGES):
        assert table_specs()["edges"] is EDGES
        with pytest.raises(ValueError, match="already declared"), declared(EDGES):
            pass
    assert "edges" not in table_specs()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sort_by": ("nothing",)}, "does not declare nothing"),
        ({"columns": EDGES.columns[1:]}, "does not declare tenant_id"),
        ({"partition_by": ("day(time)", "tenant_id")}, "cannot be partitioned by"),
        ({"partition_by": ("tenant_id",)}, "must be partitioned by"),
        ({"partition_by": (), "retained": "no", "merged_as": None}, "must be partitioned by tenant_id$"),
        (
            {"columns": tuple(dataclasses.replace(each, required=False) for each in EDGES.columns)},
            "without a tenant",
        ),
    ],
)
def test_a_declaration_that_cannot_be_kept_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        dataclasses.replace(EDGES, **change)


def test_it_is_documented() -> None:
    with declared(EDGES):
        page = markdown(table_specs().values())
    assert "## edges\n\nOne row per call between two services." in page
    assert "| `callee` | STRING | the spans | Who was called |" in page


def test_it_is_made_and_gets_columns_that_the_spec_gains(lake: Edges) -> None:
    table = lake.table("edges")
    assert {partition_of(live.file).tenant for live in live_files(table)} == {"acme", "globex"}
    more = dataclasses.replace(
        EDGES, columns=(*EDGES.columns, Column("errors", pa.int64(), "the spans", "How often it failed"))
    )
    lake.add([("acme", "web", "new", 1, 0.0)], more)
    assert lake.table("edges").schema().find_field("errors").field_type is not None
    assert lake.callees() == ["cart", "new", "old", "vault", "web"]


def test_sql_reads_it_and_its_view_by_tenant_and_the_api_lists_it(lake: Edges) -> None:
    with serving(lake.config) as service:
        asked = "SELECT callee, calls FROM otel.edges ORDER BY callee"
        assert service.execute(asked).rows == [["cart", 3], ["old", 5], ["web", 1]]
        assert service.execute(asked, "globex").rows == [["vault", 7]]
        assert service.execute(asked, "globex", unowned=True).rows == [["vault", 7]]
        assert service.execute("SELECT count(*) FROM known_edges").rows == [[2]]
        assert ["edges"] in service.execute("SHOW TABLES").rows
        listed = {table.name: table for table in service.run(service.queries.tables("acme", whole=True))}
        assert (listed["edges"].rows, listed["edges"].tail_rows) == (3, 0)
        assert [column.name for column in listed["edges"].columns] == EDGES.arrow_schema.names
        assert listed["edges"].whole is not None
        assert listed["edges"].whole.rows == 4
        assert listed["known_edges"].is_view
    with (
        serving(lake.config) as service,
        pytest.raises(QueryInvalid, match="no table edgs; did you mean edges"),
    ):
        service.execute("SELECT * FROM edgs")


def test_it_is_compacted_and_not_filled(lake: Edges) -> None:
    lake.now -= 3 * DAY
    for number in range(12):
        lake.add([("acme", "web", f"c{number:02d}", 1, 0.0)])
    before = len(live_files(lake.table("edges")))
    report = lake.maintainer.run("compact", "edges")
    assert report.files_in >= 12
    assert len(live_files(lake.table("edges"))) == before - report.files_in + report.files_out
    assert len(lake.callees()) == 16
    with pytest.raises(Refused, match="no promoted columns"):
        lake.maintainer.run("fill", "edges")
    assert {report.task for report in lake.maintainer.round() if report.table == "edges"} >= {"compact"}


def test_retention_takes_what_the_rules_say(lake: Edges) -> None:
    assert check_rules(lake.config) == []
    assert lake.maintainer.run("retention", "edges", confirmed=True).rows_removed == 1
    assert lake.callees() == ["cart", "vault", "web"]


def test_an_erasure_takes_the_tenants_rows_from_all_that_it_was(lake: Edges) -> None:
    erasure = lake.erase("callee = 'cart'", tables=("edges",))
    assert erasure.is_proven
    assert erasure.rows_removed == 1
    assert lake.callees() == ["old", "vault", "web"]
    with pytest.raises(Refused, match=r"there are: logs, spans, metrics, .*edges"):
        lake.erase("callee = 'cart'", tables=("edge",))


def test_a_named_tag_pins_it(lake: Edges) -> None:
    cut = tag_tables(lake.config, lake.catalog, lake.runner, Metrics(), "incident-1")
    assert "edges" in {tag.table for tag in cut.tags}
    lake.add([("acme", "web", "later", 1, 0.0)])
    with serving(lake.config) as service:
        told = service.execute("SELECT count(*) FROM edges", as_of=AsOf(tag="incident-1"))
        assert told.rows == [[3]]
        assert service.execute("SELECT count(*) FROM edges").rows == [[4]]
    assert untag_tables(lake.config, lake.catalog, "incident-1") == len(cut.tags)


def test_status_shows_its_health(lake: Edges) -> None:
    pipeline = Said("pipeline", 'frazil_pipeline_leader 1\nfrazil_table_files{table="edges"} 2\n')
    stages = Story().look(pipeline).status["stages"]
    assert stages["lake"]["tables"]["edges"]["files"] == 2
    assert "edges" in stages["maintain"]["waiting"]
    assert "edges" not in stages["land"]["tables"]
