"""Spark's errors in a few words: a failed job comes with pages of two languages' stack traces."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from frazil.errors import JobFailed
from frazil.pipeline.parcel import unpacked

_REASON_CHARACTERS_MAX = 600
_PYTHON = "Traceback (most recent call last):"


def collected(frame: DataFrame) -> list[Any]:
    """Runs a job whose rows are parcels."""
    with job_errors():
        rows = frame.toArrow()
    return unpacked(rows)


@contextlib.contextmanager
def job_errors() -> Iterator[None]:
    """Raises JobFailed with the reason alone; the rest stays with it as its cause."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise JobFailed(f"a Spark job failed: {reason(error)}") from error


def reason(error: Exception) -> str:
    """The last line of a Python worker's traceback, or else the innermost cause in Java."""
    text = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    if _PYTHON in text:
        lines = text.rpartition(_PYTHON)[2].splitlines()
        said = [line for line in lines if line and not line[0].isspace() and not line.startswith("\t")]
        text = said[0] if said else text
    elif "Caused by: " in text:
        text = text.rpartition("Caused by: ")[2]
    return (text.strip().splitlines() or [type(error).__name__])[0][:_REASON_CHARACTERS_MAX]
