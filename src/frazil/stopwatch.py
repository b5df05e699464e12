"""How long stores take. The log's stores and the lake's places are timed where they are called, and whoever
listens in this process is told.

One listener a process, and not one handed in: PyIceberg opens the lake's files by the name of a class, so
there is nobody to hand it to.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, ParamSpec, TypeVar

StoreName = Literal["wal", "lake"]
Operation = Literal["put", "get", "head", "list", "delete"]

CALLS_GATHERED_MAX = 10_000
"""Of one task of Spark: its answer must stay small."""

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class StoreCall(NamedTuple):
    """`failed` is what may pass by itself. That a name is missing or taken is an answer, not a failure."""

    store: StoreName
    operation: Operation
    seconds: float
    failed: bool


Listener = Callable[[StoreCall], None]
_listener: Listener | None = None
_gathering = threading.Lock()


def listen(listener: Listener | None) -> None:
    """From now on it is told of every call, from any thread. It must be quick and must not raise."""
    global _listener
    _listener = listener


def replay(calls: list[StoreCall]) -> None:
    """Tells the listener of calls that were made in other processes."""
    if (listener := _listener) is not None:
        for call in calls:
            listener(call)


@contextlib.contextmanager
def gathering() -> Iterator[list[StoreCall]]:
    """For processes that nobody scrapes: the calls made meanwhile, to be sent to one that somebody does."""
    calls: list[StoreCall] = []

    def note(call: StoreCall) -> None:
        if len(calls) < CALLS_GATHERED_MAX:
            calls.append(call)

    with _gathering:  # where tasks run in threads of one process, each has its own calls
        before = _listener
        listen(note)
        try:
            yield calls
        finally:
            listen(before)


@contextlib.contextmanager
def timing(store: StoreName, operation: Operation) -> Iterator[None]:
    listener = _listener
    if listener is None:
        yield
        return
    begin, failed = time.perf_counter(), False
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except Exception:
        failed = True
        raise
    finally:
        listener(StoreCall(store, operation, time.perf_counter() - begin, failed))


def timed(store: StoreName, operation: Operation) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For methods that have done it all when they return."""

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with timing(store, operation):
                return method(*args, **kwargs)

        return call

    return decorate


def timed_listing(store: StoreName) -> Callable[[Callable[P, Iterator[T]]], Callable[P, Iterator[T]]]:
    """For generators: one call a listing, without the time that its reader takes between two entries."""

    def decorate(method: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
        @functools.wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
            return _timed_entries(store, method(*args, **kwargs))

        return call

    return decorate


def _timed_entries(store: StoreName, entries: Iterator[T]) -> Iterator[T]:
    seconds, failed = 0.0, False
    try:
        while True:
            begin = time.perf_counter()
            try:
                entry = next(entries)
            except StopIteration:
                return
            except Exception:
                failed = True
                raise
            finally:
                seconds += time.perf_counter() - begin
            yield entry
    finally:
        if (listener := _listener) is not None:
            listener(StoreCall(store, "list", seconds, failed))
