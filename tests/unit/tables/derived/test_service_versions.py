"""The versions of services are the same for all parts and orders in which the spans arrive."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.tables import landed_spec
from frazil.tables.derived.combine import combine, rolled_up
from frazil.tables.derived.service_versions import SERVICE_VERSIONS, service_version_rows
from tests.unit.tables.derived.reference import check_same, rolled

Row = dict[str, Any]
BEGIN = dt.datetime(2026, 11, 15, 22, 30, tzinfo=dt.UTC)
KEYS = ("tenant_id", "service_name", "service_version", "deployment_environment_name")
COLUMNS = (*KEYS, "time", "kind", "parent_span_id", "status_code")
SCHEMA = pa.schema([(name, landed_spec("spans").column(name).type) for name in COLUMNS])
SPANS = st.fixed_dictionaries(
    {
        "tenant_id": st.sampled_from(["acme", "globex"]),
        "service_name": st.sampled_from([None, "cart", "pay"]),
        "service_version": st.sampled_from([None, "1.0", "1.1"]),
        "deployment_environment_name": st.sampled_from([None, "prod"]),
        "time": st.integers(0, 3 * 3600).map(lambda seconds: BEGIN + dt.timedelta(seconds=seconds)),
        "kind": st.sampled_from([None, 0, 1, 2, 3, 4, 5]),
        "parent_span_id": st.sampled_from([None, "00f067aa0ba902b7"]),
        "status_code": st.sampled_from([None, 0, 1, 2]),
    }
)


def table(spans: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(spans, schema=SCHEMA)


def row(span: Row) -> Row:
    """What one span adds, in plain Python."""
    is_request = span["kind"] in (2, 5) or span["parent_span_id"] is None
    is_error = span["status_code"] == 2
    counts = {
        "spans": 1,
        "errors": int(is_error),
        "requests": int(is_request),
        "request_errors": int(is_request and is_error),
    }
    times = {"time": span["time"], "first_time": span["time"], "last_time": span["time"]}
    return {name: span[name] for name in KEYS} | counts | times


@given(spans=st.lists(SPANS, max_size=30), parts=st.lists(st.integers(0, 30), max_size=4))
def test_versions_are_those_of_a_loop_over_all_spans_however_they_are_cut(
    spans: list[Row], parts: list[int]
) -> None:
    bounds = [0, *sorted(parts), len(spans)]
    pieces = [
        rolled_up(service_version_rows(table(spans[a:b])), SERVICE_VERSIONS)
        for a, b in itertools.pairwise(bounds)
    ]
    found = combine(pa.concat_tables(pieces), SERVICE_VERSIONS)
    check_same(found, rolled([row(span) for span in spans], SERVICE_VERSIONS), SERVICE_VERSIONS)


@pytest.mark.parametrize(
    ("kind", "parent", "expected"),
    [(2, "ab", 1), (5, "ab", 1), (3, "ab", 0), (1, None, 1), (None, None, 1), (None, "ab", 0)],
)
def test_requests_are_spans_of_servers_and_consumers_and_roots(
    kind: int | None, parent: str | None, expected: int
) -> None:
    given = {"tenant_id": "acme", "time": BEGIN, "kind": kind, "parent_span_id": parent}
    span = dict.fromkeys(COLUMNS) | given
    assert service_version_rows(table([span]))["requests"].to_pylist() == [expected]
