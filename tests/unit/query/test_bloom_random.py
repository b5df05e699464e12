"""Random conditions give the same rows with and without Bloom filters, on files of every age."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from frazil.config import Config
from frazil.pipeline.datafile import Layout
from frazil.pipeline.maintain.predicates.match import Matcher, parse_predicate
from frazil.pipeline.maintain.search import SearchTarget, search_files
from frazil.query.plan import local_path
from frazil.tables import Signal, landed_spec
from frazil.tables.promoted import promoted
from tests.support.query import random_lake
from tests.support.query.random_lake import fill_randomly, table_of
from tests.support.query.small_lake import KEYS, Service, serving

TENANT = "acme"
MANY = (*random_lake.USERS, *(f"t{number}" for number in range(30)))
ROUNDS = 24


def columns(*, bloom: bool, user: Any = "user.id") -> list[dict[str, Any]]:
    return [
        {"attribute": user, "column": "user_id", "bloom": bloom},
        {"attribute": "retries", "type": "int", "bloom": bloom},
    ]


def config_of(folder: Path, promoted: list[dict[str, Any]]) -> Config:
    query = {"temp_dir": folder / "temp", "threads": 1, "workers": 1}
    tables = {"promoted": promoted}
    return Config.model_validate(
        {"data_dir": folder / "data", "tables": tables, "query": query, "auth": {"keys": KEYS}}
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files from before the columns, without filters, filled from other attributes, and with filters."""
    folder = tmp_path_factory.mktemp("bloom")
    ages = [
        ([], 2),
        (columns(bloom=False), 2),
        (columns(bloom=True, user="retries"), 3),
        (columns(bloom=True), 12),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random_lake, "USERS", MANY)
        for number, (then, files) in enumerate(ages):
            fill_randomly(config_of(folder, then), random.Random(number), (TENANT, "globex"), files, 5)
    return folder


@pytest.fixture(scope="module")
def services(folder: Path) -> Iterator[tuple[Service, Service]]:
    """Without filters, and with."""
    with contextlib.ExitStack() as stack:
        one, other = (
            stack.enter_context(serving(config_of(folder, columns(bloom=bloom)))) for bloom in (False, True)
        )
        yield one, other


def condition(rng: random.Random, depth: int = 0) -> str:
    if depth < 2 and rng.random() < 0.4:
        word = rng.choice(("AND", "OR"))
        return f"({condition(rng, depth + 1)} {word} {condition(rng, depth + 1)})"
    users = [f"'{user}'" for user in rng.sample((*MANY, "not there", "3", "many"), rng.choice((1, 1, 2)))]
    numbers = [str(number) for number in rng.sample(range(-4, 9), rng.choice((1, 1, 2)))]
    if rng.random() < 0.6:
        return rng.choice(
            (
                f"user_id = {users[0]}",
                f"user_id IN ({', '.join(users)})",
                f"retries = {numbers[0]}",
                f"retries IN ({', '.join(numbers)})",
            )
        )
    return rng.choice(
        (
            f"retries = {numbers[0]}.0",
            f"retries = '{numbers[0]}'",
            "retries = 2::HUGEINT",
            f"user_id <> {users[0]}",
            f"user_id IS NOT DISTINCT FROM {users[0]}",
            "user_id IS NULL",
            f"NOT retries = {numbers[0]}",
            f"attributes['user.id'] = {users[0]}",
        )
    )


@pytest.mark.parametrize("signal", ["logs", "spans"])
def test_queries_answer_the_same_and_read_fewer_files(
    services: tuple[Service, Service], signal: Signal
) -> None:
    rng = random.Random(signal)
    files = Counter[bool]()
    some = 0
    for _ in range(ROUNDS):
        where = condition(rng)
        sql = f"SELECT time, user_id, retries, attributes::VARCHAR FROM {signal} WHERE {where}"
        without, filtered = (service.execute(sql, TENANT) for service in services)
        assert Counter(map(str, filtered.rows)) == Counter(map(str, without.rows)), where
        assert filtered.stats.files <= without.stats.files, where
        files += Counter({False: without.stats.files, True: filtered.stats.files})
        some += bool(without.rows)
    assert some > ROUNDS / 4, "too few conditions hold for any row"
    assert files[True] < 0.95 * files[False], "filters exclude too few files for this test to mean anything"


@pytest.mark.parametrize("signal", ["logs", "spans"])
def test_searches_of_maintenance_find_the_same_and_read_fewer_files(
    folder: Path, signal: Signal, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(f"search {signal}")
    config = config_of(folder, columns(bloom=True))
    spec, table = landed_spec(signal, promoted(config)), table_of(config, signal)
    layout = Layout.of(table, spec, 1, rewriting=True)
    files = [task.file for task in table.scan().plan_files() if task.file.partition[0] == TENANT]
    read = Counter[bool]()
    matching = Matcher.matching

    def counted(matcher: Matcher, *given: Any) -> Any:
        read[bool(matcher.hashes)] += 1
        return matching(matcher, *given)

    monkeypatch.setattr(Matcher, "matching", counted)
    for _ in range(ROUNDS // 4):
        predicate = parse_predicate(
            f"user_id = '{rng.choice((*MANY, 'not there'))}' AND {condition(rng)}", spec
        )
        found = []
        for bloom in (False, True):
            matcher = Matcher.of(
                predicate, spec, table.schema(), properties=table.properties, bloom_filters=bloom
            )
            searched = search_files(
                layout, {"x": matcher}, False, [SearchTarget.of(file, ["x"]) for file in files]
            )
            found.append([(local_path(each.path), each.rows, each.removed) for each in searched])
        assert found[0] == found[1], predicate.text
    assert read[True] < 0.8 * read[False]
