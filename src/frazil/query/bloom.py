"""Bloom filters of data files, cached in memory, to find the files that may hold a trace.

A trace id does not depend on time, so the column bounds of a file cannot exclude it. The Bloom filters in the
files can, but reading hundreds of them for each query is slow. Data files never change, so each filter is
read once.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq
import structlog
import xxhash
from numpy.typing import NDArray

from frazil.lake.files import LakeFileIO
from frazil.query.cache import SizedCache
from frazil.sql.index import File

_SALT = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31],
    np.uint32,
)
"""Constants of split block Bloom filters in the Parquet format."""
_BLOCK_BYTES = 32
_FIRST_FIELD_INT = 0x15
_HEADER_BYTES_MAX = 64
_READERS = 8
VALUES_MAX = 64

log = structlog.get_logger("frazil.query")


@dataclass(frozen=True)
class BloomFilter:
    """The Bloom filter of one row group."""

    blocks: NDArray[np.uint32]

    def may_hold(self, hashes: Sequence[int]) -> bool:
        count = len(self.blocks)
        for hash_ in hashes:
            block = self.blocks[((hash_ >> 32) * count) >> 32]
            bits = np.uint32(1) << ((np.uint32(hash_ & 0xFFFFFFFF) * _SALT) >> np.uint32(27))
            if ((block & bits) == bits).all():
                return True
        return False


class BloomFilters:
    """A cache of Bloom filters by file and column. Thread-safe."""

    def __init__(self, bytes_max: int) -> None:
        self._cache: SizedCache[tuple[str, str], tuple[BloomFilter, ...]] = SizedCache(bytes_max)
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="bloom")

    def close(self) -> None:
        self._readers.shutdown(wait=False, cancel_futures=True)

    def matching(
        self, files: Sequence[File], column: str, values: Collection[str], io: LakeFileIO
    ) -> Sequence[File]:
        """Return the files that may hold one of the values. A file without a readable filter is included."""
        hashes = [xxhash.xxh64_intdigest(value.encode()) for value in values]
        found = self._readers.map(lambda file: self._filters(file, column, io), files)
        with np.errstate(over="ignore"):
            return [
                file
                for file, filters in zip(files, found, strict=True)
                if not filters or any(each.may_hold(hashes) for each in filters)
            ]

    def _filters(self, file: File, column: str, io: LakeFileIO) -> tuple[BloomFilter, ...]:
        """Return the filters of all row groups, or none if a row group has no filter."""
        key = (file.path, column)
        if (known := self._cache.get(key)) is not None:
            return known
        try:
            with io.new_input(file.path).open() as source:
                filters = _read(source, column)
        except Exception as error:  # the query reads the same file and reports the error
            log.info("bloom filter not read", reason=str(error)[:300])
            return ()
        self._cache.put(key, filters, sum(each.blocks.nbytes for each in filters) + 200)
        return filters


def _read(source: object, column: str) -> tuple[BloomFilter, ...]:
    footer = pq.read_metadata(source)
    number = next((n for n in range(footer.num_columns) if footer.schema.column(n).path == column), None)
    if number is None:
        return ()
    filters = []
    for group in range(footer.num_row_groups):
        chunk = footer.row_group(group).column(number)
        if chunk.bloom_filter_offset is None or chunk.bloom_filter_length is None:
            return ()
        source.seek(chunk.bloom_filter_offset)  # type: ignore[attr-defined]
        data = source.read(chunk.bloom_filter_length)  # type: ignore[attr-defined]
        if (size := _blocks_size(data)) is None:
            return ()
        blocks = np.frombuffer(data, np.uint32, offset=len(data) - size).reshape(-1, len(_SALT))
        filters.append(BloomFilter(blocks))
    return tuple(filters)


def _blocks_size(data: bytes) -> int | None:
    """Return the size of the blocks: the first field of the Thrift compact header before them."""
    if len(data) < 2 or data[0] != _FIRST_FIELD_INT:
        return None
    coded, shift = 0, 0
    for byte in data[1:6]:
        coded |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    size = coded >> 1  # zigzag; sizes are positive
    header = len(data) - size
    return size if size and size % _BLOCK_BYTES == 0 and 2 < header <= _HEADER_BYTES_MAX else None
