"""A process that runs one query after another, and can be killed at any time.

Reads commands from standard input and writes results to standard output, in the form of `worker_protocol`.
Has no configuration and no environment: every command carries what it needs.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import queue
import re
import resource
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import duckdb
import orjson
import psutil
import pyarrow as pa

from frazil.process import die_with_parent
from frazil.query import worker_protocol
from frazil.query.render import renderer
from frazil.sql.duckdb_errors import describe_error
from frazil.sql.pushdown import Pushdown, packed
from frazil.sql.sandbox import Sandbox, Settings, TableSource, serialized_text, without_constants

_BATCH_ROWS = 2048
"""DuckDB's smallest batch: rows can be large, and batches being rendered are outside DuckDB's memory limit.
"""
_BATCH_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 20
_OVERHEAD_BYTES = 1 << 30
_SPENT_BYTES = 512 << 20
"""A worker that still uses this much memory after a query is replaced."""


class Worker:
    def __init__(self, commands: BinaryIO, output: BinaryIO) -> None:
        self._commands = commands
        self._output = output
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._parser = duckdb.connect(":memory:", config={"autoload_known_extensions": "false"})
        self._settings: Settings | None = None
        self._memory: _MemoryLimit
        self._pushdown: Pushdown
        self._next: Sandbox | None = None
        self._running: Sandbox | None = None
        self._run = self._cancelled = 0
        """Numbers of runs: a cancel command may arrive when the next query has begun."""

    def run(self) -> None:
        threading.Thread(target=self._read_commands, daemon=True, name="commands").start()
        self._send_event({"event": "ready"})
        while (job := self._jobs.get()) is not None:
            if job["op"] == "parse":
                self._parse(job["sql"])
            elif job["op"] == "constrain":
                self._pushdown.declare([TableSource(**view) for view in job["views"]])
                uses = self._pushdown.uses(job["sql"], job["params"], job["now"])
                self._send_event({"event": "constrained", "uses": packed(uses)})
            elif job["op"] == "prepare":
                self._prepare(job)
            elif job["op"] == "run":
                self._run_query(job)

    def _read_commands(self) -> None:
        """Handle `cancel` and `progress` at once, also while a query runs. Queue all other commands."""
        while (frame := worker_protocol.read(self._commands)) is not None:
            message = orjson.loads(frame[1])
            if message["op"] == "cancel":
                self._cancelled = message["run"]
                if self._run == message["run"] and (running := self._running) is not None:
                    with contextlib.suppress(duckdb.Error):  # the query has just ended
                        running.connection.interrupt()
            elif message["op"] == "progress":
                self._send_event({"event": "progress", "run": self._run, "percent": self._progress()})
            else:
                self._jobs.put(message)
        self._jobs.put(None)

    def _progress(self) -> float | None:
        running = self._running
        if running is None:
            return None
        with contextlib.suppress(duckdb.Error, RuntimeError):
            percent = running.connection.query_progress()
            return percent if percent >= 0 else None
        return None

    def _send_event(self, message: Mapping[str, Any]) -> None:
        self._write(worker_protocol.control(message))

    def _write(self, data: bytes) -> None:
        with self._lock:
            self._output.write(data)
            self._output.flush()

    def _parse(self, sql: str) -> None:
        try:
            tree = serialized_text(self._parser, sql)
            self._send_event({"event": "parsed", "tree": tree, "audit": without_constants(sql)})
        except Exception as error:
            self._send_event({"event": "error", **describe_error(error, (), sql)})

    def _prepare(self, job: Mapping[str, Any]) -> None:
        self._settings = Settings(**job["settings"])
        planning = Sandbox(dataclasses.replace(self._settings, threads=1, s3=None))
        self._pushdown = Pushdown(planning, [TableSource(**table) for table in job["tables"]])
        self._next = Sandbox(self._settings)
        serialized_text(self._parser, "SELECT 1")  # measured: the first call takes 180 ms
        self._memory = _MemoryLimit(self._settings.memory_bytes)
        self._send_event({"event": "prepared"})

    def _run_query(self, job: Mapping[str, Any]) -> None:
        settings = Settings(**job["settings"])
        sandbox = self._next
        if sandbox is None or settings != self._settings:
            if sandbox is not None:
                sandbox.close()
            self._settings = settings
            sandbox = Sandbox(settings)
        self._next, self._run, self._running = None, job["run"], sandbox
        tables = [TableSource(**table) for table in job["tables"]]
        event: dict[str, Any]
        try:
            rows, is_cut = self._stream_result(sandbox, tables, job)
            event = {"event": "done", "rows": rows, "cut": is_cut}
        except _LimitExceeded as error:
            event = {"event": "error", "kind": "limit", "limit": error.limit, "message": ""}
        except MemoryError:
            event = {"event": "error", "kind": "memory", "message": ""}
        except Exception as error:
            paths = [settings.temp_dir, *(path for table in tables for path in table.paths)]
            event = {"event": "error", **describe_error(error, paths, job["sql"], job["columns"])}
        self._running = None
        self._send_event({**event, "spent": self._memory.is_spent(sandbox)})
        sandbox.close()
        self._next = Sandbox(settings)

    def _stream_result(
        self, sandbox: Sandbox, tables: Sequence[TableSource], job: Mapping[str, Any]
    ) -> tuple[int, bool]:
        """Returns the number of rows, and whether further rows were dropped."""
        sandbox.fill(tables, job["now"], job["sql"])
        self._check_cancelled()
        result = sandbox.connection.execute(job["sql"], job["params"])
        description = result.description or []
        types = [str(column[1]) for column in description]
        _check_types([column[0] for column in description], types)
        reader = result.to_arrow_reader(_BATCH_ROWS)
        schema = _distinct_names(reader.schema)
        self._send_event(
            {
                "event": "columns",
                "columns": [{"name": name, "type": t} for name, t in zip(schema.names, types, strict=True)],
            }
        )
        rendered = renderer(job["format"], schema, types)
        limits = _ResultLimits(job["rows_max"], job["rows_kept"], job["bytes_max"])
        self._send_data(rendered.begin(), limits)
        for batch in limits.batches(reader, schema):
            self._check_cancelled()
            self._send_data(rendered.batch(batch), limits)
        self._send_data(rendered.end(), limits)
        return limits.rows, limits.is_cut

    def _check_cancelled(self) -> None:
        if self._cancelled == self._run:
            raise duckdb.InterruptException("interrupted")

    def _send_data(self, data: bytes, limits: _ResultLimits) -> None:
        limits.add_bytes(len(data))
        for first in range(0, len(data), _CHUNK_BYTES):
            self._write(worker_protocol.pack(worker_protocol.DATA, data[first : first + _CHUNK_BYTES]))


class _LimitExceeded(Exception):
    def __init__(self, limit: str) -> None:
        self.limit = limit


class _ResultLimits:
    """The size limits of a result. Over `rows_max` the query fails; rows after `rows_kept` are dropped."""

    def __init__(self, rows_max: int, rows_kept: int | None, bytes_max: int) -> None:
        self._rows_max = rows_max
        self._rows_kept = rows_kept
        self._bytes_left = bytes_max
        self.rows = 0
        self.is_cut = False

    def batches(self, reader: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for batch in reader:
            if self._rows_kept is not None and self.rows + batch.num_rows > self._rows_kept:
                batch, self.is_cut = batch.slice(0, self._rows_kept - self.rows), True
            self.rows += batch.num_rows
            if self.rows > self._rows_max:
                raise _LimitExceeded("rows_max")
            yield from self._pieces(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
            if self.is_cut:
                return

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Split a large batch: rendering takes several times the memory of the batch."""
        size = batch.nbytes
        if size <= _BATCH_BYTES:
            yield batch
            return
        if batch.num_rows == 1:
            if size > self._bytes_left:
                raise _LimitExceeded("result_bytes_max")
            yield batch
            return
        half = batch.num_rows // 2
        yield from self._pieces(batch.slice(0, half))
        yield from self._pieces(batch.slice(half))

    def add_bytes(self, size: int) -> None:
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise _LimitExceeded("result_bytes_max")


