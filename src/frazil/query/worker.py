"""A process that answers one question after the other, and can be killed over any of them.

It is told what to do on its standard input and answers on its standard output, both in `frames`. It has no
configuration and no environment of its own: what it needs to know comes with each question.
"""

from __future__ import annotations

import contextlib
import ctypes
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
from frazil.sql.explain import explained
from frazil.sql.sandbox import Sandbox, Settings, TableSource, serialized_text, without_constants

_BATCH_ROWS = 2048
"""As few as DuckDB gives: rows can be large, and what is on its way out is outside of its memory limit."""
_BATCH_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 20
_MEMORY_OF_ITS_OWN = 1 << 30
_SPENT_BYTES = 512 << 20
"""A worker that still has so much after a question is replaced."""


class Worker:
    def __init__(self, commands: BinaryIO, answers: BinaryIO) -> None:
        self._commands = commands
        self._answers = answers
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._parser = duckdb.connect(":memory:", config={"autoload_known_extensions": "false"})
        self._settings: Settings | None = None
        self._memory: _Memory
        self._next: Sandbox | None = None
        self._running: Sandbox | None = None
        self._run = self._cancelled = 0
        """Numbers of questions: a word to stop may come when the next has begun."""

    def run(self) -> None:
        threading.Thread(target=self._hear, daemon=True, name="commands").start()
        self._say({"event": "ready"})
        while (job := self._jobs.get()) is not None:
            if job["op"] == "parse":
                self._parse(job["sql"])
            elif job["op"] == "prepare":
                self._prepare(job)
            elif job["op"] == "run":
                self._answer(job)

    def _hear(self) -> None:
        """Cancelling and asking how far it is cannot wait for the question's end."""
        while (frame := worker_protocol.read(self._commands)) is not None:
            message = orjson.loads(frame[1])
            if message["op"] == "cancel":
                self._cancelled = message["run"]
                if self._run == message["run"] and (running := self._running) is not None:
                    with contextlib.suppress(duckdb.Error):  # it has just ended
                        running.connection.interrupt()
            elif message["op"] == "progress":
                self._say({"event": "progress", "run": self._run, "percent": self._progress()})
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

    def _say(self, message: Mapping[str, Any]) -> None:
        self._write(worker_protocol.control(message))

    def _write(self, data: bytes) -> None:
        with self._lock:
            self._answers.write(data)
            self._answers.flush()

    def _parse(self, sql: str) -> None:
        try:
            tree = serialized_text(self._parser, sql)
            self._say({"event": "parsed", "tree": tree, "audit": without_constants(sql)})
        except Exception as error:
            self._say({"event": "error", **explained(error, (), sql)})

    def _prepare(self, job: Mapping[str, Any]) -> None:
        self._settings = Settings(**job["settings"])
        self._make_next()
        self._memory = _Memory(self._settings.memory_bytes)
        self._say({"event": "prepared"})

    def _make_next(self) -> None:
        assert self._settings is not None  # noqa: S101
        self._next = Sandbox(self._settings)

    def _answer(self, job: Mapping[str, Any]) -> None:
        settings = Settings(**job["settings"])
        sandbox = self._next
        if sandbox is None or settings != self._settings:
            if sandbox is not None:
                sandbox.close()
            self._settings = settings
            sandbox = Sandbox(settings)
        self._next, self._run, self._running = None, job["run"], sandbox
        tables = [TableSource(**table) for table in job["tables"]]
        said: dict[str, Any]
        try:
            rows, is_cut = self._send(sandbox, tables, job)
            said = {"event": "done", "rows": rows, "cut": is_cut}
        except _TooMany as error:
            said = {"event": "error", "kind": "limit", "limit": error.limit, "message": ""}
        except MemoryError:
            said = {"event": "error", "kind": "memory", "message": ""}
        except Exception as error:
            paths = [settings.temp_dir, *(path for table in tables for path in table.paths)]
            said = {"event": "error", **explained(error, paths, job["sql"], job["columns"])}
        self._running = None
        self._say({**said, "spent": self._memory.is_spent(sandbox)})
        sandbox.close()
        self._make_next()

    def _send(
        self, sandbox: Sandbox, tables: Sequence[TableSource], job: Mapping[str, Any]
    ) -> tuple[int, bool]:
        sandbox.fill(tables)
        self._stop_if_asked()
        result = sandbox.connection.execute(job["sql"], job["params"])
        description = result.description or []
        types = [str(column[1]) for column in description]
        _check_types([column[0] for column in description], types)
        reader = result.to_arrow_reader(_BATCH_ROWS)
        schema = _distinct_names(reader.schema)
        self._say(
            {
                "event": "columns",
                "columns": [{"name": name, "type": t} for name, t in zip(schema.names, types, strict=True)],
            }
        )
        rendered = renderer(job["format"], schema, types)
        counted = _Counted(job["rows_max"], job["rows_kept"], job["bytes_max"])
        self._data(rendered.begin(), counted)
        for batch in counted.batches(reader, schema):
            self._stop_if_asked()
            self._data(rendered.batch(batch), counted)
        self._data(rendered.end(), counted)
        return counted.rows, counted.is_cut

    def _stop_if_asked(self) -> None:
        if self._cancelled == self._run:
            raise duckdb.InterruptException("interrupted")

    def _data(self, data: bytes, counted: _Counted) -> None:
        counted.took(len(data))
        for first in range(0, len(data), _CHUNK_BYTES):
            self._write(worker_protocol.pack(worker_protocol.DATA, data[first : first + _CHUNK_BYTES]))


