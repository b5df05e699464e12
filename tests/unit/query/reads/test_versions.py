"""Versions of services in a time range: run in DuckDB over rows that are derived from spans."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import pytest

from frazil.query.reads.time_range import MICRO, TimeRange
from frazil.query.reads.versions import HISTORY_DAYS, Version, service_versions, versions
from tests.support.query.read_engine import Engine
from tests.support.query.read_telemetry import BEGIN, pairs, spans

SECOND = 10**9
HOUR, DAY = 3600, 86_400
RANGE = TimeRange((BEGIN - HOUR) * MICRO, (BEGIN + HOUR) * MICRO)


@pytest.fixture
def engine() -> Engine:
    return Engine()


def sent(engine: Engine, service: str, version: str, *seconds: int, error: bool = False) -> None:
    """Requests of a version, so many seconds after BEGIN."""
    records = [
        {"nanos": each * SECOND, "kind": 2, "status": {"code": 2} if error else {}} for each in seconds
    ]
    request = spans(*records, service=service)
    if version:
        attributes = request.resource_spans[0].resource.attributes
        attributes.extend(pairs({"service.version": version, "deployment.environment.name": "prod"}))
    engine.add("spans", request)


def found(engine: Engine, service: str | None = None) -> Sequence[Version]:
    return versions(engine.records(service_versions(RANGE, RANGE.end, service)))


def test_each_service_has_its_newest_version(engine: Engine) -> None:
    sent(engine, "cart", "1.0", -30 * 60, 60)
    sent(engine, "cart", "1.1", 30)
    sent(engine, "mail", "7", 10)
    assert {each.service: each.version for each in found(engine)} == {"cart": "1.1", "mail": "7"}


def test_of_one_service_all_versions_are_listed_with_their_shares(engine: Engine) -> None:
    sent(engine, "cart", "1.0", 0, 1, 2)
    sent(engine, "cart", "1.1", 3, error=True)
    sent(engine, "mail", "7", 10)
    newest, older = found(engine, "cart")
    assert (newest.version, newest.requests, newest.error_share) == ("1.1", 1, 1.0)
    assert (older.version, older.requests, older.error_share) == ("1.0", 3, 0.0)
    assert older.environment == "prod"
    assert older.last_time == dt.datetime.fromtimestamp(BEGIN + 2, dt.UTC)


def test_the_first_time_is_looked_for_before_the_range(engine: Engine) -> None:
    sent(engine, "cart", "1.0", -5 * DAY, 0)
    (version,) = found(engine, "cart")
    assert version.first_time == dt.datetime.fromtimestamp(BEGIN - 5 * DAY, dt.UTC)
    assert version.is_first_known
    assert version.requests == 1


def test_a_version_from_the_beginning_of_the_history_may_be_older(engine: Engine) -> None:
    sent(engine, "cart", "1.0", -HISTORY_DAYS * DAY, 0)
    (version,) = found(engine, "cart")
    assert not version.is_first_known


def test_a_version_that_sent_nothing_in_the_range_is_not_listed(engine: Engine) -> None:
    sent(engine, "cart", "0.9", -5 * DAY)
    sent(engine, "cart", "", 0)
    assert [each.version for each in found(engine, "cart")] == [""]
