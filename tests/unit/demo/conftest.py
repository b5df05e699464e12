from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from frazil.demo import DemoOptions, DemoTotals, VirtualClock, run_demo
from tests.support.demo_receivers import Received, grpc_receiver

BEGIN = 1_800_000_000_000_000_000


@pytest.fixture(scope="package")
def shop_run() -> Iterator[tuple[Received, DemoTotals]]:
    """A simulated minute of the shop, received over gRPC."""
    with grpc_receiver() as received:
        options = DemoOptions(endpoint=received.endpoint, duration_seconds=60, traces_per_second=6, seed=7)
        totals = run_demo(options, clock=VirtualClock(BEGIN))
        yield received, totals


@pytest.fixture(scope="package")
def shop(shop_run: tuple[Received, DemoTotals]) -> Received:
    return shop_run[0]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("frazil-demo")]
    assert left == []
