"""SQL reads views as other derived tables: merged by key, each tenant its own rows, up to their position."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from frazil.errors import QueryInvalid
from frazil.pipeline.derive.views.declare import mark_off
from frazil.query.model import AsOf
from frazil.tables import forget_views, table_specs
from tests.components.process import wait_until
from tests.support.query.small_lake import serving
from tests.support.view_lake import BY_SERVICE, ViewLake

ASKED = "SELECT service_name, records, worst, has_errors FROM by_service ORDER BY service_name"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[ViewLake]:
    query = {"temp_dir": tmp_path / "temp", "threads": 1, "workers": 1, "metadata_age_max_seconds": 0}
    (tmp_path / "temp").mkdir()
    with contextlib.closing(ViewLake(tmp_path / "lake", {"by_service": BY_SERVICE}, query=query)) as made:
        yield made


def row(tenant: str, service: str, severity: int = 9) -> tuple[str, str, int, float]:
    return tenant, f"u1 {service} said something", severity, 0.0


def test_a_query_merges_partial_rows_and_sees_those_of_its_tenant_alone(lake: ViewLake) -> None:
    lake.fill([row("acme", "cart"), row("globex", "vault", 18)])
    lake.derive()
    lake.fill([row("acme", "cart", 17), row("acme", "web")])
    lake.derive()
    forget_views()  # as in another process
    with serving(lake.config) as service:
        assert service.execute(ASKED).rows == [["cart", 2, 17, True], ["web", 1, 9, False]]
        assert service.execute(ASKED, "globex").rows == [["vault", 1, 18, True]]
        assert service.execute(ASKED, "other").rows == []
        assert service.execute("SELECT tenant_id FROM otel.by_service GROUP BY ALL").rows == [["acme"]]
        assert service.execute("SELECT sum(records) FROM by_service WHERE tenant_id = 'globex'").rows == [
            [None]
        ]
        assert ["by_service"] in service.execute("SHOW TABLES").rows
        filtered = (
            "SELECT records FROM by_service WHERE service_name = 'web' AND time > now() - INTERVAL 1 DAY"
        )
        assert service.execute(filtered).rows == [[1]]
        assert service.execute(ASKED, as_of=AsOf(snapshot_id=snapshot(lake))).rows[0] == ["cart", 2, 17, True]


def snapshot(lake: ViewLake) -> int:
    found = lake.table("by_service").current_snapshot()
    assert found is not None
    return int(found.snapshot_id)


def test_a_condition_on_the_key_reaches_the_files(lake: ViewLake) -> None:
    for service in ("aaa", "mmm", "zzz"):
        lake.fill([row("acme", service)])
        lake.derive()
    with serving(lake.config) as service:
        found = service.execute("SELECT sum(records) FROM by_service WHERE service_name = 'mmm'")
        assert found.rows == [[1]]
        assert (found.stats.files, found.stats.files_total) == (1, 3)


def test_a_view_is_as_fresh_as_its_position_and_listed_with_its_lag(lake: ViewLake) -> None:
    lake.fill([row("acme", "cart")])
    lake.derive()
    lake.fill([row("acme", "cart")])
    lake.write([row("acme", "cart")])
    with serving(lake.config) as service:
        assert service.execute("SELECT sum(records) FROM by_service").rows == [[1]]
        assert service.execute("SELECT count(*) FROM logs").rows == [[3]]
        listed = {table.name: table for table in service.run(service.queries.tables("acme", whole=True))}
        view = listed["by_service"]
        assert view.doc.startswith("View of logs: SELECT date_trunc('minute', time) AS time")
        assert (view.rows, view.tail_rows) == (1, 0)
        assert view.derived is not None
        assert (view.derived.source, view.derived.enabled) == ("logs", True)
        assert view.derived.lag_seconds is not None
        assert view.derived.lag_seconds > 0
    lake.configure({})
    mark_off(lake.config, lake.catalog)
    forget_views()
    with serving(lake.config) as service:
        listed = {table.name: table for table in service.run(service.queries.tables("acme"))}
        assert listed["by_service"].derived is not None
        assert not listed["by_service"].derived.enabled, "the API needs no configuration of views"
        assert service.execute("SELECT sum(records) FROM by_service").rows == [[1]]


def test_a_view_that_is_made_while_the_api_runs_is_found(lake: ViewLake) -> None:
    lake.fill([row("acme", "cart")])
    with serving(lake.config) as service:
        with pytest.raises(QueryInvalid, match="no table by_service"):
            service.execute(ASKED)
        lake.catalog.create_table("otel.another_engines", table_specs()["log_rollups"].arrow_schema)
        lake.derive()
        forget_views()

        def is_found() -> bool:
            with contextlib.suppress(QueryInvalid):
                return service.execute(ASKED).rows == [["cart", 1, 9, False]]
            return False

        assert wait_until(is_found, seconds_max=30)
        assert service.execute("SELECT max(time) > now() - INTERVAL 1 HOUR FROM by_service").rows == [[True]]
