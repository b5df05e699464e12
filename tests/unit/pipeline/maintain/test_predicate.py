"""Conditions for the removal of rows: which are valid, which are refused, and which rows of a file match."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from frazil.config import Config
from frazil.errors import LimitReached, QueryInvalid, QueryRefused, StoreUnavailable
from frazil.pipeline.maintain.predicates.match import Matcher, Predicate, may_match, parse_predicate
from frazil.query.plan import local_path
from frazil.tables import Fill, Promoted, landed_spec
from tests.support.query.random_lake import fill_randomly, in_row_groups, table_of

LOGS, SPANS = landed_spec("logs"), landed_spec("spans")

CONDITIONS = {
    "attributes['user.id'] = 'u42'": ("attributes",),
    "search(body, 'u42 logged')": ("body",),
    "attr_int(attributes, 'retries') > 3": ("attributes",),
    "severity(severity_number) IN ('WARN', 'ERROR')": ("severity_number",),
    "severity_number < 9": ("severity_number",),
    "body LIKE 'user %' AND NOT body ILIKE '%in'": ("body",),
    "time BETWEEN '2026-03-01' AND TIMESTAMPTZ '2026-03-02 12:00:00+00'": ("time",),
    "time < DATE '2026-03-02' - INTERVAL 2 HOURS": ("time",),
    "tenant_id = 'acme' AND _segment LIKE 'made/%'": ("tenant_id", "_segment"),
    "logs.body = 'x' or BODY is null": ("body",),
    "service_name = 'shop' -- all of them": ("service_name",),
    "service_name /* the shop's */ = 'shop'": ("service_name",),
    "body = ')' OR body = '--' OR body = $$;'$$": ("body",),
    "age(time, TIMESTAMPTZ '2026-03-02') > INTERVAL 1 DAY": ("time",),
    "list_contains(map_keys(attributes), 'user.id')": ("attributes",),
    "len(list_filter([1], lambda body: body > 0)) > 0 AND trace_id IS NULL": ("trace_id", "body"),
    "TRY_CAST(body AS INTEGER) = 3": ("body",),
}
REFUSED = {
    "body = (SELECT 'x')": "contain a query",
    "body IN (SELECT body FROM logs)": "contain a query",
    "EXISTS (FROM logs)": "contain a query",
    "EXISTS (FROM read_text('/etc/hostname'))": "",
    "body = ANY (['a'])": "contain a query",
    "count(*) > 1": "aggregate",
    "max(time) > time": "aggregate",
    "row_number() OVER () > 1": "window",
    "time < now()": "now()",
    "time < current_timestamp": "current_timestamp",
    "CURRENT_DATE > time": "current_date",
    "time < today()": "today()",
    "time < ago(INTERVAL 1 DAY)": "ago()",
    "age(time) > INTERVAL 1 DAY": "age()",
    "random() < 0.5": "random()",
    "system.main.random() < 0.5": "random()",
    "uuid()::VARCHAR = body": "uuid()",
    "current_schema() = 'main'": "current_schema()",
    "len(list_filter([1], lambda x: random() > 0.5)) = 1": "random()",
    "pg_conf_load_time() > time": "pg_conf_load_time",
    "format_type(1, 1) = 'x'": "other tables",
    "body = ?": "parameters",
    "body = $1": "parameters",
    "body = $name": "parameters",
    "COLUMNS(*) IS NULL": "name its columns",
    "#1 = 'acme'": "name its columns",
    "logs IS NOT NULL": "use a column",
    "main.logs IS NOT NULL": "use a column",
    "getenv('HOME') = 'x'": "not available",
    "read_text('/etc/hostname') = 'x'": "not available",
    "current_setting('threads') = '1'": "not available",
    "nextval('x') = 1": "not available",
}
INVALID = {
    "": "empty",
    " \n": "empty",
    "bodi = 'x'": "did you mean body",
    "BODI = 'x'": "did you mean body",
    "serch(body, 'x')": "did you mean search",
    "rowid = 1": "there is no column rowid",
    "file_row_number = 1": "there is no column file_row_number",
    '"number of the row" = 1': "there is no column",
    "filename = 'x'": "there is no column filename",
    "spans.body = 'x'": "spans",
    "body": "VARCHAR",
    "severity_number": "INTEGER",
    "1": "INTEGER",
    "NULL": "INTEGER",
    "(TRUE, FALSE)": "STRUCT",
    "TRUE, FALSE": "",
    "body = 'x'; SELECT 1": "more than one statement",
    "body = 'x';": 'near ";"',
    "TRUE) OR (TRUE": 'near ")"',
    "TRUE) GROUP BY (1": 'near ")"',
    "TRUE) UNION ALL SELECT 1 FROM logs WHERE (TRUE": 'near ")"',
    "TRUE) --": 'near ")"',
    "TRUE) LIMIT (1": 'near ")"',
    "TRUE GROUP BY body": 'near "GROUP"',
    "TRUE ORDER BY body": 'near "ORDER"',
    "TRUE LIMIT 1": 'near "LIMIT"',
    "TRUE UNION SELECT 1": 'near "UNION"',
    "TRUE AS x": "near",
    "body = 'x' /* never ends": "unterminated",
    "body = 'never ends": "unterminated",
    "body = $$never ends": "unterminated",
    "SELECT TRUE": "near",
    "DELETE FROM logs": "near",
    "WHERE TRUE": "near",
    "time < 'yesterday'": "yesterday",
    "severity_number = 'abc'": "abc",
    "'abc'::INTEGER = 1": "abc",
    "regexp_matches(body, '(')": "missing )",
    "unnest([TRUE])": "UNNEST",
    "body = '\x00'": "NUL",
    "body = '\ud800'": "surrogate",
    "NOT " * 5000 + "TRUE": "depth",
    "len(range(100000000000)) > 1": "",
    "body = '" + "x" * (1 << 20) + "'": "bytes",
}


@pytest.mark.parametrize("text", CONDITIONS)
def test_a_condition_names_its_columns(text: str) -> None:
    predicate = parse_predicate(text, LOGS)
    assert predicate.columns == CONDITIONS[text]
    assert not predicate.is_constant


@pytest.mark.parametrize("text", ["TRUE", "1 = 1", "'body' = 'x'", "FALSE -- none", "(((1 IN (1, 2))))"])
def test_a_condition_of_constants_is_marked_as_constant(text: str) -> None:
    predicate = parse_predicate(text, LOGS)
    assert predicate.is_constant
    assert predicate.columns == ()


def test_a_lambda_reads_the_events_of_spans() -> None:
    text = "len(list_filter(events, lambda e: e.attributes['user.id'] = 'u42')) > 0"
    assert parse_predicate(text, SPANS).columns == ("events",)


@pytest.mark.parametrize("text", REFUSED)
def test_a_condition_that_depends_on_more_than_one_row_is_refused(text: str) -> None:
    with pytest.raises(QueryRefused) as refused:
        parse_predicate(text, LOGS)
    assert REFUSED[text].lower() in str(refused.value).lower()


@pytest.mark.parametrize("text", INVALID, ids=lambda text: repr(text[:40]))
def test_a_text_that_is_not_a_condition_is_invalid(text: str) -> None:
    with pytest.raises(QueryInvalid) as invalid:
        parse_predicate(text, LOGS)
    assert INVALID[text].lower() in str(invalid.value).lower()


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("body = 'x' AND bodi = 'y'", "bodi"),
        ("body = 'ü€' AND bodi = 'y'", "bodi"),
        ("body = 'ü€' AND time < now()", "now"),
        ("body = 'ü' AND count(*) > 1", "count"),
        ("body = 'ü') OR (TRUE", ")"),
        ("body = 'ü' AND getenv('HOME') = 'x'", "getenv"),
        ("body = 'ü' AND serch(body, 'x')", "serch"),
        ("body = 'ü' AND (SELECT TRUE)", "(SELECT"),
    ],
)
def test_an_error_says_where(text: str, at: str) -> None:
    with pytest.raises((QueryInvalid, QueryRefused)) as error:
        parse_predicate(text, LOGS)
    assert error.value.position == text.index(at)


def test_a_column_with_the_name_of_a_clock_is_the_column() -> None:
    spec = landed_spec("logs", (Promoted("today", name="today"),))
    assert parse_predicate("today = 'x'", spec).columns == ("today",)
    with pytest.raises(QueryRefused):
        parse_predicate("today() = DATE '2026-01-01'", spec)


# Matching


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Config:
    config = Config.model_validate({"data_dir": tmp_path_factory.mktemp("lake") / "data"})
    fill_randomly(config, random.Random(6), ("acme", "globex"), files=3, rows=60)
    for signal in ("logs", "spans"):
        for task in table_of(config, signal).scan().plan_files():
            in_row_groups(local_path(task.file.file_path), 7)
    return config


@pytest.fixture(scope="module")
def logs(lake: Config) -> list[str]:
    return _paths(lake, "logs")


def _paths(config: Config, signal: Any) -> list[str]:
    tasks = table_of(config, signal).scan().plan_files()
    return sorted(local_path(task.file.file_path) for task in tasks)


def _matcher(config: Config, text: str, signal: Any = "logs", **facts: Any) -> Matcher:
    spec = landed_spec(signal, facts.pop("extra", ()))
    return Matcher.of(parse_predicate(text, spec), spec, table_of(config, signal).schema(), **facts)


def _column(path: str, name: str) -> list[Any]:
    values: list[Any] = pq.read_table(path, columns=[name])[name].to_pylist()
    return values


def test_the_mask_is_in_the_order_of_the_file(lake: Config, logs: list[str]) -> None:
    matcher = _matcher(lake, "attributes['user.id'] = 'u42'")
    for path in logs:
        expected = [dict(row).get("user.id") == "u42" for row in _column(path, "attributes")]
        mask = matcher.matching(path)
        assert mask.dtype == np.bool_
        assert mask.tolist() == expected
        assert 0 < sum(expected) < len(expected)


def test_null_does_not_match(lake: Config, logs: list[str]) -> None:
    for path in logs:
        bodies = _column(path, "body")
        assert None in bodies
        equal = _matcher(lake, "body = 'NULL'").matching(path)
        other = _matcher(lake, "NOT body = 'NULL'").matching(path)
        assert equal.tolist() == [body == "NULL" for body in bodies]
        assert other.tolist() == [body is not None and body != "NULL" for body in bodies]


def test_a_lambda_matches_by_the_events_of_a_span(lake: Config) -> None:
    matcher = _matcher(
        lake, "len(list_filter(events, lambda e: e.attributes['user.id'] = 'u42')) > 0", "spans"
    )
    found = 0
    for path in _paths(lake, "spans"):
        expected = [
            any(dict(event["attributes"]).get("user.id") == "u42" for event in events or ())
            for events in _column(path, "events")
        ]
        found += sum(expected)
        assert matcher.matching(path).tolist() == expected
    assert found


@pytest.mark.parametrize(("text", "expected"), [("TRUE", True), ("FALSE", False), ("1 = 1 -- all", True)])
def test_constants_hold_for_all_rows_or_none(
    lake: Config, logs: list[str], text: str, expected: bool
) -> None:
    mask = _matcher(lake, text).matching(logs[0])
    assert mask.tolist() == [expected] * len(_column(logs[0], "time"))


def test_a_matcher_goes_to_another_process(lake: Config, logs: list[str]) -> None:
    matcher = _matcher(lake, "severity_number < 9")
    again = pickle.loads(pickle.dumps(matcher))
    assert again == matcher
    assert again.matching(logs[0]).tolist() == matcher.matching(logs[0]).tolist()


def test_a_file_from_before_a_column_was_promoted_has_it_in_its_map(lake: Config, logs: list[str]) -> None:
    extra = (Promoted("user.id", name="user_id"), Promoted("retries", type="int"))
    by_user = _matcher(lake, "user_id = 'u42'", extra=extra)
    by_count = _matcher(lake, "retries >= 3", extra=extra)
    for path in logs:
        attributes = [dict(row) for row in _column(path, "attributes")]
        sent = _column(path, "attribute_types")
        assert by_user.matching(path).tolist() == [each.get("user.id") == "u42" for each in attributes]
        assert by_count.matching(path).tolist() == [
            '"retries":"int"' in (types or "").replace(" ", "") and int(each["retries"]) >= 3
            for each, types in zip(attributes, sent, strict=True)
        ]
    assert any(by_count.matching(path).any() for path in logs)


def test_a_row_on_which_the_condition_fails_raises(lake: Config, logs: list[str]) -> None:
    matcher = _matcher(lake, "attributes['retries']::INTEGER >= 3")
    path = next(
        path for path in logs if "many" in {dict(row).get("retries") for row in _column(path, "attributes")}
    )
    with pytest.raises(QueryInvalid, match=r"^logs: .*many.*TRY_CAST") as stopped:
        matcher.matching(path)
    assert not any(path in str(stopped.value) for path in logs)


def test_only_the_columns_it_names_are_read(lake: Config, logs: list[str], tmp_path: Path) -> None:
    """All others are overwritten in a copy."""
    copy = tmp_path / "broken.parquet"
    data = bytearray(Path(logs[0]).read_bytes())
    metadata = pq.read_metadata(logs[0])
    for group in range(metadata.num_row_groups):
        for at in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(at)
            if chunk.path_in_schema != "severity_number":
                begin = chunk.dictionary_page_offset or chunk.data_page_offset
                data[begin : begin + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    copy.write_bytes(data)
    matcher = _matcher(lake, "severity_number < 9")
    assert matcher.matching(str(copy)).tolist() == matcher.matching(logs[0]).tolist()
    with pytest.raises((QueryInvalid, StoreUnavailable)):
        _matcher(lake, "body = 'x'").matching(str(copy))


def test_a_file_without_field_ids_is_not_taken_for_one_without_matches(lake: Config, tmp_path: Path) -> None:
    path = tmp_path / "plain.parquet"
    pq.write_table(pa.table({"severity_number": pa.array([1, 2], pa.int32())}), path)
    with pytest.raises(QueryInvalid, match=r"logs: .*field ids"):
        _matcher(lake, "severity_number < 9").matching(str(path))


def test_a_file_that_is_not_parquet_is_a_store_error(lake: Config, tmp_path: Path) -> None:
    path = tmp_path / "none.parquet"
    path.write_bytes(b"PAR1 no more PAR1")
    for each in (path, tmp_path / "absent.parquet"):
        with pytest.raises(StoreUnavailable, match="logs: a data file cannot be read"):
            _matcher(lake, "severity_number < 9").matching(str(each))


def test_names_of_files_are_no_patterns(lake: Config, logs: list[str], tmp_path: Path) -> None:
    copy = tmp_path / "a[b]*?.parquet"
    copy.write_bytes(Path(logs[0]).read_bytes())
    (tmp_path / "ab1.parquet").write_bytes(Path(logs[1]).read_bytes())
    matcher = _matcher(lake, "severity_number < 9")
    assert matcher.matching(str(copy)).tolist() == matcher.matching(logs[0]).tolist()


@pytest.mark.parametrize(
    "text",
    [
        "EXISTS (FROM read_text('{path}'))",
        "EXISTS (FROM '{path}')",
        "EXISTS (FROM glob('{folder}/*'))",
        "EXISTS (FROM read_parquet('{other}'))",
        "EXISTS (FROM read_text('http://127.0.0.1:9/x'))",
        "TRUE); COPY (SELECT 1) TO '{folder}/written.parquet'; SELECT 1 WHERE (TRUE",
        "TRUE); SET enable_external_access=true; SELECT 1 WHERE (TRUE",
        "TRUE); ATTACH '{folder}/made.db'; SELECT 1 WHERE (TRUE",
    ],
)
def test_nothing_else_is_in_reach_even_past_the_parser(
    lake: Config, logs: list[str], tmp_path: Path, text: str
) -> None:
    secret = tmp_path / "secret.parquet"
    secret.write_bytes(Path(logs[1]).read_bytes())
    text = text.format(path=secret, folder=tmp_path, other=logs[1])
    schema = table_of(lake, "logs").schema()
    unchecked = Matcher.of(Predicate(text, "logs", ("body",), is_constant=False), LOGS, schema)
    with pytest.raises((QueryRefused, QueryInvalid)):
        unchecked.matching(logs[0])
    with pytest.raises((QueryRefused, QueryInvalid)):
        parse_predicate(text, LOGS)
    assert list(tmp_path.iterdir()) == [secret]


def test_no_temporary_file_is_left(lake: Config, logs: list[str], tmp_path: Path) -> None:
    _matcher(lake, "severity_number < 9", temp_dir=str(tmp_path)).matching(logs[0])
    with pytest.raises(QueryInvalid):
        _matcher(lake, "attributes['user.id']::INTEGER = 3", temp_dir=str(tmp_path)).matching(logs[0])
    assert list(tmp_path.iterdir()) == []


def test_memory_is_bounded(lake: Config, tmp_path: Path) -> None:
    identity = table_of(lake, "logs").schema().find_field("body").field_id
    field = pa.field("body", pa.string(), metadata={"PARQUET:field_id": str(identity)})
    bodies = pa.array([f"user {number} logged in" for number in range(200_000)])
    path = tmp_path / "large.parquet"
    pq.write_table(pa.table([bodies], schema=pa.schema([field])), path)
    assert _matcher(lake, "body LIKE '%9 logged in'").matching(str(path)).sum() == 20_000
    with pytest.raises(LimitReached, match=r"^logs: .*memory"):
        _matcher(lake, "body LIKE '%x'", memory_bytes=1 << 20, temp_bytes=1 << 20).matching(str(path))


# Files that cannot match


@pytest.mark.parametrize(
    ("text", "some"),
    [
        ("time < '2026-02-20'", False),
        ("time >= '2026-03-02' AND time < '2026-03-03'", True),
        ("tenant_id = 'acme'", True),
        ("tenant_id = 'nobody'", False),
        ("severity_number > 99", False),
        ("service_name IN ('shop', 'x')", True),
    ],
)
def test_files_are_skipped_by_their_statistics(lake: Config, text: str, some: bool) -> None:
    table = table_of(lake, "logs")
    files = [task.file for task in table.scan().plan_files()]
    matcher = _matcher(lake, text)
    may = may_match(matcher.predicate, files, table.schema(), table.spec(), matcher.fill)
    assert any(may) == some
    assert not all(may) or "service_name" in text
    for file, is_read in zip(files, may, strict=True):
        assert is_read or not matcher.matching(local_path(file.file_path)).any()


@pytest.mark.parametrize("text", ["attributes['user.id'] = 'u42'", "TRUE", "NOT time < '2026-01-01'"])
def test_a_file_without_statistics_may_match(lake: Config, text: str) -> None:
    table = table_of(lake, "logs")
    files = [task.file for task in table.scan().plan_files()]
    assert all(may_match(parse_predicate(text, LOGS), files, table.schema(), table.spec(), Fill({})))


# Whatever is given


_PIECES = st.sampled_from(
    [
        *("body", "time", "attributes", "severity_number", "logs", "events", "x", '"', "'", "$$", "--", "/*"),
        *("(", ")", "[", "]", "{", "}", ",", ";", ".", "*", "#1", "?", "$1", "::", ":=", "->", "=", "<", "%"),
        *("AND", "OR", "NOT", "IN", "LIKE", "BETWEEN", "IS", "NULL", "CASE", "WHEN", "END", "lambda e:"),
        *(
            "SELECT",
            "FROM",
            "WHERE",
            "GROUP BY",
            "UNION",
            "LIMIT",
            "WITH",
            "PIVOT",
            "TABLE",
            "COPY",
            "ATTACH",
        ),
        *("now()", "random()", "count(*)", "sum(", "read_text(", "'/etc/passwd'", "search(", "OVER ()"),
        *("1", "0x", "1e999", "TRUE", "'u42'", "DATE '2026-01-01'", "INTERVAL 1 DAY", "\n", "ü", "\u00a0"),
    ]
)


def _mutated(parts: tuple[str, int, str, int]) -> str:
    text, at, piece, dropped = parts
    at %= len(text) + 1
    return text[:at] + piece + text[at + dropped :]


def _swapped(parts: tuple[str, str, int, int]) -> str:
    """The one with a word of the other, which may well be a condition."""
    one, other = parts[0].split(" "), parts[1].split(" ")
    one[parts[2] % len(one)] = other[parts[3] % len(other)]
    return " ".join(one)


_GOOD = st.sampled_from(list(CONDITIONS))
_ANY = st.sampled_from([*CONDITIONS, *REFUSED])
_PLACE = st.integers(0, 200)
_TEXTS = st.one_of(
    st.text(max_size=60),
    st.lists(_PIECES, max_size=12).map(" ".join),
    st.tuples(_ANY, _PLACE, _PIECES, st.integers(0, 6)).map(_mutated),
    st.tuples(_GOOD, _ANY, _PLACE, _PLACE).map(_swapped),
    st.lists(_GOOD, min_size=2, max_size=4).flatmap(
        lambda several: st.sampled_from(("\nAND ", "\nOR ", "\nIS DISTINCT FROM ", "\n= ")).map(
            lambda between: between.join(several)
        )
    ),
)


@settings(max_examples=50, deadline=None)
@given(text=_TEXTS)
@example(text="TRUE\n) OR (\nTRUE")
@example(text="body = E'\\'' OR body = '\\'")
@example(text="\u00a0TRUE\u2003")
def test_any_text_is_a_condition_or_refused(lake: Config, logs: list[str], text: str) -> None:
    """And what is one gives as many answers as there are rows, or says why not."""
    predicate, position = _parsed(text)
    if predicate is None:
        assert position is None or 0 <= position <= len(text)
        return
    try:
        mask = Matcher.of(predicate, LOGS, table_of(lake, "logs").schema()).matching(logs[0])
    except (QueryInvalid, LimitReached):
        return
    assert len(mask) == pq.read_metadata(logs[0]).num_rows
    if predicate.is_constant:
        assert mask.all() or not mask.any()


def _parsed(text: str) -> tuple[Predicate | None, int | None]:
    try:
        return parse_predicate(text, LOGS), None
    except (QueryInvalid, QueryRefused) as error:
        return None, error.position
