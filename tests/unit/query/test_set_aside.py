"""SQL over `set_aside`: a tenant sees what it sent, and rows without a tenant are for admins."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from frazil.lake import tables
from frazil.lake.commits.commit import checkpoint_of, committer_of
from frazil.lake.live_files import live_files
from frazil.lake.tables import open_table
from frazil.pipeline.datafile import Layout, write_part
from frazil.pipeline.land.set_aside import set_aside
from frazil.pipeline.land.source import UnreadableSegment
from frazil.pipeline.partition_sort import Part
from frazil.position import LandingPosition
from frazil.tables import SET_ASIDE, TableSpec
from tests.support.known_lake import DAY, KnownLake
from tests.support.query.small_lake import serving

ASKED = "SELECT source, tenant_id FROM otel.set_aside ORDER BY source"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[KnownLake]:
    with contextlib.closing(KnownLake(tmp_path)) as made:
        yield made


def put_aside(lake: KnownLake, **tenants: str | None) -> None:
    items = [
        UnreadableSegment(f"otlp_logs/0/{number}", f"reason {name}", 1, name.encode(), tenant)
        for number, (name, tenant) in enumerate(tenants.items())
    ]
    set_aside(lake.config, lake.catalog, "logs", items, None)


def test_a_tenant_sees_its_own_rows_and_an_admin_also_those_without_a_tenant(lake: KnownLake) -> None:
    put_aside(lake, a="acme", b="globex", c=None, d="acme")
    with serving(lake.config) as service:
        acme, globex = [["otlp_logs/0/0", "acme"], ["otlp_logs/0/3", "acme"]], [["otlp_logs/0/1", "globex"]]
        nobodys = ["otlp_logs/0/2", None]
        assert service.execute(ASKED).rows == acme
        assert service.execute(ASKED, unowned=True).rows == sorted([*acme, nobodys])
        assert service.execute(ASKED, "globex").rows == globex
        assert service.execute(ASKED, "initech").rows == []
        assert service.execute(ASKED, "initech", unowned=True).rows == [nobodys]
        assert service.execute(ASKED).rows == acme  # from the cache, which the admin's answer is in too
        payload = "SELECT decode(payload) FROM set_aside WHERE reason LIKE '% b'"
        assert service.execute(payload, "globex").rows == [["b"]]

        def listed(tenant: str, *, whole: bool) -> int | None:
            found = service.run(service.queries.tables(tenant, whole=whole))
            return next(table.rows for table in found if table.name == "set_aside")

        assert (listed("acme", whole=False), listed("acme", whole=True)) == (2, 3)


def test_other_tables_have_no_rows_without_a_tenant(lake: KnownLake) -> None:
    lake.fill([("acme", "mine", 9, 0.0), ("globex", "theirs", 9, 0.0)])
    with serving(lake.config) as service:
        assert service.execute("SELECT body FROM logs", unowned=True).rows == [["mine"]]


def as_before() -> TableSpec:
    """`set_aside` of versions that knew no tenants there."""
    spec = object.__new__(TableSpec)
    facts = {field.name: getattr(SET_ASIDE, field.name) for field in dataclasses.fields(SET_ASIDE)}
    for name, value in (facts | {"columns": SET_ASIDE.columns[1:], "partition_by": ()}).items():
        object.__setattr__(spec, name, value)
    return spec


def made_before(lake: KnownLake, sources: Sequence[tuple[str, float]]) -> None:
    spec = as_before()
    table = tables._create(lake.catalog, ("otel", "set_aside"), spec, LandingPosition().to_text())
    rows = [
        {
            "time": datetime.datetime.fromtimestamp(lake.now - days * DAY, datetime.UTC),
            "table_name": "logs",
            "source": source,
            "reason": "broken",
            "bytes": 1,
        }
        for source, days in sources
    ]
    layout = Layout.of(table, spec, 1)
    part = Part(None, None, pa.Table.from_pylist(rows, spec.arrow_schema))
    committer = committer_of(lake.config, lake.catalog)
    committer.append(checkpoint_of(table), [write_part(layout, part, "old")], LandingPosition().to_text())


def test_a_table_that_an_older_version_made_is_read_written_and_kept_small(lake: KnownLake) -> None:
    made_before(lake, [("otlp_logs/1/0", 40.0), ("otlp_logs/1/1", 0.0)])
    old = [["otlp_logs/1/0", None], ["otlp_logs/1/1", None]]
    with serving(lake.config) as service:
        assert service.execute(ASKED).rows == []
        assert service.execute(ASKED, unowned=True).rows == old
    put_aside(lake, a="acme", b=None)
    with serving(lake.config) as service:
        assert service.execute(ASKED).rows == [["otlp_logs/0/0", "acme"]]
        assert service.execute(ASKED, unowned=True).rows == [
            ["otlp_logs/0/0", "acme"],
            ["otlp_logs/0/1", None],
            *old,
        ]
    assert lake.table("set_aside").scan().to_arrow().num_rows == 4
    assert {live.file.spec_id for live in live_files(lake.table("set_aside"))} == {0, 1}
    report = lake.retain(table="set_aside", confirmed=True)
    assert (report.rows_removed, report.files_out) == (1, 1)
    with serving(lake.config) as service:
        kept = [["otlp_logs/0/0", "acme"], ["otlp_logs/0/1", None], old[1]]
        assert service.execute(ASKED, unowned=True).rows == kept
        assert service.execute(ASKED).rows == kept[:1]


def test_retention_of_an_older_table_needs_no_landing_first(lake: KnownLake) -> None:
    made_before(lake, [("otlp_logs/1/0", 40.0), ("otlp_logs/1/1", 0.0)])
    assert lake.retain(table="set_aside", confirmed=True).rows_removed == 1
    assert open_table(lake.catalog, "otel", SET_ASIDE, "").table.scan().to_arrow()["source"].to_pylist() == [
        "otlp_logs/1/1"
    ]