class _TooMany(Exception):
    def __init__(self, limit: str) -> None:
        self.limit = limit


class _Counted:
    """Bounds of a result: over `rows_max` it fails, after `rows_kept` the rest is left out."""

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
                raise _TooMany("rows_max")
            yield from self._pieces(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
            if self.is_cut:
                return

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Rendering takes several times the memory of what is rendered."""
        size = batch.nbytes
        if size <= _BATCH_BYTES:
            yield batch
            return
        if batch.num_rows == 1:
            if size > self._bytes_left:
                raise _TooMany("result_bytes_max")
            yield batch
            return
        half = batch.num_rows // 2
        yield from self._pieces(batch.slice(0, half))
        yield from self._pieces(batch.slice(half))

    def took(self, size: int) -> None:
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise _TooMany("result_bytes_max")


def _distinct_names(schema: pa.Schema) -> pa.Schema:
    """`SELECT a, a` is fine in SQL, and in no format."""
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
"""On the way out DuckDB makes something else of them."""


def _check_types(names: Sequence[str], types: Sequence[str]) -> None:
    for name, type_ in zip(names, types, strict=True):
        if found := _NOT_IN_RESULTS.search(re.sub(r"'(?:[^']|'')*'", "", type_)):
            raise duckdb.NotImplementedException(
                f"the column {name} has the type {found.group()}, which results cannot have: "
                f'cast it, as in "{name}"::VARCHAR'
            )


class _Memory:
    """A bound behind DuckDB's own, which does not count all that it takes, nor results on their way. And
    whether what a question took has come back: allocators keep what they had.
    """

    def __init__(self, query_bytes_max: int) -> None:
        _, at_rest = _bytes_used()
        bound = at_rest + 2 * query_bytes_max + _MEMORY_OF_ITS_OWN
        resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
        self._resident_max = _SPENT_BYTES
        self._data_max = at_rest + query_bytes_max + _SPENT_BYTES

    def is_spent(self, sandbox: Sandbox) -> bool:
        """Closes the sandbox where that may help."""
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
    """What is in memory, and what RLIMIT_DATA counts."""
    used = psutil.Process().memory_info()
    return used.rss, used.data


def main() -> None:
    die_with_parent()
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")  # where memory runs out, it is this process that goes
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nobody else may write between the frames
    Worker(os.fdopen(os.dup(0), "rb"), answers).run()


if __name__ == "__main__":
    main()
