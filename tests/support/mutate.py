"""Inputs that are nearly right: good ones, cut, flipped, spliced, and with lengths and tags that lie."""

from __future__ import annotations

import random

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from frazil.tables import Signal
from tests.support.otlp_requests import (
    logs_requests,
    metrics_requests,
    permuted_wire,
    split_wire,
    trace_requests,
    with_unknown_fields,
)
from tests.support.otlp_wire import varint

STRATEGIES: dict[Signal, SearchStrategy] = {
    "logs": logs_requests(),
    "spans": trace_requests(),
    "metrics": metrics_requests(),
}
_AWKWARD = [
    b"\x00", b"\x7f", b"\x80", b"\xff", b"\xff" * 9 + b"\x01", b"\xff" * 10, b"\x80" * 9 + b"\x02",
    b"\x0a\x00", b"\x12\x00", b"\x0b", b"\x0c", b"\x7b", b"\x7c", b"\x06", b"\x07", b"\x00\x00",
    varint(2**31 - 1), varint(2**32 - 1), varint(2**63), b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80",
]  # fmt: skip


def requests(signal: Signal, count: int, number: int = 0) -> list:
    """`count` requests of a signal, the same for the same number."""
    found: list = []

    @seed(number)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(STRATEGIES[signal])
    def collect(request: object) -> None:
        found.append(request)

    collect()
    return found


def bodies(signal: Signal, count: int, number: int = 0) -> list[bytes]:
    """Their bytes, in all the forms that are valid."""
    out = []
    for index, request in enumerate(requests(signal, count, number)):
        out += [request.SerializeToString(), with_unknown_fields(request, index)]
        out += [permuted_wire(request, index), split_wire(request, index)]
    return out


def mutated(rng: random.Random, corpus: list[bytes]) -> bytes:
    out = bytearray(rng.choice(corpus))
    for _ in range(rng.choice([1, 1, 1, 2, 3, 6])):
        at = rng.randint(0, len(out))
        match rng.randrange(8):
            case 0:
                del out[at:]
            case 1 | 2 if at < len(out):
                out[at] ^= 1 << rng.randrange(8)
            case 3 if at < len(out):
                out[at] = rng.randrange(256)
            case 4:
                out[at:at] = rng.choice(_AWKWARD)
            case 5:
                del out[at : at + rng.randint(1, 5)]
            case 6:
                other = rng.choice(corpus)
                start = rng.randint(0, len(other))
                out[at:at] = other[start : start + rng.randint(0, 30)]
            case _:
                end = min(len(out), at + rng.randint(1, 20))
                out[at:at] = out[at:end]
    return bytes(out)
