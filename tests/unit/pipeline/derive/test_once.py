"""Rows of things that stay, such as series, are written once for each key and period."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa

from frazil.pipeline.derive.once import unwritten
from frazil.tables import table_specs
from frazil.tables.columns import TIMESTAMP
from frazil.tables.derived.combine import completed

SERIES = table_specs()["series"]
HOUR = dt.timedelta(hours=1)
NOON = dt.datetime(2026, 11, 18, 12, tzinfo=dt.UTC)
_TIMES = [
    each.name
    for each in SERIES.columns
    if pa.types.is_timestamp(each.type) and each.merge is not None and each.merge.rule != "key"
]


def seen(series_id: int, at: dt.datetime, tenant: str = "acme") -> pa.Table:
    made = {"tenant_id": pa.array([tenant]), "series_id": pa.array([series_id], pa.int64())}
    made["time"] = pa.array([NOON.replace(hour=0)], TIMESTAMP)
    return completed(pa.table(made | {name: pa.array([at], TIMESTAMP) for name in _TIMES}), SERIES)


def test_a_key_is_written_again_only_in_another_period() -> None:
    assert _TIMES
    first, known = unwritten(seen(1, NOON), SERIES)
    assert first.num_rows == 1
    assert unwritten(seen(1, NOON + HOUR / 2), SERIES, known)[0].num_rows == 0
    assert unwritten(seen(1, NOON + HOUR), SERIES, known)[0].num_rows == 1


def test_other_keys_are_written_also_if_they_differ_only_in_text() -> None:
    _, known = unwritten(seen(1, NOON), SERIES)
    rows = pa.concat_tables([seen(2, NOON), seen(1, NOON, "globex"), seen(1, NOON)])
    assert unwritten(rows, SERIES, known)[0].column("tenant_id").to_pylist() == ["acme", "globex"]
