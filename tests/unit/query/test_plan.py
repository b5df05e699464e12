"""Plans over files from before a column was promoted: the map has what the column would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

from frazil.config import Config
from frazil.errors import QueryInvalid
from frazil.lake.catalog import open_catalog
from frazil.lake.tables import open_table
from frazil.position import LandingPosition
from frazil.query.lake import Lake
from frazil.query.model import Query
from frazil.query.plan import Planner, local_path
from frazil.sql.sandbox import serialized
from frazil.sql.statement import Statement
from frazil.tables import SIGNALS, landed_spec
from frazil.tables.promoted import promoted
from tests.support.query.small_lake import DAYS, LANDED_PER_DAY, TAIL_ROWS, Service, fill

PROMOTED = [
    {"attribute": "number", "type": "int", "column": "a_number"},
    {"attribute": "number", "type": "double", "column": "a_double"},
    {"attribute": "number", "column": "a_text"},
    {"attribute": "number", "type": "bool", "column": "a_flag"},
    {"attribute": 'no "such" one\'s', "type": "int", "column": "nothing"},
    {"attribute": "service.name", "source": "resource", "column": "service_again"},
]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """The lake and the log were written before any of it was promoted."""
    fill(Config(data_dir=tmp_path))
    return Config.model_validate({"data_dir": tmp_path, "tables": {"promoted": PROMOTED}})


@pytest.fixture
def service(config: Config) -> Iterator[Service]:
    service = Service(config)
    service.start()
    yield service
    service.close()


def test_a_column_that_is_promoted_now_has_the_values_of_before(config: Config, service: Service) -> None:
    counts = [LANDED_PER_DAY["acme"]] * DAYS + [TAIL_ROWS["acme"]]
    total = sum(sum(range(count)) for count in counts)
    sql = (
        "SELECT sum(a_number), sum(a_double), sum(a_text::INT), count(a_flag), count(nothing), "
        "count(*) FILTER (service_again = service_name), count(*) FROM logs"
    )
    rows = sum(counts)
    expected = [[total, float(total), total, 0, 0, rows, rows]]
    assert service.execute(sql).rows == expected
    assert service.execute("SELECT count(*) FROM logs WHERE a_number = 3 AND a_text = '3'").rows == [
        [len(counts)]
    ]
    assert service.execute("SELECT * FROM logs LIMIT 1").stats.rows == 1
    with closing(open_catalog(config)) as catalog:
        spec = landed_spec("logs", promoted(config))
        open_table(catalog, config.lake.namespace, spec, LandingPosition().to_text())
    assert service.execute(sql + " WHERE true").rows == expected


def test_queries_do_not_have_a_column_that_is_promoted_no_longer_but_its_attribute(config: Config) -> None:
    with closing(open_catalog(config)) as catalog:
        spec = landed_spec("logs", promoted(config))
        open_table(catalog, config.lake.namespace, spec, LandingPosition().to_text())
    service = Service(Config(data_dir=config.data_dir))
    service.start()
    with closing(service):
        with pytest.raises(QueryInvalid, match="there is no column a_number"):
            service.execute("SELECT a_number FROM logs")
        [[found]] = service.execute("SELECT count(*) FROM logs WHERE attributes['number'] = '3'").rows
        assert found == DAYS + 1


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/lake/a.parquet", "/lake/a.parquet"),
        ("file:/lake/a.parquet", "/lake/a.parquet"),
        ("file:///lake/a.parquet", "/lake/a.parquet"),
        ("s3://bucket/a.parquet", "s3://bucket/a.parquet"),
    ],
)
def test_a_location_becomes_what_duckdb_opens(location: str, path: str) -> None:
    assert local_path(location) == path


LISTS = [{"attribute": ["number.of.row", "number"], "type": "int", "column": "a_number"}]


def test_only_files_that_were_filled_from_other_attributes_are_read_by_their_map(tmp_path: Path) -> None:
    fill(Config.model_validate({"data_dir": tmp_path, "tables": {"promoted": LISTS}}))
    now = [{**LISTS[0], "attribute": ["number", "number.of.row"]}]
    for lists, older in ((LISTS, 0), (now, DAYS)):
        config = Config.model_validate({"data_dir": tmp_path, "tables": {"promoted": lists}})
        with closing(Lake(config)) as lake, closing(Planner(config, lake, None)) as planner:
            table = planned(planner, "SELECT sum(a_number) FROM logs")
            assert sum(len(group["files"]) for group in table["older"]) == older
            assert [name for name, _, _ in table["columns"]] == ["a_number"]
            maps = {name for group in table["older"] for name, _, _ in group["maps"]}
            assert maps == ({"attributes", "attribute_types"} if older else set())
            assert planned(planner, "SELECT count(body) FROM logs")["older"] == [], "it reads no such column"


def planned(planner: Planner, sql: str) -> Any:
    with closing(duckdb.connect()) as connection:
        statement = Statement(serialized(connection, sql), "otel", SIGNALS)
    [table] = planner.plan(statement, Query(sql, "acme")).tables
    return table
