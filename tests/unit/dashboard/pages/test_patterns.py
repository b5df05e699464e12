"""Patterns on the Logs page: what it shows in each state, and how much it asks for that."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import pytest

from frazil.dashboard.api_client import ApiError
from frazil.dashboard.time_range import format_range
from tests.support.query.engine_api import EngineApi
from tests.support.query.read_telemetry import BEGIN, logs
from tests.unit.dashboard.pages.conftest import Open, component

SECOND = 10**9
HOUR = 3600
QUERIES_MAX = 3


def range_(hours: float = 1) -> str:
    end = dt.datetime.fromtimestamp(BEGIN + 60, dt.UTC)
    return format_range(end - dt.timedelta(hours=hours), end)


def log(api: EngineApi, body: str, *seconds: int, service: str = "cart", severity: int = 9) -> None:
    records = [{"nanos": each * SECOND, "body": body, "severity_number": severity} for each in seconds]
    api.engine.add("logs", logs(*records, service=service))


@pytest.fixture
def shop(api: EngineApi) -> EngineApi:
    """A pattern that was there the day before, and one that is new."""
    log(api, "user 7 signed in", -20 * HOUR, 1, 2, 3)
    log(api, "payment 12 failed", 4, 5, service="pay", severity=17)
    return api


def rows(opened: Open, **parameters: str) -> list[dict[str, Any]]:
    app = opened("logs", show="Patterns", **{"range": range_(), **parameters})
    assert not app.exception
    assert not app.error
    data = component(app, "patterns")
    found: list[dict[str, Any]] = [] if data is None else data["rows"]
    return found


def test_patterns_have_counts_and_the_new_ones_are_first_and_marked(shop: EngineApi, opened: Open) -> None:
    new, old = rows(opened)
    assert (new["template"], new["records"], new["is_new"]) == (["payment ", " failed"], "2", True)
    assert (new["level"], [name for name, _ in new["services"]]) == ("error", ["pay"])
    assert (old["template"], old["records"], old["is_new"]) == (["user ", " signed in"], "3", False)
    assert sum(old["trend"]) == 3


@pytest.mark.parametrize("hours", [0.25, 720])
def test_patterns_of_any_range_take_at_most_three_queries(
    hours: float, shop: EngineApi, opened: Open
) -> None:
    assert len(rows(opened, range=range_(hours), service="pay")) == 1
    assert len(shop.queries) <= QUERIES_MAX


@pytest.mark.parametrize(
    ("given", "count"),
    [({"q": "signed user"}, 1), ({"severity": "warn"}, 1), ({"service": "cart"}, 1), ({}, 2)],
)
def test_the_filters_of_the_page_apply(
    given: dict[str, str], count: int, shop: EngineApi, opened: Open
) -> None:
    assert len(rows(opened, **given)) == count


def test_filters_that_patterns_do_not_have_are_named(shop: EngineApi, opened: Open) -> None:
    app = opened("logs", show="Patterns", range=range_(), q="/a.b/", attr="k=v")
    assert any("Not applied: the regular expression and attributes." in each.value for each in app.caption)
    assert len(component(app, "patterns")["rows"]) == 2


def test_nothing_is_new_if_there_are_no_earlier_records(api: EngineApi, opened: Open) -> None:
    log(api, "user 7 signed in", 1)
    app = opened("logs", show="Patterns", range=range_())
    data = component(app, "patterns")
    assert not data["rows"][0]["is_new"]
    assert "no earlier records" in data["summary"]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"enabled": False, "lag_seconds": None}, "`log_patterns` is off"),
        ({"lag_seconds": None}, "not in `log_patterns` yet"),
        ({"days_left": 1, "lag_seconds": 30.0}, "1 past day is not in `log_patterns` yet"),
    ],
)
def test_the_page_says_why_patterns_may_be_missing(
    facts: dict[str, Any], said: str, shop: EngineApi, opened: Open
) -> None:
    shop.facts["log_patterns"] = facts
    app = opened("logs", show="Patterns", range=range_())
    assert any(said in info.value for info in app.info)
    assert len(component(app, "patterns")["rows"]) == 2


def test_no_records_and_no_matches_are_told_apart(shop: EngineApi, opened: Open) -> None:
    app = opened("logs", show="Patterns", range="2020-01-01T00:00Z..2020-01-01T01:00Z")
    assert [info.value for info in app.info] == ["No log records with a body in this time range."]
    app = opened("logs", show="Patterns", range=range_(), q="nothing")
    assert [info.value for info in app.info] == ["No patterns match in this time range."]


def test_without_logs_the_page_says_how_to_send_them(api: EngineApi, opened: Open) -> None:
    app = opened("logs", show="Patterns")
    assert [header.value for header in app.subheader] == ["No logs yet"]


def test_an_error_that_may_pass_can_be_tried_again(api: EngineApi, opened: Open) -> None:
    log(api, "user 7 signed in", int(time.time() - BEGIN) - 60)
    api.error = ApiError("too many", code="overloaded", status=503)
    app = opened("logs", show="Patterns", range="1h")
    (error,) = app.error
    assert "Too many concurrent queries" in error.value
    api.error = None
    next(button for button in app.main.button if button.label == "Try again").click().run()
    assert len(component(app, "patterns")["rows"]) == 1


def test_a_late_derivation_is_called_incomplete(shop: EngineApi, opened: Open) -> None:
    shop.missing = ["rows since 10:00 are late"]
    app = opened("logs", show="Patterns", range=range_())
    assert any("Incomplete result" in warning.value for warning in app.warning)
