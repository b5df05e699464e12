"""The format of health, which is the same on every role."""

from __future__ import annotations

import json

import pytest

from frazil import __version__
from frazil.health import Health, parse

STALE = Health("api", degraded={"stale": "the catalog does not respond"})
BROKEN = Health("pipeline", failing={"logs": "no room"}, notices={"retention of logs": "confirm it"})


@pytest.mark.parametrize(
    ("health", "live", "ready", "healthy"),
    [
        (Health("receiver"), 200, 200, 200),
        (Health("pipeline", notices={"retention of logs": "confirm it"}), 200, 200, 200),
        (STALE, 200, 200, 503),
        (BROKEN, 200, 503, 503),
    ],
)
def test_the_status_depends_on_what_the_problem_keeps_from_working(
    health: Health, live: int, ready: int, healthy: int
) -> None:
    found = [health.response(path).status for path in ("/livez", "/readyz", "/healthz")]
    assert found == [live, ready, healthy]


def test_every_problem_is_named_and_a_process_that_answers_is_alive() -> None:
    assert json.loads(BROKEN.response("/readyz").body) == {
        "ok": False,
        "role": "pipeline",
        "version": __version__,
        "problems": {"logs": "no room", "retention of logs": "confirm it"},
    }
    assert json.loads(BROKEN.response("/livez").body)["problems"] == {}
    assert json.loads(STALE.response("/readyz").body)["ok"] is True


@pytest.mark.parametrize("accept", ["", "*/*", "application/json", "text/plain, application/json"])
def test_the_answer_is_json(accept: str) -> None:
    answer = BROKEN.response("/readyz", accept)
    assert answer.content_type == "application/json"
    assert parse(answer.body) == BROKEN.report("/readyz")


@pytest.mark.parametrize("accept", ["text/plain", "text/html,application/xhtml+xml,*/*;q=0.8"])
def test_people_get_text(accept: str) -> None:
    answer = BROKEN.response("/readyz", accept)
    assert answer.content_type.startswith("text/plain")
    said = f"frazil {__version__} pipeline: not ready: logs: no room; retention of logs: confirm it\n"
    assert answer.body.decode() == said


def test_what_no_role_says_is_not_understood() -> None:
    assert parse(b"<html>") is None
    assert parse(b'{"status": "up"}') is None
