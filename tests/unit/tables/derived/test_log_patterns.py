"""Rows of log_patterns: counts, examples, the bound, and that results do not depend on how rows land."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.tables import table_specs
from frazil.tables.columns import TIMESTAMP
from frazil.tables.derived import log_patterns
from frazil.tables.derived.combine import combine, rolled_up
from frazil.tables.derived.log_patterns import (
    LOG_PATTERNS,
    MASK,
    OTHER,
    OTHER_ID,
    log_pattern_rows,
)
from tests.unit.tables.derived.log_lines import LINE

MINUTE = 60_000_000
START = 29_000_000 * MINUTE
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def log_rows(
    lines: list[tuple[str | None, int]],
    *,
    service: str | None = "web",
    tenant: str = "acme",
    severity: int = 9,
    body_type: str | None = None,
    trace_id: str | None = None,
) -> pa.Table:
    """Rows with a body and microseconds after the start each."""
    return logs(
        [
            {
                "tenant_id": tenant,
                "time": START + micros,
                "service_name": service,
                "severity_number": severity,
                "body": body,
                "body_type": body_type,
                "trace_id": trace_id,
            }
            for body, micros in lines
        ]
    )


SOURCE = pa.schema(
    {
        "tenant_id": pa.dictionary(pa.int32(), pa.string()),
        "time": TIMESTAMP,
        "service_name": pa.dictionary(pa.int32(), pa.string()),
        "severity_number": pa.int32(),
        "body": pa.string(),
        "body_type": pa.dictionary(pa.int32(), pa.string()),
        "trace_id": pa.string(),
    }
)


def logs(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(
        [row | {"time": EPOCH + dt.timedelta(microseconds=row["time"])} for row in rows], SOURCE
    )


def derived(rows: pa.Table, resolution: int = 60) -> list[dict[str, Any]]:
    found = rolled_up(log_pattern_rows(rows), LOG_PATTERNS)
    order = [(name, "ascending") for name in LOG_PATTERNS.key]
    kept: list[dict[str, Any]] = (
        found.filter(pc.equal(found["resolution"], resolution)).sort_by(order).to_pylist()
    )
    return kept


def at(micros: int) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=START + micros)


def test_the_table_is_declared_and_keeps_coarse_rows_for_90_days() -> None:
    assert table_specs()["log_patterns"] is LOG_PATTERNS
    assert LOG_PATTERNS.derived is not None
    assert dict(LOG_PATTERNS.derived.kept_days) == {60: 14, 300: 60, 3600: 90, 86_400: 90}


def test_the_id_of_a_template_is_a_hash_of_its_text_in_every_process() -> None:
    (row,) = log_pattern_rows(log_rows([("order 17 placed", 0)])).to_pylist()
    unsigned = xxhash.xxh3_64_intdigest(b"order <*> placed")
    assert row["pattern_id"] == unsigned - 2**64 * (unsigned >= 2**63)


def test_lines_are_counted_by_template_and_minute() -> None:
    rows = log_rows([("order 1 placed", 5), ("order 2 placed", 9), ("order 3 placed", MINUTE), ("idle", 7)])
    assert [(row["template"], row["time"], row["records"]) for row in by_template(derived(rows))] == [
        ("idle", at(0), 1),
        ("order <*> placed", at(0), 2),
        ("order <*> placed", at(MINUTE), 1),
    ]
    (_, day) = by_template(derived(rows, 86_400))
    assert (day["records"], day["first_time"], day["last_time"]) == (3, at(5), at(MINUTE))
    assert day["example"] == "order 1 placed"


def by_template(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["template"], row["time"]))


def test_tenants_services_and_severities_have_rows_of_their_own() -> None:
    parts = [
        log_rows([("a 1", 0)]),
        log_rows([("a 2", 0)], tenant="other"),
        log_rows([("a 3", 0)], service=None),
        log_rows([("a 4", 0)], severity=17),
    ]
    rows = derived(pa.concat_tables(parts))
    assert sorted(row["example"] for row in rows) == ["a 1", "a 2", "a 3", "a 4"]
    assert {row["records"] for row in rows} == {1}


def test_a_record_without_body_is_not_counted() -> None:
    assert derived(log_rows([(None, 0)])) == []
    assert [row["records"] for row in derived(log_rows([(None, 0), ("", 0)]))] == [1]
    assert rolled_up(log_pattern_rows(log_rows([])), LOG_PATTERNS).num_rows == 0


@pytest.mark.parametrize("body_type", ["int", "double", "bool", "array", "kvlist"])
def test_bodies_that_are_not_text_are_masked_as_their_text_is(body_type: str) -> None:
    (row,) = derived(log_rows([("5", 0), ("6", 0)], body_type=body_type))
    assert (row["template"], row["records"]) == (MASK, 2)


def test_all_bodies_of_bytes_have_one_template() -> None:
    (row,) = derived(log_rows([("aGVsbG8=", 0), ("Zm9v", 1)], body_type="bytes"))
    assert (row["template"], row["records"], row["example"]) == (MASK, 2, "aGVsbG8=")


def test_the_example_is_the_first_line_cut_to_512_characters() -> None:
    (row,) = derived(log_rows([("é 2" + "x" * 600, 5), ("é 1" + "x" * 600, 3)]))
    assert row["example"] == ("é 1" + "x" * 600)[:512]


def test_of_equally_early_lines_the_least_is_the_example_in_any_order() -> None:
    for order in ((1, 2, 3), (3, 2, 1), (2, 1, 3)):
        (row,) = derived(log_rows([(f"a {number}", 4) for number in order]))
        assert row["example"] == "a 1"
        parts = [log_pattern_rows(log_rows([(f"a {number}", 4)])) for number in order]
        rows = rolled_up(pa.concat_tables(parts), LOG_PATTERNS)
        assert set(rows["example"].to_pylist()) == {"a 1"}


def test_the_trace_is_of_the_first_record_that_has_one() -> None:
    rows = [
        log_rows([("a 1", 1)]),
        log_rows([("a 2", 5)], trace_id="f" * 32),
        log_rows([("a 3", 3)], trace_id="e" * 32),
    ]
    for order in ((0, 1, 2), (1, 0, 2), (2, 1, 0)):
        (row,) = derived(pa.concat_tables([rows[place] for place in order]))
        assert (row["example_trace_id"], row["example_trace_time"]) == ("e" * 32, at(3))
        assert (row["example"], row["first_time"]) == ("a 1", at(1))
        landings = [pa.concat_tables([rows[order[0]], rows[order[1]]]), rows[order[2]]]
        parts = [rolled_up(log_pattern_rows(each), LOG_PATTERNS) for each in landings]
        assert set(combine(pa.concat_tables(parts), LOG_PATTERNS)["example_trace_id"].to_pylist()) == {
            "e" * 32
        }
    (row,) = derived(rows[0])
    assert (row["example_trace_id"], row["example_trace_time"]) == (None, None)


# The bound


def letters(number: int) -> str:
    return "".join(chr(ord("g") + int(digit)) for digit in f"{number:04}")


def test_beyond_1000_templates_the_rarest_of_a_minute_are_other() -> None:
    lines = [(f"word {letters(number)}", 0) for number in range(1200) for _ in range(1 + (number < 800))]
    random.Random(1).shuffle(lines)
    rows = derived(log_rows(lines, trace_id="f" * 32))
    (other,) = [row for row in rows if row["pattern_id"] == OTHER_ID]
    kept = [row for row in rows if row["pattern_id"] != OTHER_ID]
    assert (len(kept), other["template"], other["records"]) == (1000, OTHER, 200)
    assert (other["example"], other["example_trace_id"], other["example_trace_time"]) == (None, None, None)
    assert sum(row["records"] for row in kept) == len(lines) - 200
    frequent = {row["template"] for row in kept if row["records"] == 2}
    assert frequent == {f"word {letters(number)}" for number in range(800)}
    rare = sorted(row["pattern_id"] for row in kept if row["records"] == 1)
    ids = derived(log_rows([(f"word {letters(number)}", 0) for number in range(800, 1200)]))
    assert rare == sorted(row["pattern_id"] for row in ids)[:200]


def test_exactly_1000_templates_are_kept_for_each_service_and_minute() -> None:
    lines = [(f"word {letters(number)}", minute * MINUTE) for number in range(1000) for minute in range(2)]
    rows = derived(pa.concat_tables([log_rows(lines), log_rows(lines, service="other")]))
    assert len(rows) == 4000
    assert OTHER_ID not in {row["pattern_id"] for row in rows}


def test_the_bound_counts_a_template_once_for_all_severities() -> None:
    lines = [(f"word {letters(number)}", 0) for number in range(600)]
    rows = derived(pa.concat_tables([log_rows(lines), log_rows(lines, severity=17)]))
    assert len(rows) == 1200


def test_a_line_that_reads_other_is_not_the_bound() -> None:
    (row,) = derived(log_rows([(OTHER, 0)]))
    assert row["pattern_id"] != OTHER_ID
    assert row["example"] == OTHER


# What the table answers

NEW_SINCE_YESTERDAY = """
SELECT service_name, template, sum(records) AS records, arg_min(example, first_time) AS example
FROM log_patterns
WHERE resolution = 3600 AND pattern_id <> 0
GROUP BY service_name, pattern_id, template
HAVING min(first_time) >= $now - INTERVAL 1 DAY
"""


def test_one_query_gives_the_templates_that_are_new_since_yesterday() -> None:
    hour = 60 * MINUTE
    orders = [("order 1 placed", 0), ("order 2 placed", 90 * hour)]
    lines = [*orders, ("disk 7 full", 80 * hour), ("disk 8 full", 85 * hour)]
    log_patterns = rolled_up(log_pattern_rows(log_rows(lines)), LOG_PATTERNS)
    with duckdb.connect() as connection:
        connection.register("log_patterns", log_patterns)
        found = connection.execute(NEW_SINCE_YESTERDAY, {"now": at(96 * hour)}).fetchall()
    assert found == [("web", "disk <*> full", 2, "disk 7 full")]


# Any cut into landings gives the same

ROW = st.fixed_dictionaries(
    {
        "tenant_id": st.sampled_from(["acme", "other"]),
        "time": st.integers(-3, 8).map(lambda place: START + place * 25_000_000),
        "service_name": st.sampled_from(["web", None]),
        "severity_number": st.sampled_from([0, 9, 17]),
        "body": st.one_of(
            st.none(), st.sampled_from(["a 1", "a 2", "b 'x'", "b 'y'", "", "x" * 600 + "1"]), LINE
        ),
        "body_type": st.sampled_from([None, None, None, "bytes", "kvlist"]),
        "trace_id": st.sampled_from([None, "e" * 32, "f" * 32]),
    }
)


@given(st.lists(ROW, max_size=40), st.data())
@settings(deadline=None)
def test_rows_cut_into_landings_in_any_order_merge_to_those_of_a_single_pass(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(rows))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    edges = [0, *cuts, len(rows)]
    parts = [
        rolled_up(log_pattern_rows(logs(shuffled[start:end])), LOG_PATTERNS)
        for start, end in itertools.pairwise(edges)
    ]
    assert in_order(combine(pa.concat_tables(parts), LOG_PATTERNS)) == in_order(
        rolled_up(log_pattern_rows(logs(rows)), LOG_PATTERNS)
    )


def in_order(rows: pa.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rows.sort_by([(name, "ascending") for name in LOG_PATTERNS.key]).to_pylist()
    return found


@given(st.lists(ROW, max_size=40))
@settings(deadline=None)
def test_every_record_with_a_body_is_counted_once_at_each_resolution(rows: list[dict[str, Any]]) -> None:
    found = rolled_up(log_pattern_rows(logs(rows)), LOG_PATTERNS).to_pylist()
    for resolution in (60, 300, 3600, 86_400):
        counted = sum(row["records"] for row in found if row["resolution"] == resolution)
        assert counted == sum(row["body"] is not None for row in rows)


@given(st.lists(ROW, min_size=1, max_size=60), st.randoms(use_true_random=False))
@settings(deadline=None)
def test_the_bound_holds_for_any_rows_and_does_not_depend_on_their_order(
    rows: list[dict[str, Any]], rng: random.Random
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(log_patterns, "TEMPLATES_MAX", 2)
        one = rolled_up(log_pattern_rows(logs(rows)), LOG_PATTERNS)
        rng.shuffle(rows)
        two = rolled_up(log_pattern_rows(logs(rows)), LOG_PATTERNS)
    assert in_order(one) == in_order(two)
    kept: dict[Any, set[int]] = {}
    for row in one.to_pylist():
        if row["resolution"] == 60 and row["pattern_id"] != OTHER_ID:
            kept.setdefault((row["tenant_id"], row["service_name"], row["time"]), set()).add(
                row["pattern_id"]
            )
    assert max(map(len, kept.values()), default=0) <= 2


def test_the_columns_may_be_plain_or_coded_and_in_chunks() -> None:
    rows = log_rows([("a 1", 0), ("b 2", 1), ("a 3", 2)], trace_id="f" * 32)
    plain = rows
    for place, name in enumerate(rows.column_names):
        if pa.types.is_dictionary(rows[name].type):
            plain = plain.set_column(place, name, rows[name].cast(pa.string()))
    wholly_coded = plain.set_column(4, "body", plain["body"].dictionary_encode())
    wholly_coded = wholly_coded.set_column(6, "trace_id", plain["trace_id"].dictionary_encode())
    chunked = pa.concat_tables([rows.slice(0, 1), rows.slice(1)])
    assert derived(plain) == derived(wholly_coded) == derived(chunked) == derived(rows)
