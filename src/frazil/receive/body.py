"""Decompression that stops at a bound, piece by piece, before the memory is taken."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator

import zstandard
from isal import isal_zlib
from isal.igzip_lib import IsalError

from frazil.errors import RequestInvalid, RequestTooLarge

_PIECE_BYTES = 1 << 20
_ZSTD_WINDOW_BYTES_MAX = 32 << 20


def decompressed(body: bytes, encoding: str, bytes_max: int, grow: Callable[[int], None]) -> bytes:
    """The body's plain bytes. `grow` hears of the total before each piece is kept, and may refuse."""
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
    except (zlib.error, IsalError, zstandard.ZstdError, EOFError) as error:
        raise RequestInvalid(f"the body is not valid {encoding}: {error}") from None
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _inflate(body: bytes, window_bits: int) -> Iterator[bytes]:
    """gzip may have several members, one behind the other."""
    rest = body
    while rest:
        stream = isal_zlib.decompressobj(wbits=window_bits)
        data = rest
        while not stream.eof:
            piece = stream.decompress(data, _PIECE_BYTES)
            if not piece and not stream.unconsumed_tail and not stream.eof:
                raise EOFError("it ends too early")
            data = stream.unconsumed_tail
            if piece:
                yield piece
        rest = stream.unused_data.lstrip(b"\0")


def _gzip(body: bytes) -> Iterator[bytes]:
    if not body:
        raise EOFError("it is empty")
    return _inflate(body, 31)


def _deflate(body: bytes) -> Iterator[bytes]:
    """HTTP means zlib's format; some clients send it raw."""
    if not body:
        raise EOFError("it is empty")
    with_header = len(body) >= 2 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return _inflate(body, 15 if with_header else -15)


def _zstd(body: bytes) -> Iterator[bytes]:
    if not body:
        raise EOFError("it is empty")
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    with decompressor.stream_reader(io.BytesIO(body), read_across_frames=True) as reader:
        whole = False
        while piece := reader.read(_PIECE_BYTES):
            whole = True
            yield piece
    if not whole and zstandard.frame_content_size(body) > 0:
        raise EOFError("it ends too early")


_PIECES: dict[str, Callable[[bytes], Iterator[bytes]]] = {"gzip": _gzip, "deflate": _deflate, "zstd": _zstd}
ENCODINGS = frozenset(_PIECES)
