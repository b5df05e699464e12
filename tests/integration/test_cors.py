"""Browsers: what a page of an allowed origin may do, and that others may not."""

from __future__ import annotations

import httpx
import pytest

from tests.integration.conftest import ORIGIN
from tests.support.integration.clients import JSON, post
from tests.support.receiver import Receiver

ALLOW = "access-control-allow-origin"


def _preflight(receiver: Receiver, origin: str) -> httpx.Response:
    asked = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type,x-api-key",
    }
    return httpx.options(f"{receiver.http}/v1/traces", headers=asked)


def test_a_preflight_of_an_allowed_origin_is_granted(receiver: Receiver) -> None:
    response = _preflight(receiver, ORIGIN)
    assert (response.status_code, response.content) == (204, b"")
    assert response.headers[ALLOW] == ORIGIN
    assert response.headers["access-control-allow-methods"] == "POST"
    assert response.headers["access-control-allow-headers"] == "content-type,x-api-key"
    assert int(response.headers["access-control-max-age"]) > 0
    assert "origin" in response.headers["vary"].lower()


@pytest.mark.parametrize(
    "origin", ["https://evil.example.com", f"{ORIGIN}.evil.com", ORIGIN.replace("https", "http"), "null", "*"]
)
def test_a_preflight_of_another_origin_grants_nothing(receiver: Receiver, origin: str) -> None:
    granted = [name for name in _preflight(receiver, origin).headers if name.startswith("access-control")]
    assert granted == []


def test_answers_and_refusals_can_be_read_by_an_allowed_origin_alone(receiver: Receiver) -> None:
    for body, code in ((b"{}", 200), (b"{", 400)):
        allowed = post(receiver, "logs", body, JSON, headers={"origin": ORIGIN})
        assert (allowed.status_code, allowed.headers[ALLOW]) == (code, ORIGIN)
        other = post(receiver, "logs", body, JSON, headers={"origin": "https://evil.example.com"})
        assert other.status_code == code
        assert ALLOW not in other.headers
        assert ALLOW not in post(receiver, "logs", body, JSON).headers
