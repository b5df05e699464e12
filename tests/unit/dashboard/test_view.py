"""Errors as pages show them."""

from __future__ import annotations

import datetime as dt
from contextlib import closing

import pytest

from frazil.dashboard.api_client import ApiClient, ApiError, ApiSession
from frazil.dashboard.time_range import parse_range
from frazil.dashboard.view import LABELS, View, error_text
from frazil.times import micros_of


@pytest.mark.parametrize(
    ("parameter", "message", "shown"),
    [
        ("duration_min", "duration_min is not a duration", "Min duration is not a duration."),
        ("attr", "attr must be key", "Attributes must be key."),
        ("q", "q: too long", r"Search\: too long."),
        (None, "attractive", "Attractive."),
        ("trace_id", "a trace id must have", "A trace id must have."),
    ],
)
def test_an_error_names_the_field_as_the_page_labels_it(
    parameter: str | None, message: str, shown: str
) -> None:
    error = ApiError(message, code="request_invalid", status=400, parameter=parameter)
    assert error_text(error) == f"**Invalid request.** {shown}"


def test_an_api_that_is_away_is_said_once() -> None:
    error = ApiError("the API at http://x does not answer", code="unreachable")
    assert error_text(error) == r"The API at http\://x does not answer."


def test_labels_are_words_and_not_parameters() -> None:
    assert all(label[0].isupper() and "_" not in label for label in LABELS.values())


def test_a_page_that_shows_older_data_asks_for_the_same_again() -> None:
    """A statement that had the current time in it would not be found among the last results."""
    relative, fixed = parse_range("24h"), parse_range("2026-11-15T10:00Z..2026-11-15T11:00Z")
    drawn = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=7)
    away = ApiError("away", code="unreachable")
    with closing(ApiClient("http://127.0.0.1:1")) as client:
        api = ApiSession(client, lambda: None)
        views = [View(api, range_, None, None, "", "", {}) for range_ in (relative, fixed)]
        assert views[0].at(drawn).now_micros == views[0].stale(drawn, away).now_micros == micros_of(drawn)
        assert views[1].at(drawn).now_micros > micros_of(drawn)
