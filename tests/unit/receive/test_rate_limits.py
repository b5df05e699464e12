"""Rates of tenants: bytes and requests per second, with bursts."""

from __future__ import annotations

import pytest

from frazil.config import RateLimit, RateLimitsConfig
from frazil.receive.admission import RateLimits
from tests.support.admission import Clock, delay, limits


def test_a_tenant_without_a_limit_sends_what_it_likes() -> None:
    rates = limits(Clock(), bytes_per_second=1)
    for _ in range(100):
        rates.spend("other", 1 << 30)
        assert delay(rates, "other") == 0


def test_bytes_beyond_the_burst_are_refused_until_they_are_paid_off() -> None:
    clock = Clock()
    rates = limits(clock, bytes_per_second=100, burst_bytes=1000)
    rates.spend("shop", 1500)
    assert delay(rates) == pytest.approx(5)
    clock.now += 4.9
    assert delay(rates) == pytest.approx(0.1)
    clock.now += 0.2
    assert delay(rates) == 0


def test_a_burst_is_no_more_than_a_burst_after_any_pause() -> None:
    clock = Clock()
    rates = limits(clock, bytes_per_second=100)
    assert delay(rates) == 0
    clock.now += 1e6
    assert delay(rates) == 0
    rates.spend("shop", 100)
    assert delay(rates) > 0


def test_requests_have_a_rate_of_their_own() -> None:
    clock = Clock()
    rates = limits(clock, bytes_per_second=1 << 30, requests_per_second=2)
    for _ in range(2):
        assert delay(rates) == 0
        rates.spend("shop", 1)
    assert 0 < delay(rates) <= 0.5
    clock.now += 0.6
    assert delay(rates) == 0


def test_less_than_a_request_a_second_lets_one_in_now_and_then() -> None:
    clock = Clock()
    rates = limits(clock, bytes_per_second=1 << 30, requests_per_second=0.1)
    allowed = 0
    for _ in range(100):
        if delay(rates) == 0:
            rates.spend("shop", 1)
            allowed += 1
        clock.now += 1
    assert 9 <= allowed <= 12


def test_tenants_do_not_use_up_each_others_rates() -> None:
    clock = Clock()
    rates = RateLimits(RateLimitsConfig(default=RateLimit(bytes_per_second=10)), clock)
    rates.spend("a", 1000)
    assert delay(rates, "a") > 0
    assert delay(rates, "b") == 0


def test_over_time_a_tenant_gets_its_rate() -> None:
    clock = Clock()
    rates = limits(clock, bytes_per_second=1000, burst_bytes=500)
    sent = 0
    for _ in range(10_000):
        if delay(rates) == 0:
            rates.spend("shop", 100)
            sent += 100
        clock.now += 0.01
    assert sent == pytest.approx(100_000, rel=0.02)
