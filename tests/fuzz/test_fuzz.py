"""Long runs of mutated input: only our own errors come out, and protobuf is judged as its own parser does.

Each run lasts FRAZIL_FUZZ_SECONDS (10 if not set) and prints its seed; FRAZIL_FUZZ_SEED repeats one.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import random
import re
import time
import zlib
from collections.abc import Callable, Iterator

import pytest
import zstandard
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from frazil.errors import FrazilError, RequestInvalid
from frazil.otlp.decode import Decoder, conform
from frazil.otlp.encode import encode
from frazil.otlp.framing import Malformed, read_varint
from frazil.otlp.json import request_from_json, request_to_json
from frazil.otlp.shape import ShapeLimits, count_elements, shape_of
from frazil.otlp.split import split
from frazil.otlp.wire import REQUESTS
from frazil.receive.body import decompress
from frazil.tables import SIGNALS, Signal
from frazil.wal.segment import read_facts, read_rows
from tests.support.mutate import bodies, mutated, requests
from tests.support.otlp_canonical import canonical_logs, canonical_metrics, canonical_spans
from tests.unit.wal.test_segment import DATA, DECODER, NAME, resealed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
SECONDS = float(os.environ.get("FRAZIL_FUZZ_SECONDS", "10"))
SEED = os.environ.get("FRAZIL_FUZZ_SEED", str(time.time_ns()))
CANONICAL = {"logs": canonical_logs, "spans": canonical_spans, "metrics": canonical_metrics}
each_signal = pytest.mark.parametrize("signal", SIGNALS)


def rounds(name: str) -> Iterator[random.Random]:
    """A random number generator a round, until the time is over."""
    rng = random.Random(f"{SEED} {name}")
    print(f"FRAZIL_FUZZ_SEED={SEED}")
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        yield rng


def judged_by_protobuf(signal: Signal, body: bytes) -> bool:
    try:
        REQUESTS[signal].FromString(body)
    except DecodeError:
        return False
    return True


LONG_VARINT = re.compile(rb"[\x80-\xff]{4}")


def differs_as_documented(signal: Signal, body: bytes, accepted: bool) -> bool:
    """Where decoding and protobuf's own parser (upb) judge differently. No client sends any of it.

    - upb refuses tags and lengths that are written in more bytes than they may need (five) and field numbers
      beyond 29 bits. ptars reads them, and cutting writes lengths anew.
    - Groups, which protobuf 3 does not have: ptars skips them without asking whether begin and end match, and
      refuses field number 0 inside them, which upb skips.
    """
    long = accepted and LONG_VARINT.search(body) is not None
    return long or has_groups(REQUESTS[signal].DESCRIPTOR, body)


def has_groups(message: Descriptor, data: bytes) -> bool:
    """Whether a group begins or ends in the message or in one inside it, as far as it can be read."""
    at = 0
    try:
        while at < len(data):
            tag, at = read_varint(data, at)
            match tag & 7:
                case 0:
                    _, at = read_varint(data, at)
                case 1:
                    at += 8
                case 5:
                    at += 4
                case 2:
                    size, at = read_varint(data, at)
                    field = message.fields_by_number.get(tag >> 3)
                    inner = None if field is None else field.message_type
                    if inner is not None and has_groups(inner, data[at : at + size]):
                        return True
                    at += size
                case _:
                    return True
    except Malformed:
        pass
    return False


@each_signal
def test_decoding_judges_as_protobuf_does_and_raises_nothing_else(signal: Signal) -> None:
    corpus, decoder = bodies(signal, 300), Decoder(signal, depth_max=32)
    for rng in rounds(f"decode {signal}"):
        body = mutated(rng, corpus)
        try:
            decoded = decoder.decode([body], ["t"], [1])
        except FrazilError as error:
            accepted = False
            if not isinstance(error, RequestInvalid):
                pytest.fail(f"{error!r}: {body.hex()}")
        else:
            accepted = True
            conform(decoded.table, decoder.spec).validate(full=True)
        if accepted != judged_by_protobuf(signal, body):
            assert differs_as_documented(signal, body, accepted), (accepted, body.hex())


@each_signal
def test_what_is_decoded_is_what_protobuf_reads(signal: Signal) -> None:
    """Records mean the same, but for keys that are twice in a list and what only profiles have."""
    corpus, decoder = bodies(signal, 300, 1), Decoder(signal, depth_max=32)
    for rng in rounds(f"meaning {signal}"):
        body = mutated(rng, corpus)
        if not judged_by_protobuf(signal, body):
            continue
        try:
            decoded = decoder.decode([body], ["t"], [1])
        except RequestInvalid:
            continue
        request = REQUESTS[signal].FromString(body)
        if decoded.rejected.any() or is_out_of_comparison(request):
            continue
        assert CANONICAL[signal](encode(decoded.table, decoder.spec)) == CANONICAL[signal](request), (
            body.hex()
        )


def is_out_of_comparison(message: object) -> bool:
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        if field.name.endswith("strindex"):
            return True
        if field.message_type is None:
            continue
        items = value if field.is_repeated else [value]
        if field.message_type.name == "KeyValue" and len({item.key for item in items}) < len(items):
            return True
        if any(is_out_of_comparison(item) for item in items):
            return True
    return False


@each_signal
def test_splitting_raises_nothing_and_changes_no_judgement(signal: Signal) -> None:
    corpus = bodies(signal, 200, 2)
    for rng in rounds(f"split {signal}"):
        body = mutated(rng, corpus)
        parts = list(split(signal, body, rng.choice([0, 1, 7, 30, 100, 300])))
        if judged_by_protobuf(signal, body):
            request = REQUESTS[signal].FromString(body)
            together = REQUESTS[signal].FromString(b"".join(parts))
            assert CANONICAL[signal](together) == CANONICAL[signal](request), body.hex()
        elif all(judged_by_protobuf(signal, part) for part in parts):
            assert differs_as_documented(signal, body, True), body.hex()


UNLIMITED = ShapeLimits(1 << 40, 1 << 40)


@each_signal
def test_counting_raises_nothing_and_counts_what_protobuf_reads(signal: Signal) -> None:
    corpus = bodies(signal, 200, 5)
    for rng in rounds(f"shape {signal}"):
        body = mutated(rng, corpus)
        parsed, walked = shape_of(body, UNLIMITED), shape_of(body, UNLIMITED, parsed_bytes_max=-1)
        with contextlib.suppress(Malformed):
            list(count_elements(signal, body))
        if judged_by_protobuf(signal, body):
            counted = counted_by_protobuf(REQUESTS[signal].FromString(body))
            assert parsed is not None
            assert (parsed.groups, parsed.records) == counted, body.hex()
            if (
                walked != parsed
            ):  # groups: field number 0 is none, and very long ones are malformed to the walk
                assert walked is None, body.hex()
                assert has_groups(REQUESTS[signal].DESCRIPTOR, body), body.hex()


def counted_by_protobuf(request: object) -> tuple[int, int]:
    """Resources and scopes together, and records (of metrics: the metrics)."""

    def children(message: object, number: int) -> list:
        return list(getattr(message, message.DESCRIPTOR.fields_by_number[number].name))  # type: ignore[attr-defined]

    resources = children(request, 1)
    scopes = [scope for resource in resources for scope in children(resource, 2)]
    return len(resources) + len(scopes), sum(len(children(scope, 2)) for scope in scopes)


@each_signal
def test_reading_json_raises_nothing_else_and_writes_protobuf(signal: Signal) -> None:
    corpus = [request_to_json(request) for request in requests(signal, 200, 3)]
    for rng in rounds(f"json {signal}"):
        body = mutated(rng, corpus)
        try:
            written = request_from_json(signal, body, depth_max=32)
        except RequestInvalid:
            continue
        assert judged_by_protobuf(signal, written), body


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstandard.compress,
}


@pytest.mark.parametrize("encoding", list(COMPRESSORS))
def test_decompressing_raises_nothing_else_and_stays_in_its_bound(encoding: str) -> None:
    plain = [b"", b"a", bytes(1000), bytes(range(256)) * 40, *bodies("logs", 30, 4)]
    corpus = [COMPRESSORS[encoding](data) for data in plain]
    corpus += [one + other for one in corpus[:6] for other in corpus[:6]]
    for rng in rounds(f"decompress {encoding}"):
        try:
            data = decompress(mutated(rng, corpus), encoding, 100_000, lambda total: None)
        except FrazilError:
            continue
        assert len(data) <= 100_000


def test_reading_segments_raises_nothing_else() -> None:
    corpus = [DATA]
    for rng in rounds("segments"):
        body = mutated(rng, corpus)
        if rng.random() < 0.7:
            with contextlib.suppress(ValueError):
                body = resealed(body)
        if body == DATA:
            continue
        for read in (read_facts, lambda name, data: read_rows(name, data, DECODER.spec)):
            with contextlib.suppress(FrazilError):
                read(NAME, body)
