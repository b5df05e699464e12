"""A runner of tasks in this process, in place of Spark. Work, items and results are pickled, as for Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from pyspark import cloudpickle

T = TypeVar("T")
R = TypeVar("R")


class LocalRunner:
    def __init__(self) -> None:
        self.is_stopped = False
        self.items = 0

    def results(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        for item in items:
            self.items += 1
            there, given = cloudpickle.loads(cloudpickle.dumps((work, item)))
            result: R = cloudpickle.loads(cloudpickle.dumps(there(given)))
            yield result

    def run_job(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        return list(LocalRunner.results(self, work, items))

    def stop(self) -> None:
        self.is_stopped = True
