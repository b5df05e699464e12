"""Bloom filters of data files: which files can hold a value, such as a trace id or a user id.

The minimum and maximum of such a column exclude no file; the Bloom filters in the files do. Reading the
filters of hundreds of files makes a query slow, so `BloomFilters` keeps them in memory: data files never
change.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow.parquet as pq
import structlog
import xxhash
from numpy.typing import NDArray

from frazil.lake.files import LakeFileIO
from frazil.sql.constraint import Value
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
_VALUES_MAX = 64
_LONG = np.iinfo(np.int64)
_FIELD_ID = b"PARQUET:field_id"
_TYPES = ("BYTE_ARRAY", "INT64")
"""The physical types whose values `hashes_of` can hash."""

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


def hashes_of(values: Collection[Value] | None) -> list[int]:
    """Returns the hashes of the values that a column is compared with. Empty if filters cannot be used: there
    are no values, too many, or one that is neither text nor a 64-bit integer.
    """
    if not values or len(values) > _VALUES_MAX:
        return []
    encoded = [_encoded(value) for value in values]
    known = [each for each in encoded if each is not None]
    return [xxhash.xxh64_intdigest(each) for each in known] if len(known) == len(encoded) else []


def _encoded(value: Value) -> bytes | None:
    """Returns a value in Parquet's PLAIN encoding without a length, which is what writers hash."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int) and not isinstance(value, bool) and _LONG.min <= value <= _LONG.max:
        return value.to_bytes(8, "little", signed=True)
    return None


def lacks(filters: Sequence[BloomFilter], hashes: Sequence[int]) -> bool:
    """Returns whether the filters of a file exclude all of the values. Without filters or values: False."""
    with np.errstate(over="ignore"):
        return bool(filters and hashes) and not any(each.may_hold(hashes) for each in filters)


class FilterCache(Protocol):
    """Keeps filters by path and field id. Thread-safe."""

    def get(self, key: tuple[str, int], /) -> tuple[BloomFilter, ...] | None: ...

    def put(self, key: tuple[str, int], value: tuple[BloomFilter, ...], size: int, /) -> None: ...


class BloomFilters:
    """Reads the filters of many files, and keeps them in a cache. Thread-safe."""

    def __init__(self, cache: FilterCache) -> None:
        self._cache = cache
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="bloom")

    def close(self) -> None:
        self._readers.shutdown(wait=False, cancel_futures=True)

    def matching(
        self, files: Sequence[File], field_id: int, hashes: Sequence[int], io: LakeFileIO
    ) -> Sequence[File]:
        """Returns the files that may contain one of the values. A file without a filter is included."""
        found = self._readers.map(lambda file: self._filters(file, field_id, io), files)
        return [file for file, filters in zip(files, found, strict=True) if not lacks(filters, hashes)]

    def _filters(self, file: File, field_id: int, io: LakeFileIO) -> tuple[BloomFilter, ...]:
        """Returns the filters of all row groups; none if one of them has no filter, or if queries read the
        column's values from the map, which has no filter.
        """
        if file.lacks(field_id):
            return ()
        key = (file.path, field_id)
        if (known := self._cache.get(key)) is not None:
            return known
        try:
            with io.new_input(file.path).open() as source:
                filters = read_filters(source, pq.read_metadata(source), field_id)
        except Exception as error:  # the query reads the same file and reports the error
            log.info("bloom filter not read", reason=str(error)[:300])
            return ()
        self._cache.put(key, filters, sum(each.blocks.nbytes for each in filters) + 200)
        return filters


def read_filters(source: object, footer: pq.FileMetaData, field_id: int) -> tuple[BloomFilter, ...]:
    """Returns the filters that an open file has for a column, one for each row group. None if a row group has
    no filter. By id: a column of the same name may be another one.
    """
    number = _number_of(footer, field_id)
    if number is None or footer.schema.column(number).physical_type not in _TYPES:
        return ()
    filters = []
    for group in range(footer.num_row_groups):
        chunk = footer.row_group(group).column(number)
        if chunk.bloom_filter_offset is None or chunk.bloom_filter_length is None:
            return ()
        source.seek(chunk.bloom_filter_offset)  # type: ignore[attr-defined]
        data = source.read(chunk.bloom_filter_length)  # type: ignore[attr-defined]
        if len(data) != chunk.bloom_filter_length or (size := _blocks_size(data)) is None:
            return ()
        blocks = np.frombuffer(data, np.uint32, offset=len(data) - size).reshape(-1, len(_SALT))
        filters.append(BloomFilter(blocks))
    return tuple(filters)


def _number_of(footer: pq.FileMetaData, field_id: int) -> int | None:
    names = [
        field.name
        for field in footer.schema.to_arrow_schema()
        if (field.metadata or {}).get(_FIELD_ID) == str(field_id).encode()
    ]
    columns = range(footer.num_columns)
    return next((at for at in columns if [footer.schema.column(at).path] == names), None)


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
