"""Summaries of traces are the same for all parts and orders in which the spans arrive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from frazil.tables import landed_spec
from frazil.tables.columns import TIMESTAMP
from frazil.tables.derived.combine import combine
from frazil.tables.derived.traces import FEATURES, FEATURES_VERSION, TRACES, trace_rows

MIDNIGHT = 1_800_057_600 * 10**9
MINUTE = 60 * 10**9
Row = dict[str, Any]


@dataclass(frozen=True)
class Span:
    span_id: str = "01"
    parent_span_id: str | None = None
    start_time_unix_nano: int | None = MIDNIGHT
    duration_nano: int | None = 1000
    received_time: int = MIDNIGHT // 1000 + 1_000_000
    moved: bool = False
    """Whether the start is so far off that `time` is the received time."""
    service_name: str | None = "cart"
    name: str | None = "GET /cart"
    kind: int | None = 2
    status_code: int | None = 0
    http_route: str | None = None
    http_response_status_code: int | None = None
    db_system_name: str | None = None
    messaging_system: str | None = None
    tenant_id: str = "acme"
    trace_id: str = "a1"

    @property
    def time(self) -> int:
        unknown = self.moved or self.start_time_unix_nano is None
        return self.received_time if unknown else (self.start_time_unix_nano or 0) // 1000

    @property
    def start(self) -> int | None:
        return None if self.moved else self.start_time_unix_nano

    @property
    def order_start(self) -> int:
        return self.time * 1000 if self.start is None else self.start

    @property
    def end(self) -> int | None:
        return None if self.start is None else max(self.start, self.start + (self.duration_nano or 0))

    @property
    def features(self) -> set[str]:
        status = (self.http_response_status_code or 0) // 100
        has = {
            "db": self.db_system_name is not None,
            "error": self.status_code == 2,
            "http_4xx": status == 4,
            "http_5xx": status == 5,
            "messaging": self.messaging_system is not None,
        }
        return {name for name in has if has[name]}


def span_table(spans: Iterable[Span], *, coded: bool = False) -> pa.Table:
    """The columns that the declaration names, and no others."""
    assert TRACES.derived is not None
    spec = landed_spec("spans")
    rows = [asdict(span) | {"time": span.time} for span in spans]
    names = ["tenant_id", "time", *TRACES.derived.columns]
    columns = [pa.array([row[name] for row in rows], spec.column(name).type) for name in names]
    if coded:
        columns = [each.dictionary_encode() if pa.types.is_string(each.type) else each for each in columns]
    return pa.table(columns, names)


def summaries(rows: pa.Table) -> list[Row]:
    found = [
        {name: micros(value) for name, value in row.items()} for row in combine(rows, TRACES).to_pylist()
    ]
    return sorted(found, key=lambda row: (row["tenant_id"], row["trace_id"]))


def micros(value: Any) -> Any:
    return value if not hasattr(value, "tzinfo") else pa.scalar(value, TIMESTAMP).cast(pa.int64()).as_py()


def summary_of(*spans: Span) -> Row:
    (found,) = summaries(trace_rows(span_table(spans)))
    return found


def null_last(*values: Any) -> list[tuple[bool, Any]]:
    return [(value is None, value) for value in values]


def null_first(*values: Any) -> list[tuple[bool, Any]]:
    return [(value is not None, value) for value in values]


def expected_of(spans: Sequence[Span]) -> Row:
    """The summary of one trace, in plain Python."""
    roots = [span for span in spans if span.parent_span_id is None]
    root = min(
        roots,
        key=lambda span: null_last(
            span.order_start,
            span.span_id,
            span.service_name,
            span.name,
            span.kind,
            span.status_code,
            span.http_route,
            span.duration_nano,
        ),
        default=None,
    )
    timed = [span for span in spans if span.duration_nano is not None]
    longest = max(
        timed,
        key=lambda span: null_first(span.duration_nano, span.span_id, span.service_name, span.name),
        default=None,
    )
    ends = [span.end for span in spans if span.end is not None]
    return {
        "tenant_id": spans[0].tenant_id,
        "trace_id": spans[0].trace_id,
        "time": min(span.time for span in spans),
        "end_time": max(max(span.time, (span.end or 0) // 1000) for span in spans),
        "start_unix_nano": min((span.start for span in spans if span.start is not None), default=None),
        "end_unix_nano": max(ends, default=None),
        "span_count": len(spans),
        "error_count": sum(span.status_code == 2 for span in spans),
        "services": sorted({span.service_name for span in spans if span.service_name is not None}),
        "root_start_unix_nano": root and root.order_start,
        "root_span_id": root and root.span_id,
        "root_service": root and root.service_name,
        "root_operation": root and root.name,
        "root_kind": root and root.kind,
        "root_status_code": root and root.status_code,
        "root_http_route": root and root.http_route,
        "root_duration_nano": root and root.duration_nano,
        "longest_duration_nano": longest and longest.duration_nano,
        "longest_span_id": longest and longest.span_id,
        "longest_service": longest and longest.service_name,
        "longest_operation": longest and longest.name,
        "features": sorted(set().union(*(span.features for span in spans))),
        "features_version": FEATURES_VERSION,
        "first_received": min(span.received_time for span in spans),
        "last_received": max(span.received_time for span in spans),
    }


def expected(spans: Sequence[Span]) -> list[Row]:
    keys = sorted({(span.tenant_id, span.trace_id) for span in spans})
    return [expected_of([span for span in spans if (span.tenant_id, span.trace_id) == key]) for key in keys]


def maybe(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([None, *values])


some_span = st.builds(
    Span,
    span_id=st.sampled_from(["01", "02", "03", "ff"]),
    parent_span_id=maybe("01", "02", "99"),
    start_time_unix_nano=st.none()
    | st.sampled_from([MIDNIGHT - 1, MIDNIGHT, MIDNIGHT + 1])
    | st.integers(MIDNIGHT - 30 * MINUTE, MIDNIGHT + 30 * MINUTE),
    duration_nano=maybe(0, 1000, 1001, -5, 2**61) | st.integers(-(10**12), 10**12),
    received_time=st.integers(MIDNIGHT // 1000 - 10**9, MIDNIGHT // 1000 + 10**9),
    moved=st.booleans(),
    service_name=maybe("cart", "web", "zahlung-ü", ""),
    name=maybe("GET", "POST"),
    kind=maybe(1, 2, 3),
    status_code=maybe(0, 1, 2),
    http_route=maybe("/a", "/b"),
    http_response_status_code=maybe(200, 399, 400, 499, 500, 599, 600),
    db_system_name=maybe("postgresql"),
    messaging_system=maybe("kafka"),
    tenant_id=st.sampled_from(["acme", "globex"]),
    trace_id=st.sampled_from(["a1", "b2", "c3"]),
).map(lambda span: span if span.start_time_unix_nano is not None else replace(span, duration_nano=None))


@settings(deadline=None)
@given(data=st.data(), spans=st.lists(some_span, min_size=1, max_size=24))
def test_parts_of_traces_merge_to_the_result_of_a_single_pass(data: st.DataObject, spans: list[Span]) -> None:
    """Landings are cut anywhere and come in any order; their partial rows merge in any order."""
    answer = expected(spans)
    assert summaries(trace_rows(span_table(spans))) == answer
    shuffled = data.draw(st.permutations(spans))
    places = sorted(data.draw(st.lists(st.integers(0, len(spans)), max_size=6)))
    cuts = zip([0, *places], [*places, len(spans)], strict=True)
    landings = [span_table(shuffled[start:end], coded=data.draw(st.booleans())) for start, end in cuts]
    parts = [combine(trace_rows(landing), TRACES) for landing in landings]
    while len(parts) > 1:
        chosen = data.draw(st.integers(0, len(parts) - 2))
        parts[chosen : chosen + 2] = [combine(pa.concat_tables(parts[chosen : chosen + 2][::-1]), TRACES)]
    assert summaries(parts[0]) == answer
    event(f"{sum(row['root_span_id'] is None for row in answer)} traces without root")


def test_a_trace_over_midnight_is_one_row_at_the_start_of_its_first_span() -> None:
    late = Span("02", "01", MIDNIGHT + 5 * MINUTE, 2000, service_name="db", db_system_name="postgresql")
    early = Span("01", None, MIDNIGHT - MINUTE, 7 * MINUTE, http_route="/cart", http_response_status_code=503)
    found = summary_of(late, early)
    assert (found["time"], found["end_time"]) == (
        MIDNIGHT // 1000 - 60_000_000,
        MIDNIGHT // 1000 + 360_000_000,
    )
    assert (found["start_unix_nano"], found["end_unix_nano"]) == (MIDNIGHT - MINUTE, MIDNIGHT + 6 * MINUTE)
    assert (found["span_count"], found["services"]) == (2, ["cart", "db"])
    assert (found["root_service"], found["root_http_route"]) == ("cart", "/cart")
    assert (found["longest_span_id"], found["features"]) == ("01", ["db", "http_5xx"])


def test_all_columns_of_the_root_are_those_of_the_span_without_parent_that_starts_first() -> None:
    first = Span("09", service_name=None, http_route=None, duration_nano=None, kind=None)
    second = Span("01", None, MIDNIGHT + 1, service_name="web", http_route="/web")
    found = summary_of(second, first)
    root = ("root_span_id", "root_service", "root_http_route", "root_duration_nano", "root_kind")
    assert [found[name] for name in root] == ["09", None, None, None, None]


def test_of_roots_that_start_together_the_smallest_span_id_wins_in_all_columns() -> None:
    found = summary_of(Span("02", service_name="a", name="z"), Span("01", service_name="b", name="y"))
    assert (found["root_span_id"], found["root_service"], found["root_operation"]) == ("01", "b", "y")


def test_of_equally_long_spans_the_largest_span_id_wins_in_all_columns() -> None:
    found = summary_of(Span("02", service_name="a", name=None), Span("01", service_name="b", name="y"))
    assert (found["longest_span_id"], found["longest_service"], found["longest_operation"]) == (
        "02",
        "a",
        None,
    )


def test_a_trace_without_root_has_no_root_columns() -> None:
    found = summary_of(Span(parent_span_id="77"))
    assert {value for name, value in found.items() if name.startswith("root_")} == {None}


def test_a_start_that_was_replaced_by_the_received_time_does_not_make_the_trace_long() -> None:
    found = summary_of(Span("01"), Span("02", "01", start_time_unix_nano=1000, moved=True))
    assert (found["start_unix_nano"], found["end_unix_nano"]) == (MIDNIGHT, MIDNIGHT + 1000)


def test_a_span_that_ends_before_its_start_or_has_no_end_ends_at_its_start() -> None:
    found = summary_of(Span("01", duration_nano=-10), Span("02", "01", MIDNIGHT + 7000, None))
    assert (found["start_unix_nano"], found["end_unix_nano"]) == (MIDNIGHT, MIDNIGHT + 7000)
    assert found["end_time"] == MIDNIGHT // 1000 + 7


def test_no_spans_give_no_traces() -> None:
    assert summaries(trace_rows(span_table([]))) == []
    empty = pa.table({name: pa.chunked_array([], column.type) for name, column in columns_by_name().items()})
    assert summaries(trace_rows(empty)) == []


def columns_by_name() -> dict[str, pa.ChunkedArray]:
    table = span_table([Span()])
    return dict(zip(table.column_names, table.columns, strict=True))


def test_spans_may_be_in_chunks_with_different_dictionaries() -> None:
    spans = [Span("01", service_name="web"), Span("02", "01", service_name="cart"), Span("03", "01")]
    rows = pa.concat_tables([span_table([span], coded=True) for span in spans])
    assert summaries(trace_rows(rows)) == expected(spans)


def test_only_cheap_columns_of_spans_are_read() -> None:
    assert TRACES.derived is not None
    types = [landed_spec("spans").column(name).type for name in TRACES.derived.columns]
    assert not any(pa.types.is_nested(type_) for type_ in types)


def test_features_are_listed_in_the_order_in_which_merging_sorts_them() -> None:
    assert [*FEATURES] == sorted(FEATURES)


@pytest.mark.parametrize(
    ("column", "change", "reason"),
    [
        (
            "root_start_unix_nano",
            {"merge": TRACES.column("end_unix_nano").merge},
            "root_start_unix_nano by min",
        ),
        ("longest_duration_nano", {"merge": TRACES.column("time").merge}, "longest_duration_nano by max"),
    ],
)
def test_a_declaration_whose_rows_cannot_merge_is_refused(column: str, change: Row, reason: str) -> None:
    columns = tuple(replace(each, **change) if each.name == column else each for each in TRACES.columns)
    with pytest.raises(ValueError, match=reason):
        replace(TRACES, columns=columns)
