"""The service as a whole: what is cached, what is counted, what goes wrong and how it is said."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from frazil.errors import QueryInvalid, QueryRefused, StoreUnavailable
from frazil.query.model import AsOf
from tests.support.query.small_lake import (
    LANDED_PER_DAY,
    TAIL_ROWS,
    Service,
    add_tail,
    files_of,
    rows_of,
    running,
)

COUNT = "SELECT count(*) FROM logs"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("lake")
    with running(folder, audit_file=folder / "audit.jsonl") as service:
        yield service


def audit_of(service: Service) -> list[dict[str, object]]:
    path = service.config.query.audit_file
    assert path is not None
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def test_the_same_question_of_the_same_rows_is_answered_from_the_cache(service: Service) -> None:
    first, second = service.execute(COUNT), service.execute(COUNT)
    assert (first.stats.cached, second.stats.cached) == (False, True)
    assert first.rows == second.rows == [[rows_of("acme")]]
    assert first.stats.id != second.stats.id
    assert (second.stats.files, second.stats.tail_rows) == (first.stats.files, first.stats.tail_rows)


def test_neither_another_tenant_nor_another_format_has_its_answer(service: Service) -> None:
    sql = "SELECT count(*), min(body) FROM logs"
    assert service.execute(sql).rows == [[rows_of("acme"), "acme-secret 0"]]
    other = service.execute(sql, "globex")
    assert not other.stats.cached
    assert other.rows == [[rows_of("globex"), "globex-secret 0"]]
    assert service.execute(sql, format="csv").body.startswith(b'"count_star()"')
    assert service.execute(sql + " WHERE body <> $1", params=["a"]).rows != []
    assert not service.execute(sql + " WHERE body <> $1", params=["b"]).stats.cached


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT now()",
        "SELECT random()",
        "SELECT uuid()",
        "SELECT current_timestamp",
        "SELECT today()",
        "SELECT count(*) FROM logs WHERE time > now() - INTERVAL 1 HOUR",
        "SELECT * FROM logs USING SAMPLE 3 ROWS",
        "SELECT gen_random_uuid() FROM logs",
    ],
)
def test_what_changes_by_itself_is_not_kept(service: Service, sql: str) -> None:
    service.execute(sql)
    assert not service.execute(sql).stats.cached


def test_a_row_that_comes_makes_the_cache_forget(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        assert service.execute(COUNT).rows == [[rows_of("acme")]]
        assert service.execute(COUNT).stats.cached
        before = sum(TAIL_ROWS.values())
        add_tail(service.config, "logs", {"acme": 1}, time.time_ns(), sequence=1, before=before)
        told = service.execute(COUNT)
        assert not told.stats.cached
        assert told.rows == [[rows_of("acme") + 1]]


def test_stats_say_what_an_answer_was_made_of(service: Service) -> None:
    told = service.execute("SELECT body FROM logs ORDER BY body")
    size = sum(os.path.getsize(path) for path in files_of(service.config, "acme"))
    stats = told.stats
    assert (stats.rows, stats.files, stats.files_total) == (rows_of("acme"), 2, 2)
    assert (stats.bytes, stats.tail_rows) == (size, TAIL_ROWS["acme"])
    assert stats.stale is None
    assert not stats.missing
    none = service.execute("SELECT count(*) FROM logs WHERE time > now() + INTERVAL 1 DAY").stats
    assert (none.files, none.files_total) == (0, 2)
    assert service.execute("SELECT 1").stats.files_total == 0


def test_a_past_version_has_its_own_rows_and_no_tail(service: Service) -> None:
    snapshot = service.execute("SELECT count(*) AS landed FROM logs").stats.snapshots["logs"]
    for tenant in ("acme", "globex"):
        told = service.execute(COUNT, tenant, as_of=AsOf(snapshot_id=snapshot))
        assert told.rows == [[2 * LANDED_PER_DAY[tenant]]]
        assert told.stats.tail_rows == 0
    for as_of in (AsOf(snapshot_id=1), AsOf(tag="no such tag"), AsOf(time=0)):
        with pytest.raises(QueryInvalid) as unknown:
            service.execute(COUNT, as_of=as_of)
        assert str(service.config.data_dir) not in str(unknown.value)


@pytest.mark.parametrize(
    ("sql", "error", "at", "text"),
    [
        ("SELECT servce_name FROM logs", QueryInvalid, "servce_name", "service_name"),
        ("SELECT * FROM lgs", QueryInvalid, "lgs", "logs"),
        ("SELEC 1", QueryInvalid, "SELEC", "syntax"),
        ("SELECT * FROM read_csv('x')", QueryRefused, "read_csv", "read_csv"),
        ("SELECT 1 FROM logs WHERE getenv('x')", QueryRefused, "getenv", "getenv"),
        ("SELECT body::INTEGER FROM logs", QueryInvalid, None, "convert"),
        ("SELECT 1 + 'x'", QueryInvalid, None, "x"),
        ("SELECT 'x'::BIT", QueryInvalid, None, ""),
        ("SELECT '1'::BIT", QueryInvalid, None, "VARCHAR"),
        ("SELECT md5_number('x')", QueryInvalid, None, "VARCHAR"),
    ],
)
def test_errors_say_what_and_where(
    service: Service, sql: str, error: type[QueryInvalid], at: str | None, text: str
) -> None:
    with pytest.raises(error) as failed:
        service.execute(sql)
    assert text.lower() in str(failed.value).lower()
    if at is not None:
        assert failed.value.position == sql.index(at)


def test_a_column_that_is_there_twice_has_two_names(service: Service) -> None:
    columns = orjson.loads(service.execute("SELECT 1 AS a, 2 AS a, 3 AS a_1").body)["columns"]
    assert [column["name"] for column in columns] == ["a", "a_1", "a_1_1"]


@pytest.mark.parametrize("how", ["gone", "broken"])
def test_a_file_that_cannot_be_read_is_named_where_a_part_will_do(tmp_path: Path, how: str) -> None:
    with running(tmp_path) as service:
        path = files_of(service.config, "acme")[0]
        data = path.read_bytes()
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes(b"x" * len(data))
        with pytest.raises(StoreUnavailable) as failed:
            service.execute("SELECT max(body) FROM logs")
        assert str(tmp_path) not in str(failed.value)
        told = service.execute("SELECT count(*), max(body) FROM logs", partial=True)
        assert told.rows[0][0] == LANDED_PER_DAY["acme"] + TAIL_ROWS["acme"]
        assert len(told.stats.missing) == 1
        assert str(tmp_path) not in told.stats.missing[0]
        assert told.stats.files == 1
        path.write_bytes(data)
        again = service.execute("SELECT count(*), max(body) FROM logs", partial=True)
        assert not again.stats.cached
        assert again.rows[0][0] == rows_of("acme")


def test_the_audit_knows_who_asked_what_and_not_the_data(service: Service) -> None:
    service.execute(
        "SELECT count(*) FROM logs WHERE body = 'hunter2' AND severity_number > 4711", who="key-1", id="q1"
    )
    with pytest.raises(QueryInvalid):
        service.execute("SELECT 'hunter2' FROM nowhere", params=["hunter2"], id="q2")
    notes = {note["id"]: note for note in audit_of(service)}
    assert notes["q1"]["tenant"] == "acme"
    assert notes["q1"]["who"] == "key-1"
    assert notes["q1"]["outcome"] == "ok"
    assert notes["q1"]["sql"] == "SELECT count(*) FROM logs WHERE body = ? AND severity_number > ?"
    assert notes["q2"]["outcome"] == "QueryInvalid"
    assert "hunter2" not in orjson.dumps(audit_of(service)).decode()
    path = service.config.query.audit_file
    assert path is not None
    assert path.stat().st_mode & 0o077 == 0


def test_metrics_count(service: Service) -> None:
    def value(name: str, **labels: str) -> float:
        return service.queries.registry.get_sample_value(name, labels) or 0

    before = (
        value("frazil_queries_total", outcome="ok"),
        value("frazil_queries_total", outcome="QueryRefused"),
    )
    tail_rows = value("frazil_query_tail_rows_total")
    service.execute("SELECT count(*) FROM logs WHERE body <> 'metrics'")
    with pytest.raises(QueryRefused):
        service.execute("FROM glob('/*')")
    after = value("frazil_queries_total", outcome="ok"), value("frazil_queries_total", outcome="QueryRefused")
    assert (after[0] - before[0], after[1] - before[1]) == (1, 1)
    assert value("frazil_query_tail_rows_total") - tail_rows == TAIL_ROWS["acme"]
    assert value("frazil_queries_running") == value("frazil_queries_waiting") == 0


def test_nothing_is_wrong_and_closing_twice_is_fine(tmp_path: Path) -> None:
    with running(tmp_path, filled=False) as service:
        assert service.queries.problems() == {}
        assert service.execute(COUNT).rows == [[0]]
        service.run(service.queries.close())
        with pytest.raises(StoreUnavailable):
            service.execute(COUNT)


@pytest.mark.parametrize(
    ("words", "found"), [("", True), ("  ", True), ("SECRET acme", True), ("secret nowhere", False)]
)
def test_search_wants_all_words_and_none_are_all(service: Service, words: str, found: bool) -> None:
    rows = service.execute(
        "SELECT bool_and(search(body, $1)), search(NULL, $1) FROM logs", params=[words]
    ).rows
    assert rows == [[found, False]]


def test_columns_by_place_are_those_of_the_table(service: Service) -> None:
    first = service.execute("SELECT DISTINCT #1 FROM (SELECT tenant_id, body FROM logs)").rows
    assert first == [["acme"]]
    assert service.execute("SELECT DISTINCT a, 'body' FROM logs AS l(a)").rows == [["acme", "body"]]
