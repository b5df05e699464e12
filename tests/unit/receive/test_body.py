"""Decompression: every encoding comes back whole, bombs stop early, damage is noticed."""

from __future__ import annotations

import contextlib
import gzip
import random
import time
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.errors import FrazilError, Overloaded, RequestInvalid, RequestTooLarge
from frazil.receive.body import ENCODINGS, decompress

MIB = 1 << 20


def raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(data) + compressor.flush()


def zstd_stream(data: bytes) -> bytes:
    """As streaming writers make it: no content size in the header, a checksum behind."""
    compressor = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compressobj()
    return compressor.compress(data) + compressor.flush()


COMPRESSORS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "zlib": ("deflate", zlib.compress),
    "raw deflate": ("deflate", raw_deflate),
    "zstd": ("zstd", zstandard.compress),
    "zstd stream": ("zstd", zstd_stream),
}
each_form = pytest.mark.parametrize("form", list(COMPRESSORS))


def plain(body: bytes, encoding: str, bytes_max: int = 64 * MIB) -> bytes:
    return decompress(body, encoding, bytes_max, lambda total: None)


def test_the_encodings_are_those_of_otlp() -> None:
    assert {"gzip", "deflate", "zstd"} == ENCODINGS


@given(
    st.binary(max_size=5000) | st.binary(max_size=20).map(lambda part: part * 3000),
    st.sampled_from(list(COMPRESSORS)),
)
def test_what_was_compressed_comes_back(data: bytes, form: str) -> None:
    encoding, compress = COMPRESSORS[form]
    assert plain(compress(data), encoding) == data


@each_form
def test_large_bodies_come_back(form: str) -> None:
    encoding, compress = COMPRESSORS[form]
    noise = random.Random(1).randbytes(3 * MIB)
    for data in (noise, noise[:7] * MIB, noise + bytes(5 * MIB) + noise):
        assert plain(compress(data), encoding) == data


@pytest.mark.parametrize("form", ["gzip", "zlib", "zstd", "zstd stream"])
@given(parts=st.lists(st.binary(max_size=300), min_size=1, max_size=5))
def test_several_members_are_one_body(form: str, parts: list[bytes]) -> None:
    encoding, compress = COMPRESSORS[form]
    assert plain(b"".join(compress(part) for part in parts), encoding) == b"".join(parts)


def test_padding_behind_gzip_is_no_data() -> None:
    assert plain(gzip.compress(b"a") + bytes(1000), "gzip") == b"a"


def test_skippable_zstd_frames_are_skipped() -> None:
    skipped = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    assert plain(skipped + zstandard.compress(b"a") + skipped + zstandard.compress(b"b"), "zstd") == b"ab"


@each_form
def test_truncated_bodies_are_refused_wherever_they_end(form: str) -> None:
    """A reader that takes the end of the input for the end of the data would ack records it never saw."""
    encoding, compress = COMPRESSORS[form]
    noise = random.Random(2).randbytes(300_000)
    for data in (b"", b"hello", noise):
        body = compress(data)
        for cut in {1, 2, 3, 4, 5, 8, 13, len(body) // 3, len(body) // 2, len(body) - 1}:
            if 0 < cut < len(body):
                with pytest.raises(RequestInvalid):
                    plain(body[:-cut], encoding)


@pytest.mark.parametrize("encoding", sorted(ENCODINGS))
def test_an_empty_body_is_not_valid_in_any_encoding(encoding: str) -> None:
    with pytest.raises(RequestInvalid, match="empty body"):
        plain(b"", encoding)


@settings(max_examples=300)
@given(st.binary(min_size=1, max_size=200), st.sampled_from(sorted(ENCODINGS)))
def test_garbage_is_refused_or_decompressed_and_raises_nothing_else(body: bytes, encoding: str) -> None:
    with contextlib.suppress(RequestInvalid, RequestTooLarge):
        plain(body, encoding, 4 * MIB)


@settings(max_examples=300)
@given(st.sampled_from(list(COMPRESSORS)), st.data())
def test_damaged_bodies_are_refused_or_decompressed_and_raise_nothing_else(
    form: str, data: st.DataObject
) -> None:
    encoding, compress = COMPRESSORS[form]
    body = bytearray(compress(bytes(range(256)) * 20))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with contextlib.suppress(RequestInvalid, RequestTooLarge):
        plain(bytes(body), encoding, 4 * MIB)


@pytest.mark.parametrize("form", ["gzip", "zstd stream"])
def test_a_wrong_checksum_is_refused(form: str) -> None:
    encoding, compress = COMPRESSORS[form]
    body = bytearray(compress(b"hello" * 100))
    body[-5 if encoding == "gzip" else -1] ^= 1
    with pytest.raises(RequestInvalid):
        plain(bytes(body), encoding)


@each_form
def test_the_message_says_which_encoding_was_broken(form: str) -> None:
    encoding, _ = COMPRESSORS[form]
    with pytest.raises(RequestInvalid, match=f"not valid {encoding}"):
        plain(b"\x00\x01 this is nothing", encoding)


@each_form
def test_the_bound_is_exact(form: str) -> None:
    encoding, compress = COMPRESSORS[form]
    data = bytes(2 * MIB + 17)
    assert len(plain(compress(data), encoding, len(data))) == len(data)
    with pytest.raises(RequestTooLarge) as caught:
        plain(compress(data), encoding, len(data) - 1)
    assert caught.value.bytes_max == len(data) - 1


@pytest.mark.slow
@each_form
def test_a_bomb_stops_at_the_bound_before_the_memory_is_taken(form: str) -> None:
    encoding, compress = COMPRESSORS[form]
    bomb = compress(bytes(256 * MIB))
    heard: list[int] = []
    tracemalloc.start()
    try:
        with pytest.raises(RequestTooLarge):
            decompress(bomb, encoding, 4 * MIB, heard.append)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * MIB
    assert heard == sorted(heard)
    assert heard[-1] <= 4 * MIB


def test_a_zstd_window_that_would_take_too_much_memory_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=27, write_content_size=False)
    body = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    data = body.compress(bytes(MIB)) + body.flush()
    with pytest.raises(RequestInvalid):
        plain(data, "zstd", 512 * MIB)


@each_form
def test_growing_is_asked_for_before_each_piece_and_may_be_refused(form: str) -> None:
    encoding, compress = COMPRESSORS[form]
    heard: list[int] = []

    def grow(total: int) -> None:
        heard.append(total)
        if total > 3 * MIB:
            raise Overloaded("no room", bound="memory")

    with pytest.raises(Overloaded):
        decompress(compress(bytes(32 * MIB)), encoding, 64 * MIB, grow)
    assert 3 * MIB < heard[-1] <= 5 * MIB


@pytest.mark.parametrize(
    "body",
    [gzip.compress(b"") * 200_000, gzip.compress(b"")[:-8] * 200_000, gzip.compress(b"a") + bytes(30 * MIB)],
    ids=["empty members", "broken members", "padding"],
)
def test_a_body_of_very_many_members_does_not_keep_a_core_busy(body: bytes) -> None:
    begin = time.process_time()
    with contextlib.suppress(FrazilError):
        plain(body, "gzip")
    assert time.process_time() - begin < 3
