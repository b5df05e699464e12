"""Work as tasks of a Spark job: cut to a bounded size, run, and collected with errors in a few words."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from frazil import stopwatch
from frazil.errors import JobFailed

RESULT_COLUMNS = "result binary, calls binary"
"""Of a task's rows, for `mapInArrow`: its result, and how long stores took meanwhile. Spark's workers are not
scraped, so the driver counts for them.
"""
_SCHEMA = pa.schema([("result", pa.binary()), ("calls", pa.binary())])
_REASON_CHARACTERS_MAX = 600
_PYTHON = "Traceback (most recent call last):"

Piece = TypeVar("Piece")


def gathered(pieces: Iterable[Piece], bytes_of: Callable[[Piece], int], bytes_max: int) -> list[list[Piece]]:
    """Cuts work into tasks of at most `bytes_max`, in its order; a larger piece is a task of its own."""
    groups: list[list[Piece]] = []
    size = 0
    for piece in pieces:
        if not groups or size + bytes_of(piece) > bytes_max:
            groups.append([])
            size = 0
        groups[-1].append(piece)
        size += bytes_of(piece)
    return groups


def packed(work: Callable[[], object]) -> pa.RecordBatch:
    """Does the work, in the worker. Returns its row."""
    with stopwatch.gathering() as calls:
        result = work()
    columns = [pa.array([pickle.dumps(each)], pa.binary()) for each in (result, calls)]
    return pa.record_batch(columns, schema=_SCHEMA)


def unpacked(table: pa.Table) -> list[Any]:
    """Returns the results, in the driver."""
    for calls in table.column("calls").to_pylist():
        stopwatch.replay(pickle.loads(calls))  # noqa: S301
    return [pickle.loads(result) for result in table.column("result").to_pylist()]  # noqa: S301


def collected(frame: DataFrame) -> list[Any]:
    """Runs a job whose rows are those of `packed`. Returns its results."""
    with job_errors():
        rows = frame.toArrow()
    return unpacked(rows)


@contextlib.contextmanager
def job_errors() -> Iterator[None]:
    """Raises JobFailed with the reason alone: Spark's errors come with pages of two languages' stack traces,
    which stay with it as its cause.
    """
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise JobFailed(f"a Spark job failed: {reason(error)}") from error


def reason(error: Exception) -> str:
    """Returns the last line of a Python worker's traceback, or else the innermost cause in Java."""
    text = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    if _PYTHON in text:
        lines = text.rpartition(_PYTHON)[2].splitlines()
        said = [line for line in lines if line and not line[0].isspace() and not line.startswith("\t")]
        text = said[0] if said else text
    elif "Caused by: " in text:
        text = text.rpartition("Caused by: ")[2]
    return (text.strip().splitlines() or [type(error).__name__])[0][:_REASON_CHARACTERS_MAX]