def _distinct_names(schema: pa.Schema) -> pa.Schema:
    """Make column names unique: `SELECT a, a` is valid SQL, but no result format allows it."""
    seen: dict[str, int] = {}
    fields = []
    for field in schema:
        name = field.name
        while name in seen:
            seen[field.name] += 1
            name = f"{field.name}_{seen[field.name]}"
        seen[name] = 0
        fields.append(field.with_name(name))
    return pa.schema(fields)


_NOT_IN_RESULTS = re.compile(r"\b(UHUGEINT|BIT|BIGNUM|VARIANT|TIME WITH TIME ZONE)\b")
"""Types that DuckDB's Arrow export changes."""


def _check_types(names: Sequence[str], types: Sequence[str]) -> None:
    for name, type_ in zip(names, types, strict=True):
        if found := _NOT_IN_RESULTS.search(re.sub(r"'(?:[^']|'')*'", "", type_)):
            raise duckdb.NotImplementedException(
                f"the column {name} has the type {found.group()}, which results do not support: "
                f'cast it, as in "{name}"::VARCHAR'
            )


class _MemoryLimit:
    """A limit on the process's memory, in addition to DuckDB's own, which does not count everything. Also
    reports whether the memory of a query was returned: allocators may keep it.
    """

    def __init__(self, query_bytes_max: int) -> None:
        _, at_rest = _bytes_used()
        bound = at_rest + 2 * query_bytes_max + _OVERHEAD_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
        self._resident_max = _SPENT_BYTES
        self._data_max = at_rest + query_bytes_max + _SPENT_BYTES

    def is_spent(self, sandbox: Sandbox) -> bool:
        """Return whether the process uses too much memory, even after closing the sandbox to free some."""
        if self._is_within():
            return False
        sandbox.close()
        pa.default_memory_pool().release_unused()
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).malloc_trim(0)
        return not self._is_within()

    def _is_within(self) -> bool:
        resident, data = _bytes_used()
        return resident <= self._resident_max and data <= self._data_max


def _bytes_used() -> tuple[int, int]:
    """Return the resident bytes, and the bytes that RLIMIT_DATA counts."""
    used = psutil.Process().memory_info()
    return used.rss, used.data


def main() -> None:
    die_with_parent()
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")  # if memory runs out, the kernel kills this process first
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # other code must not write to standard output between the messages
    Worker(os.fdopen(os.dup(0), "rb"), output).run()


if __name__ == "__main__":
    main()
