"""Decompresses bodies piece by piece, up to a limit."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Iterator

import zstandard
from isal import isal_zlib
from isal.igzip_lib import IsalError

from frazil.errors import RequestInvalid, RequestTooLarge

_PIECE_BYTES = 1 << 20
_MEMBERS_MAX = 10_000
"""Limit on gzip members. An empty one has 20 bytes, so a hostile body could use a core for minutes."""
_PADDING = re.compile(rb"\0*")
_FIRST_FEED_BYTES = 256
_ZSTD_WINDOW_BYTES_MAX = 32 << 20
_END = b"frazil: here the body ends"
_END_FRAME = zstandard.ZstdCompressor(write_checksum=True).compress(_END)


def decompress(body: bytes, encoding: str, bytes_max: int, grow: Callable[[int], None]) -> bytes:
    """Returns the decompressed body. `grow` gets the total before each piece is kept, and may raise."""
    pieces: list[bytes] = []
    total = 0
    try:
        for piece in _PIECES[encoding](body):
            total += len(piece)
            if total > bytes_max:
                raise RequestTooLarge(
                    f"the request is larger than {bytes_max} bytes after decompression; send smaller batches",
                    bytes_max=bytes_max,
                )
            grow(total)
            pieces.append(piece)
    except (zlib.error, IsalError, zstandard.ZstdError, EOFError) as error:  # type: ignore[misc]
        raise RequestInvalid(f"the body is not valid {encoding}: {error}") from None
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _inflate(body: bytes, window_bits: int) -> Iterator[bytes]:
    """Decompresses zlib data; gzip data may have several members.

    Each member returns its unused input as a copy. The input is therefore fed in growing pieces: otherwise a
    body of many tiny members would be copied as many times.
    """
    view, at, members = memoryview(body), 0, 0
    while at < len(view):
        members += 1
        if members > _MEMBERS_MAX:
            raise EOFError(f"more than {_MEMBERS_MAX} members")
        stream = isal_zlib.decompressobj(wbits=window_bits)
        data, feed = b"", _FIRST_FEED_BYTES
        while not stream.eof:
            if not data:
                data = bytes(view[at : at + feed])
                at, feed = at + len(data), min(2 * feed, _PIECE_BYTES)
                if not data:
                    raise EOFError("truncated data")
            piece = stream.decompress(data, _PIECE_BYTES)
            data = stream.unconsumed_tail
            if piece:
                yield piece
        at -= len(stream.unused_data)
        at = _PADDING.match(body, at).end()  # type: ignore[union-attr]


def _gzip(body: bytes) -> Iterator[bytes]:
    if not body:
        raise EOFError("empty body")
    return _inflate(body, 31)


def _deflate(body: bytes) -> Iterator[bytes]:
    """Accepts zlib's format, as HTTP specifies, and raw deflate, which some clients send."""
    if not body:
        raise EOFError("empty body")
    with_header = len(body) >= 2 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return _inflate(body, 15 if with_header else -15)


def _zstd(body: bytes) -> Iterator[bytes]:
    if not body:
        raise EOFError("empty body")
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    # The reader does not report truncated input. An extra frame after the body is decompressed correctly only
    # if the body is complete.
    with decompressor.stream_reader(io.BytesIO(body + _END_FRAME), read_across_frames=True) as reader:
        held = b""
        while piece := reader.read(_PIECE_BYTES):
            held += piece
            if len(held) > len(_END):
                yield held[: -len(_END)]
                held = held[-len(_END) :]
    if held != _END:
        raise EOFError("truncated data")


_PIECES: dict[str, Callable[[bytes], Iterator[bytes]]] = {"gzip": _gzip, "deflate": _deflate, "zstd": _zstd}
ENCODINGS = frozenset(_PIECES)
