"""What a tenant is told of the tables: its own files alone, and of the whole only who may know."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from frazil.config import AuthConfig
from frazil.lake.catalog import open_catalog
from frazil.lake.state.health import measure
from frazil.query.model import TableInfo
from frazil.wal.names import SegmentName
from tests.support.query.small_lake import (
    DAYS,
    LANDED_PER_DAY,
    STREAM,
    TAIL_ROWS,
    TENANTS,
    Service,
    add_tail,
    files_of,
    running,
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("inventory")) as service:
        yield service


def tables(service: Service, tenant: str, *, whole: bool = False) -> dict[str, TableInfo]:
    return {table.name: table for table in service.run(service.queries.tables(tenant, whole=whole))}


@pytest.mark.parametrize("tenant", TENANTS)
def test_health_is_that_of_the_tenants_own_files(service: Service, tenant: str) -> None:
    found = tables(service, tenant)
    table = found["logs"]
    files = files_of(service.config, tenant)
    assert table.whole is None
    assert table.health is not None
    assert table.health.table is None
    assert (table.health.files, table.health.rows) == (len(files), DAYS * LANDED_PER_DAY[tenant])
    assert table.health.bytes == table.bytes == sum(file.stat().st_size for file in files)
    assert (table.health.oldest_micros, table.health.files_per_moment) == (table.first_time, 1.0)
    assert (found["events"].health, found["events"].whole) == (None, None), "a view has no files"
    assert found["metrics"].health is None, "nothing has landed"
    assert tables(service, "nobody")["logs"].health is not None
    assert tables(service, "nobody")["logs"].health.files == 0  # type: ignore[union-attr]


def test_the_newest_time_is_what_a_query_of_the_tenant_sees(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        later = time.time_ns() + 60 * 10**9
        add_tail(service.config, "logs", {"globex": 1}, later, sequence=1, before=sum(TAIL_ROWS.values()))
        for tenant in TENANTS:
            for table in ("logs", "spans"):
                newest = service.execute(f"SELECT epoch_us(max(time)) FROM {table}", tenant).rows[0][0]
                found = tables(service, tenant)[table]
                assert found.newest_time == newest
                assert found.last_time is not None
                assert newest - found.last_time > 80_000_000_000, "a day, since when nothing has landed"
        assert tables(service, "globex")["logs"].newest_time == later // 1000
        assert tables(service, "nobody")["logs"].newest_time is None
        assert tables(service, "acme")["metrics"].newest_time is None


def test_the_newest_time_is_of_landed_rows_where_those_are_newer(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        (service.config.wal_dir / SegmentName("logs", STREAM, 0).path).unlink()
    with running(tmp_path) as service:
        found = tables(service, "acme")["logs"]
        assert (found.newest_time, found.tail_rows) == (found.last_time, 0)
        assert found.newest_time is not None


def test_the_api_and_the_pipeline_see_the_same_health(service: Service) -> None:
    """One takes it from what the planner has, the other from the catalog."""
    seen = tables(service, "acme", whole=True)["logs"].whole
    with closing(open_catalog(service.config)) as catalog:
        measured = measure(catalog.load_table(("otel", "logs")), service.config.maintain, time.time())
    assert seen is not None
    assert seen.table is not None
    assert measured.table is not None
    assert replace(seen, table=None) == replace(measured, table=None)
    assert seen.table == replace(measured.table, metadata_bytes=None)
    assert seen.files == DAYS * len(TENANTS)


def test_types_of_columns_are_those_of_describe(service: Service) -> None:
    for name, table in tables(service, "acme").items():
        described = {row[0]: row[1] for row in service.execute(f"DESCRIBE {name}").rows}
        assert {column.name: column.type for column in table.columns} == {
            column: kind.replace('"', "") for column, kind in described.items()
        }


def test_facts_say_when_a_file_came_and_what_it_is_of(service: Service) -> None:
    lake = service.queries._lake
    version = lake.version("logs")
    assert version is not None
    assert version.metadata is not None
    committed = {each.snapshot_id: each.timestamp_ms / 1000 for each in version.metadata.snapshots}
    facts = version.index.facts(version.schema, committed)
    assert {fact.tenant for fact in facts} == set(TENANTS)
    assert {fact.committed_seconds for fact in facts} <= set(committed.values())
    for fact in facts:
        assert f"tenant_id={fact.tenant}/" in fact.path
        assert fact.first_micros // 86_400_000_000 == fact.day
    assert version.index.facts(version.schema, {}, "acme")[0].committed_seconds is None
    assert version.index.facts(version.schema, {}, "nobody") == []


def test_metrics_show_the_health_of_tables_where_there_are_no_keys(service: Service) -> None:
    service.queries.update_table_metrics()
    logs = {"table": "logs"}
    assert service.queries.registry.get_sample_value("frazil_table_files", logs) is None
    keyless = Service(service.config.model_copy(update={"auth": AuthConfig()}))
    keyless.start()
    try:
        keyless.queries.update_table_metrics()
    finally:
        keyless.close()
    registry = keyless.queries.registry
    assert registry.get_sample_value("frazil_table_files", {"table": "logs"}) == DAYS * len(TENANTS)
    assert registry.get_sample_value("frazil_table_snapshots", {"table": "spans"}) == DAYS + 1
    assert registry.get_sample_value("frazil_table_files", {"table": "metrics"}) is None
