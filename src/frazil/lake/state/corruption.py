"""Data files that are there and do not hold what was written: cut off, or with other bytes in them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def damage_in(error: Exception) -> str | None:
    """What Arrow found wrong with a file, in one line. None if the error says nothing of the file: there is
    no memory, or the system gives a reason of its own, which may pass.
    """
    if isinstance(error, MemoryError):
        return None
    if isinstance(error, pa.ArrowException) or (isinstance(error, OSError) and error.errno is None):
        return str(error).partition("\n")[0] or type(error).__name__
    return None


def damage_of(path: Path) -> str | None:
    """Reads all of a Parquet file. None if that can be done. FileNotFoundError if it is gone."""
    try:
        with pq.ParquetFile(path) as file:
            for number in range(file.num_row_groups):
                for name in file.schema_arrow.names:
                    file.read_row_group(number, [name], use_threads=False)
    except Exception as error:
        if (found := damage_in(error)) is None:
            raise
        return found
    return None
