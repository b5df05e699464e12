"""Measures store calls and reports them to the listener of the process.

The listener is global, because PyIceberg opens the lake's files through a class name.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Concatenate, Literal, NamedTuple, ParamSpec, Protocol, TypeVar

from frazil.storage.base import StoreName

Operation = Literal["put", "get", "head", "list", "delete"]

CALLS_GATHERED_MAX = 10_000
"""Limit for one Spark task, to keep its result small."""


class _Named(Protocol):
    name: StoreName


P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=_Named)
T = TypeVar("T")


class StoreCall(NamedTuple):
    """A call to a store. `failed` is a transient failure. A missing or existing path is a valid response, not
    a failure.
    """

    store: StoreName
    operation: Operation
    seconds: float
    failed: bool


Listener = Callable[[StoreCall], None]
_listener: Listener | None = None
_gathering = threading.Lock()


def listen(listener: Listener | None) -> None:
    """Sets the listener. It is called from any thread, must be fast and must not raise."""
    global _listener
    _listener = listener


def replay(calls: list[StoreCall]) -> None:
    """Reports calls that were made in other processes."""
    if (listener := _listener) is not None:
        for call in calls:
            listener(call)


@contextlib.contextmanager
def gathering() -> Iterator[list[StoreCall]]:
    """Yields the list of calls made in the block, for processes that are not scraped."""
    calls: list[StoreCall] = []

    def note(call: StoreCall) -> None:
        if len(calls) < CALLS_GATHERED_MAX:
            calls.append(call)

    with _gathering:  # one block at a time, if tasks run in threads of one process
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


def timed(operation: Operation) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], R]]:
    """Measures a store method."""

    def decorate(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
        @functools.wraps(method)
        def call(store: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            with timing(store.name, operation):
                return method(store, *args, **kwargs)

        return call

    return decorate


def timed_listing(
    method: Callable[Concatenate[S, P], Iterator[T]],
) -> Callable[Concatenate[S, P], Iterator[T]]:
    """Measures a generator as one call, without the time that its consumer takes between two entries."""

    @functools.wraps(method)
    def call(store: S, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return _timed_entries(store.name, method(store, *args, **kwargs))

    return call


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
