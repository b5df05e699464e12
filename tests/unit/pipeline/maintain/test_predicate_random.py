"""Random conditions: a mask has the rows that a query with the same WHERE returns, on every file."""

from __future__ import annotations

import collections
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from frazil.config import Config
from frazil.pipeline.maintain.predicates.match import Matcher, may_match, parse_predicate
from frazil.query.plan import local_path
from frazil.tables import Signal, landed_spec
from frazil.tables.promoted import promoted
from tests.support.query.random_lake import USERS, WORDS, fill_randomly, in_row_groups, table_of
from tests.support.query.small_lake import KEYS, Service

pytestmark = pytest.mark.slow

TENANT = "acme"
PROMOTED = [{"attribute": "user.id", "column": "user_id"}, {"attribute": "retries", "type": "int"}]
ROUNDS = 12
# As texts, exactly. Names of spans are what bodies are for logs.
_ROW = {
    "logs": ("time", "severity_number", "body", "trace_id", "attributes"),
    "spans": ("time", "span_id", "name", "trace_id", "attributes"),
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Its files are older than the columns that its configuration promotes."""
    folder = tmp_path_factory.mktemp("random")
    config = Config.model_validate({"data_dir": folder / "data"})
    fill_randomly(config, random.Random(11), (TENANT, "globex"), files=3, rows=60)
    for signal in ("logs", "spans"):
        for task in table_of(config, signal).scan().plan_files():
            in_row_groups(local_path(task.file.file_path), 7)
    query = {"temp_dir": folder / "temp", "threads": 1, "workers": 1}
    now = {"tables": {"promoted": PROMOTED}, "query": query, "auth": {"keys": KEYS}}
    service = Service(Config.model_validate({"data_dir": folder / "data", **now}))
    service.start()
    yield service
    service.close()


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 8))]
)
@pytest.mark.parametrize("signal", ["logs", "spans"])
def test_a_mask_has_the_rows_that_a_query_returns(service: Service, signal: Signal, seed: int) -> None:
    rng = random.Random(f"{signal}{seed}")
    table = table_of(service.config, signal)
    extra = promoted(service.config)
    spec = landed_spec(signal, extra)
    files = [task.file for task in table.scan().plan_files() if task.file.partition[0] == TENANT]
    some = 0
    for _ in range(ROUNDS):
        text = _condition(rng, signal)
        predicate = parse_predicate(text, spec)
        matcher = Matcher.of(predicate, spec, table.schema(), properties=table.properties)
        found: collections.Counter[str] = collections.Counter()
        may = may_match(predicate, files, table.schema(), table.spec(), matcher.fill)
        for file, is_read in zip(files, may, strict=True):
            path = local_path(file.file_path)
            mask = matcher.matching(path)
            found.update(_rows(path, signal, mask.tolist()))
            assert is_read or not mask.any(), text
        assert found == _answered(service, signal, text), text
        some += bool(found)
    assert some, "no condition held for any row: the test says nothing"


def _rows(path: str, signal: str, mask: list[bool]) -> list[str]:
    table = pq.read_table(path, columns=list(_ROW[signal])).filter(pa.array(mask))
    return [_key(list(row.values())) for row in table.to_pylist()]


def _key(values: list[Any]) -> str:
    time, *rest, attributes = values
    return repr((int(time.timestamp() * 10**6), *rest, sorted(attributes or ())))


def _answered(service: Service, signal: str, text: str) -> collections.Counter[str]:
    columns = ", ".join(("epoch_us(time)", *_ROW[signal][1:-1], "map_entries(attributes)"))
    result = service.execute(f"SELECT {columns} FROM {signal} WHERE ({text}\n)", TENANT)
    rows = [
        repr((time, *rest, sorted((entry["key"], entry["value"]) for entry in entries or ())))
        for time, *rest, entries in result.rows
    ]
    return collections.Counter(rows)


def _condition(rng: random.Random, signal: Signal, depth: int = 0) -> str:
    if depth < 3 and rng.random() < 0.55:
        one, other = _condition(rng, signal, depth + 1), _condition(rng, signal, depth + 1)
        return rng.choice(
            (
                f"({one}) AND ({other})",
                f"({one}) OR ({other})",
                f"NOT ({one})",
                f"({one}) IS NOT TRUE",
                f"CASE WHEN {one} THEN {other} END",
                f"coalesce({one}, {other})",
            )
        )
    return rng.choice(_terms(rng, signal))


def _terms(rng: random.Random, signal: Signal) -> list[str]:
    said = "body" if signal == "logs" else "name"
    number = "severity_number" if signal == "logs" else "duration_nano"
    word, user = rng.choice(WORDS).replace("'", "''"), rng.choice(USERS)
    day, compare = f"2026-03-0{rng.randrange(1, 5)}", rng.choice(("<", "<=", "=", ">=", ">", "<>"))
    amount = rng.randrange(25) if signal == "logs" else rng.randrange(10**9)
    shared = [
        f"attributes['user.id'] {compare} '{user}'",
        f"user_id {compare} '{user}'",
        f"user_id IN ('{user}', 'u1')",
        f"retries {compare} {rng.randrange(-2, 6)}",
        f"retries BETWEEN {rng.randrange(-2, 3)} AND {rng.randrange(2, 6)}",
        f"attr_int(attributes, 'retries') {compare} 3",
        "http_response_status_code >= 404",
        f"{said} {compare} '{word}'",
        f"{said} LIKE '{word[:3]}%'",
        f"search({said}, 'U42 user')",
        f"body_json({said}, '$.user.id') = 'u42'",
        f"{said} IS NULL",
        f"time {compare} '{day}'",
        f"time::DATE {compare} DATE '{day}'",
        f"time BETWEEN '2026-03-01' AND TIMESTAMPTZ '{day} 06:00:00+00'",
        f"{number} {compare} {amount}",
        f"{number} IN ({amount}, 9)",
        f"service_name {compare} 'shop'",
        f"trace_id = '{f'0{rng.randrange(4)}' * 16}'",
        f"tenant_id {compare} 'acme'",
        "list_contains(map_keys(attributes), 'retries')",
    ]
    if signal == "spans":
        shared.append(f"len(list_filter(events, lambda e: e.attributes['user.id'] = '{user}')) > 0")
        shared.append("list_contains(list_transform(events, lambda e: e.name), 'login')")
    else:
        shared.append("severity(severity_number) IN ('WARN', 'ERROR')")
    return shared
