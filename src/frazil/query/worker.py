"""A process that answers one question after the other, and can be killed over any of them.

It is told what to do on its standard input and answers on its standard output, both in `frames`. It has no
configuration and no environment of its own: what it needs to know comes with each question.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import resource
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import duckdb
import orjson
import pyarrow as pa

from frazil.family import end_with_parent
from frazil.query import frames
from frazil.query.render import renderer
from frazil.query.sandbox import Sandbox, Settings, TableSource, serialized, without_constants

_BATCH_ROWS = 2048 * 4
_CHUNK_BYTES = 1 << 20
_ERROR_CHARACTERS_MAX = 2000
_MEMORY_OF_ITS_OWN = 2 << 30


class Worker:
    def __init__(self, commands: BinaryIO, answers: BinaryIO) -> None:
        self._commands = commands
        self._answers = answers
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        self._parser = duckdb.connect(":memory:", config={"autoload_known_extensions": "false"})
        self._settings: Settings | None = None
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
        while (frame := frames.read(self._commands)) is not None:
            message = orjson.loads(frame[1])
            if message["op"] == "cancel":
                self._cancelled = message["run"]
                if self._run == message["run"] and (running := self._running) is not None:
                    running.connection.interrupt()
            elif message["op"] == "progress":
                self._say({"event": "progress", "percent": self._progress()})
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
        self._write(frames.control(message))

    def _write(self, data: bytes) -> None:
        with self._lock:
            self._answers.write(data)
            self._answers.flush()

    def _parse(self, sql: str) -> None:
        try:
            tree = serialized(self._parser, sql)
            self._say({"event": "parsed", "tree": tree, "audit": without_constants(sql)})
        except duckdb.Error as error:
            self._say({"event": "error", **_explained(error, ())})

    def _prepare(self, job: Mapping[str, Any]) -> None:
        self._settings = Settings(**job["settings"])
        self._make_next()
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
        paths = [path for table in job["tables"] for path in TableSource(**table).paths]
        try:
            rows, is_cut = self._send(sandbox, job)
            self._say({"event": "done", "rows": rows, "cut": is_cut})
        except _TooMany as error:
            self._say({"event": "error", "kind": "limit", "limit": error.limit, "message": ""})
        except MemoryError:
            self._say({"event": "error", "kind": "memory", "message": ""})
        except (duckdb.Error, pa.ArrowException, OSError, RuntimeError) as error:
            self._say({"event": "error", **_explained(error, paths)})
        finally:
            self._running = None
            sandbox.close()
        self._make_next()

    def _send(self, sandbox: Sandbox, job: Mapping[str, Any]) -> tuple[int, bool]:
        sandbox.fill([TableSource(**table) for table in job["tables"]])
        begin = time.monotonic()
        result = sandbox.connection.execute(job["sql"], job["params"])
        description = result.description or []
        types = [str(column[1]) for column in description]
        reader = result.to_arrow_reader(_BATCH_ROWS)
        schema = _distinct_names(reader.schema)
        self._say(
            {
                "event": "columns",
                "columns": [{"name": name, "type": t} for name, t in zip(schema.names, types, strict=True)],
                "seconds": time.monotonic() - begin,
            }
        )
        rendered = renderer(job["format"], schema, types)
        counted = _Counted(job["rows_max"], job["rows_kept"], job["bytes_max"])
        self._data(rendered.begin(), counted)
        for batch in counted.batches(reader, schema):
            if self._cancelled == self._run:
                raise duckdb.InterruptException("interrupted")
            self._data(rendered.batch(batch), counted)
        self._data(rendered.end(), counted)
        return counted.rows, counted.is_cut

    def _data(self, data: bytes, counted: _Counted) -> None:
        counted.took(len(data))
        for first in range(0, len(data), _CHUNK_BYTES):
            self._write(frames.pack(frames.DATA, data[first : first + _CHUNK_BYTES]))


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
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
            if self.is_cut:
                return

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
        if name in seen:
            seen[name] += 1
            name = f"{name}_{seen[name]}"
        seen.setdefault(name, 0)
        fields.append(field.with_name(name))
    return pa.schema(fields)


_KINDS = {
    "INTERRUPT": "interrupted",
    "Out of Memory": "memory",
    "Permission": "refused",
    "HTTP": "store",
    "IO": "store",
    "INTERNAL": "defect",
    "FATAL": "defect",
}


def _explained(error: Exception, paths: Sequence[str]) -> dict[str, Any]:
    """What DuckDB says, with the place in the SQL, and without the names of files."""
    text = str(error)
    facts: dict[str, Any] = {}
    with contextlib.suppress(ValueError):  # Arrow hands on DuckDB's errors as its own
        facts = json.loads(text[text.index("{") :])
    kind = _KINDS.get(str(facts.get("exception_type")), "invalid")
    if isinstance(error, duckdb.InterruptException):
        kind = "interrupted"
    message = str(facts.get("exception_message") or text)
    named = [path for path in paths if path in message] if kind == "store" else []
    for path in paths:
        message = message.replace(path, "a data file")
    if kind == "memory" and "max_temp_directory_size" in text:
        kind = "temp"
    message = re.sub(r"\n+(?=Candidate bindings|Did you mean)", "; ", message)
    message = re.sub(r"\n\nLINE \d+:.*", "", message, flags=re.DOTALL)
    position = facts.get("position")
    return {
        "kind": kind,
        "message": message[:_ERROR_CHARACTERS_MAX],
        "position": int(position) if position is not None and str(position).isdigit() else None,
        "files": named,
    }


def main() -> None:
    end_with_parent()
    memory = int(sys.argv[1])
    # Behind DuckDB's own limit. Mapped files count too, so there is room for them.
    limit = 4 * memory + _MEMORY_OF_ITS_OWN
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nobody else may write between the frames
    Worker(os.fdopen(os.dup(0), "rb"), answers).run()


if __name__ == "__main__":
    main()
