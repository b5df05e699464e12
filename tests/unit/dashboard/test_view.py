"""Errors as pages show them."""

from __future__ import annotations

import pytest

from frazil.dashboard.api_client import ApiError
from frazil.dashboard.view import LABELS, error_text


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
