"""Data files: no value in a column may prevent a batch from being written."""

from __future__ import annotations

import contextlib
import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from frazil.config import Config
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.tables import open_table
from frazil.pipeline.datafile import Layout, write_part
from frazil.pipeline.partition_sort import Part
from frazil.position import LandingPosition
from frazil.tables import landed_spec

DAY = 20_000


@pytest.mark.parametrize(
    "service",
    ["x" * 31 + "\ud7ff" + "y", "\ud7ff" * 40, "\U0010ffff" * 40],
    ids=["the last", "each", "of all"],
)
def test_a_text_with_no_successor_of_its_prefix_gets_no_upper_bound(tmp_path: Path, service: str) -> None:
    """Bounds are cut after 32 characters, and the last one is counted up: after U+D7FF come surrogates."""
    config = Config(data_dir=tmp_path)
    with contextlib.closing(open_catalog(config)) as catalog:
        ensure_namespace(catalog, "otel")
        table = open_table(catalog, "otel", landed_spec("logs"), LandingPosition().to_text()).table
    time = datetime.datetime.fromtimestamp(DAY * 86_400, datetime.UTC)
    row = {"tenant_id": "acme", "time": time, "received_time": time, "_segment": "s/0"}
    row["service_name"] = service
    rows = pa.Table.from_pylist([row], schema=landed_spec("logs").arrow_schema)
    file = write_part(Layout.of(table, landed_spec("logs"), 1), Part("acme", DAY, rows), "one")
    field = table.schema().find_field("service_name").field_id
    assert field not in file.upper_bounds
    assert file.lower_bounds[field] == service[:32].encode()
    assert file.upper_bounds[table.schema().find_field("tenant_id").field_id] == b"acme"
    assert pq.read_table(file.file_path, columns=["service_name"], partitioning=None).to_pydict() == {
        "service_name": [service]
    }
