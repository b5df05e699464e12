"""Pieces of maintenance in this process, in place of Spark: what they are given and give back is pickled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from pyspark import cloudpickle

T = TypeVar("T")
R = TypeVar("R")


class RunHere:
    def __init__(self) -> None:
        self.is_stopped = False

    def results(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        for item in items:
            there, given = cloudpickle.loads(cloudpickle.dumps((work, item)))
            result: R = cloudpickle.loads(cloudpickle.dumps(there(given)))
            yield result

    def stop(self) -> None:
        self.is_stopped = True
