"""The SQL of a view is refused with its place and what to write instead, unless it has the shape that can be
derived incrementally.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.pipeline.derive.views.shape import checked
from frazil.pipeline.derive.views.text import SQL_BYTES_MAX, ViewInvalid, ViewText
from frazil.tables import SIGNALS, table_specs
from frazil.tables.derived.view import ViewQuery, view_query

SOURCES = {signal: table_specs()[signal] for signal in SIGNALS}
OTHERS = [name for name in table_specs() if name not in SOURCES] + ["other_view"]
TIME = "date_trunc('minute', time) AS time"
CHECKOUT = """\
SELECT date_trunc('minute', time) AS time, service_name, attributes['cloud.region'] AS region, -- by region
       count(*) AS calls, sum(CASE WHEN status_code = 2 THEN 1 ELSE 0 END) AS errors, /* all */ max(duration_nano) AS slowest
FROM spans WHERE kind = 2 GROUP BY ALL;
"""  # noqa: E501


def query(sql: str) -> ViewQuery:
    return checked(ViewText("checkout", Path("checkout.sql"), sql), SOURCES, OTHERS)


def refusal(sql: str) -> str:
    with pytest.raises(ViewInvalid) as refused:
        query(sql)
    return str(refused.value)


def test_a_view_of_the_shape_keeps_its_texts_without_comments() -> None:
    found = query(CHECKOUT)
    assert (found.source, found.alias, found.where) == ("spans", "spans", "kind = 2")
    assert {*found.reads} == {"time", "service_name", "attributes", "status_code", "duration_nano", "kind"}
    assert [(each.name, each.rule, each.expression) for each in found.columns] == [
        ("time", "key", "date_trunc('minute', time)"),
        ("service_name", "key", "service_name"),
        ("region", "key", "attributes['cloud.region']"),
        ("calls", "sum", "count(*)"),
        ("errors", "sum", "sum(CASE WHEN status_code = 2 THEN 1 ELSE 0 END)"),
        ("slowest", "max", "max(duration_nano)"),
    ]
    assert (found.columns[-1].function, found.columns[-1].argument) == ("max", "duration_nano")


@pytest.mark.parametrize(
    "sql",
    [
        f"select {TIME}, tenant_id, name, count(*) c from spans group by tenant_id, 1, 3",
        f"select {TIME}, name as n, count(*) c from spans group by time, n",
        f"select {TIME}, name like any ('a', 'b') as c, count(*) as count from spans group by all",
        f"select {TIME}, count, sum(count) s, metric_name from metrics group by all",
        f"select {TIME}, count(*) c from spans s where s.kind = 2 group by all",
        f"select {TIME}, sum(duration_nano) filter (where kind = 2) as c from spans group by all",
        f"select {TIME}, 'it''s -- x' k, count(*) c from spans where name <> 'a\\'b' group by all",
        f"select {TIME}, count(*) c from spans where kind is distinct from 10L group by all",
        f"select {TIME}, case when kind = 2 then 'a' end side, bool_or(kind = 2) o from spans group by all",
        "select time, any(kind = 3) as a, every(kind = 3) e, count_if(kind = 1) i from spans group by time",
        "select timestamp_seconds(unix_seconds(time) div 300 * 300) time, count(1) c from spans group by all",
    ],
)
def test_variants_of_the_shape_are_accepted(sql: str) -> None:
    found = query(sql)
    assert query(found.sql).means(found), "its own text means the same"
    assert "tenant_id" not in [column.name for column in found.columns]


@pytest.mark.parametrize(
    ("sql", "place", "message", "hint"),
    [
        (
            f"select {TIME}, avg(kind) a from spans group by all",
            "1:44",
            "avg() is not",
            "select sum(x) and count(x)",
        ),
        (
            f"select {TIME},\n  count(distinct name) a from spans group by all",
            "2:9",
            "count(DISTINCT …)",
            "make x a key",
        ),
        (
            f"select {TIME}, percentile(kind, 0.5) a from spans group by all",
            "1:44",
            "percentile()",
            "do not merge",
        ),
        (
            f"select {TIME}, max_by(name, time) a from spans group by all",
            "1:44",
            "max_by()",
            "use min or max",
        ),
        (
            "select name, count(*) c from spans group by all",
            "1:8",
            "no column is named time",
            "add date_trunc",
        ),
        (
            f"select {TIME}, count(*) c from span group by all",
            "1:60",
            "there is no table span",
            "did you mean spans?",
        ),
        (
            f"select {TIME}, count(*) c from log_rollups group by all",
            "1:60",
            "a derived table or a view",
            "logs, spans",
        ),
        (f"select {TIME}, count(*) c from other_view group by all", "1:60", "form no cycle", "logs, spans"),
        (
            f"select {TIME}, count(*) c from events group by all",
            "1:60",
            "view of logs",
            "event_name IS NOT NULL",
        ),
        (
            f"select {TIME}, count(*) c from otel.spans group by all",
            "1:60",
            "plain name",
            "one of logs, spans",
        ),
        (
            f"select {TIME}, count(*) c from logs\nwhere severty_number > 3 group by all",
            "2:7",
            "logs has no column severty_number",
            "did you mean severity_number?",
        ),
        (
            f"select {TIME}, count(*) c from logs where rand() > 3 group by all",
            "1:71",
            "rand()",
            "same result",
        ),
        (
            f"select {TIME}, count(*) c from logs where time > now() group by all",
            "1:78",
            "now()",
            "same result",
        ),
        (
            f"select {TIME}, count(*) c from logs where time > current_date group by all",
            "1:78",
            "current_date",
            "same",
        ),
        (
            f"select {TIME}, count(*) c from logs where time > TIMESTAMP 'now' group by all",
            "1:88",
            "clock",
            "same",
        ),
        (
            f"select {TIME}, count(*) c from logs where body in (select 1) group by all",
            "1:80",
            "subquery",
            "row by row",
        ),
        (
            f"select {TIME}, count(*) c from logs where exists (select 1) group by all",
            "1:",
            "subquery",
            "row by row",
        ),
        (
            f"select {TIME}, count(*) c from logs where sum(flags) > 1 group by all",
            "1:71",
            "aggregate sum",
            "its own",
        ),
        (
            f"select {TIME}, sum(flags) over (partition by body) c from logs group by all",
            "1:55",
            "window",
            "query",
        ),
        (
            f"select {TIME}, my_udf(body) b, count(*) c from logs group by all",
            "1:44",
            "my_udf()",
            "docs/views.md",
        ),
        (
            f"select {TIME}, db.f(body) b, count(*) c from logs group by all",
            "1:47",
            "schema",
            "function of Spark",
        ),
        (
            f"select {TIME}, body tenant_id, count(*) c from logs group by all",
            "1:44",
            "tenant_id is always",
            "another name",
        ),
        (
            f"select {TIME}, count(*) tenant_id from logs group by all",
            "1:44",
            "tenant_id cannot",
            "another name",
        ),
        (
            f"select {TIME}, body resolution, count(*) c from logs group by all",
            "1:44",
            "resolution cannot",
            "another",
        ),
        (
            f"select {TIME}, body, body, count(*) c from logs group by all",
            "1:50",
            "body twice",
            "another name",
        ),
        (
            f"select {TIME}, body `a b`, count(*) c from logs group by all",
            "1:44",
            "a b cannot be the name",
            "a-z",
        ),
        (
            f"select {TIME}, sum(flags) / count(*) c from logs group by all",
            "1:55",
            "expression of aggregates",
            "query",
        ),
        (
            f"select {TIME}, coalesce(sum(flags), 0) c from logs group by all",
            "1:53",
            "not possible in a key",
            "its own",
        ),
        (
            f"select {TIME}, sum(sum(flags)) c from logs group by all",
            "1:48",
            "not possible in sum()",
            "its own",
        ),
        (f"select {TIME}, count(*) from logs group by all", "1:44", "has no name", "add AS"),
        (f"select {TIME}, body from logs group by all", "1:8", "has no aggregate", "count(*)"),
        (f"select *, count(*) c from logs group by all", "1:8", "* is not supported", "name the columns"),  # noqa: F541
        (
            "select date_trunc('week', time) as time, count(*) c from logs group by all",
            "1:8",
            "week is longer",
            "'day'",
        ),
        (
            "select date_trunc('minute', received_time) as time, count(*) c from logs group by all",
            "1:8",
            "source's time alone",
            "date_trunc('minute', time)",
        ),
        (
            f"select {TIME}, body, count(*) c from logs group by time",
            "1:80",
            "GROUP BY lacks body",
            "GROUP BY ALL",
        ),
        (
            f"select {TIME}, count(*) c from logs group by time, body",
            "1:80",
            "not a selected column",
            "GROUP BY ALL",
        ),
        (f"select {TIME}, count(*) c from logs group by rollup (time)", "1:74", "rollup()", "GROUP BY ALL"),
        (f"select {TIME}, count(*) c from logs", "1:1", "has no GROUP BY", "GROUP BY ALL"),
        (f"select {TIME}, count(*) c from logs group by all having c > 1", "1:78", "HAVING", "WHERE"),
        (f"select {TIME}, count(*) c from logs group by all order by c", "1:78", "ORDER BY", "in the query"),
        (
            f"select {TIME}, count(*) c from logs join spans on true group by all",
            "1:65",
            "JOIN",
            "one source",
        ),
        (f"select {TIME}, count(*) c from logs, spans group by all", "1:60", "one table", "one of"),
        (
            f"with a as (select 1) select {TIME}, count(*) c from logs group by all",
            "1:1",
            "WITH",
            "one SELECT",
        ),
        (
            f"select {TIME}, count(*) c from logs group by all union select 1",
            "1:1",
            "not a SELECT",
            "two views",
        ),
        (
            f"select {TIME}, count(*) c from logs where attributes.x = 1 group by all",
            "1:71",
            "attributes",
            "['x']",
        ),
        (
            f"select {TIME}, count(*) c from logs where body = ${{x}} group by all",
            "1:78",
            "'${'",
            "variables",
        ),
        (f"select {TIME}, count(*) c from logs where body = :x group by all", "1:78", "parameters", "value"),
        (f"select {TIME}, transform(attributes, x -> x) c, count(*) d from logs group by all", "1:", "", ""),
        ("select 1; select 2", "1:1", "several statements", "each"),
        ("drop table logs", "1:1", "not a SELECT", "SELECT"),
        ("  -- nothing\n", "1:1", "is empty", "docs/views.md"),
        ("select count(* from logs", "1:", "cannot be read as Spark SQL", "a view is SELECT"),
        ("(" * 100, "1:62", "nested too deeply", "simplify"),
    ],
)
def test_others_are_refused_with_the_place_and_a_remedy(
    sql: str, place: str, message: str, hint: str
) -> None:
    found = refusal(sql)
    assert found.startswith(f"checkout.sql:{place}"), found
    first, _, second = found.partition("\n")
    assert message in first
    assert hint in second


def test_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    large, binary = tmp_path / "large.sql", tmp_path / "binary.sql"
    large.write_text("-" * (SQL_BYTES_MAX + 1))
    binary.write_bytes(b"select \xff")
    for path, message in (
        (large, f"has more than {SQL_BYTES_MAX} bytes"),
        (binary, "not UTF-8 text (at byte 7)"),
        (tmp_path / "missing.sql", "cannot be read: No such file"),
        (tmp_path, "cannot be read: Is a directory"),
    ):
        with pytest.raises(ViewInvalid) as refused:
            ViewText.read("v", path)
        assert message in str(refused.value)
        assert str(path) in str(refused.value)


def test_many_words_are_refused() -> None:
    assert "has more than 5000 words" in refusal(
        f"select {TIME}, {'1+' * 3000}1 a, count(*) c from logs group by all"
    )


_PIECES = st.sampled_from(
    [
        *(
            "select",
            "from",
            "where",
            "group by",
            "all",
            "logs",
            "spans",
            "time",
            "body",
            "tenant_id",
            "AS",
            "a",
        ),
        *(
            "count(*)",
            "sum(",
            "max(flags)",
            "(",
            ")",
            ",",
            "'x'",
            '"',
            "'",
            "`",
            "--",
            "/*",
            "*/",
            ";",
            "\\",
            "\n",
        ),
        *(
            "date_trunc('minute', time) AS time",
            "case",
            "when",
            "end",
            "filter (where",
            "attributes['x']",
            "->",
            "::",
        ),
        *(
            "union",
            "order by",
            "over (",
            "1",
            "*",
            "exists",
            "in (",
            "interval",
            "is distinct from",
            "😀",
            "\x00",
            "{",
        ),
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(max_size=200), st.lists(_PIECES, max_size=40).map(" ".join)))
def test_any_text_is_a_view_or_is_refused_with_a_place(sql: str) -> None:
    try:
        found = query(sql)
    except ViewInvalid as refused:
        found, reason = None, str(refused)
    if found is None:
        assert reason.startswith("checkout.sql:")
        assert "\n    " in reason
    else:
        assert query(found.sql).means(found)
        assert found.source in SIGNALS


def test_a_stored_query_is_the_one_that_was_stored() -> None:
    found = query(CHECKOUT)
    assert view_query({"frazil.view": found.to_text()}) == found
    assert view_query({}) is None
    for text in ("{}", "[]", '{"version": 2}', "no JSON"):
        with pytest.raises(ValueError):
            view_query({"frazil.view": text})


def test_only_what_changes_the_rows_changes_the_meaning() -> None:
    found = query(CHECKOUT)
    assert query(CHECKOUT.replace("-- by region", "").replace("  ", " ")).means(found)
    for old, new in (
        ("minute", "hour"),
        ("AS calls", "AS requests"),
        ("kind = 2", "kind = 3"),
        ("max(", "min("),
    ):
        assert not query(CHECKOUT.replace(old, new)).means(found)
