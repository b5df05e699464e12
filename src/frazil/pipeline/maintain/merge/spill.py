"""Rows in order that wait on the local disk until it is their turn."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pyarrow as pa

from frazil.errors import StoreUnavailable


class Spilled:
    """As fast to write and to read as memory allows, and each open one holds a single batch. Where the
    system allows it, the file has no name any more: it goes when this goes, also if the process is killed.
    """

    def __init__(self, table: pa.Table, batch_rows: int) -> None:
        try:
            descriptor, name = tempfile.mkstemp(prefix="frazil-")
        except OSError as error:
            raise StoreUnavailable(f"no temporary file can be made: {error}") from None
        os.close(descriptor)
        try:
            with (
                pa.OSFile(name, "wb") as sink,
                pa.ipc.new_file(
                    sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")
                ) as writer,
            ):
                writer.write_table(table, batch_rows)
            self._file = pa.OSFile(name)
        except OSError as error:
            raise StoreUnavailable(f"{name}: {error}; a merge needs room for temporary files") from None
        finally:
            with contextlib.suppress(OSError):
                Path(name).unlink()

    def tables(self) -> Iterator[pa.Table]:
        reader = pa.ipc.open_file(self._file)
        for number in range(reader.num_record_batches):
            yield pa.Table.from_batches([reader.get_batch(number)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
