"""What is concluded from random questions, held against DuckDB's answers with and without the other rows."""

from __future__ import annotations

import collections
import random
from collections.abc import Iterator

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.query.needed_rows import compare, connect, start_of_today
from tests.support.query.random_queries import Questions

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with connect() as opened:
        yield opened


def outcome(connection: duckdb.DuckDBPyConnection, seed: int) -> str:
    """invalid, whole (all rows are needed) or less."""
    rng = random.Random(seed)
    questions = Questions(rng, start_of_today())
    sql = questions.question()
    try:
        return compare(connection, rng, sql, questions.params)
    except duckdb.Error as error:
        return f"invalid: {str(error)[:100]}"


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 2**40))
def test_an_answer_needs_no_row_that_is_not_wanted(connection: duckdb.DuckDBPyConnection, seed: int) -> None:
    outcome(connection, seed)


def test_most_random_questions_are_valid_and_many_need_less_than_all_rows(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    counts = collections.Counter(outcome(connection, seed).partition(":")[0] for seed in range(200))
    assert counts["invalid"] < 70, counts
    assert counts["less"] > 50, counts
