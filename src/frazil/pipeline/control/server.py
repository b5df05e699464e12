"""Runs commands in the pipeline, one at a time, for callers with an admin API key or the token of this
machine.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import queue
import secrets
import threading
from collections.abc import Callable, Generator, Mapping
from typing import Any

import structlog

from frazil import telemetry
from frazil.config import Config
from frazil.errors import Forbidden, FrazilError, Overloaded, Refused, Stopped, Unauthenticated
from frazil.keys import KeyRing, given_key
from frazil.lake.catalog import open_catalog
from frazil.pipeline.control.operations import Workplace, perform
from frazil.pipeline.control.protocol import (
    ALIVE_SECONDS,
    OPERATIONS,
    PATH,
    Address,
    Operation,
    error_line,
    remove_address,
    write_address,
)
from frazil.pipeline.metrics import Metrics
from frazil.pipeline.runner import Runner

log = structlog.get_logger("frazil.pipeline")
_STOP_SECONDS = 10.0


class Control:
    """Accepts commands while this pipeline is active: between `open` and `close`. All methods are
    thread-safe.
    """

    def __init__(self, config: Config, make_runner: Callable[..., Runner], metrics: Metrics) -> None:
        self._config = config
        self._make_runner = make_runner
        self._metrics = metrics
        self._keys = KeyRing(config.auth.keys)
        self._address: Address | None = None
        self._busy = threading.Lock()
        self._running: _Run | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a command runs, or waits for maintenance to end."""
        return self._busy.locked()

    @property
    def operation(self) -> Operation | None:
        """The command that runs."""
        running = self._running
        return None if running is None else running.operation

    def open(self, url: str) -> None:
        self._address = Address(url, secrets.token_urlsafe(32))
        try:
            write_address(self._config, self._address)
        except OSError as error:
            log.warning("commands of this machine need an admin API key", reason=str(error))

    def cancel(self) -> None:
        """Refuses new commands and cancels the running one. Does not wait for it."""
        address, self._address = self._address, None
        if address is not None:
            with contextlib.suppress(OSError):
                remove_address(self._config, address)
        if (running := self._running) is not None:
            running.cancel()

    def close(self) -> None:
        self.cancel()
        if (running := self._running) is not None:
            running.thread.join(_STOP_SECONDS)

    def authorize(self, headers: Mapping[str, str]) -> str:
        """Returns the caller's name for logs. Raises Unauthenticated or Forbidden."""
        found = {name.lower(): value for name, value in headers.items()}
        given = given_key(found.get("authorization"), found.get("x-api-key"))
        address = self._address
        if address is not None and hmac.compare_digest((given or "").encode(), address.token.encode()):
            return "local"
        if not self._keys:
            raise Unauthenticated("the token is not valid")
        key = self._keys.identify(given)
        if "admin" not in key.roles:
            raise Forbidden(f"the API key {key.name} has no role admin")
        return key.name

    def run(self, path: str, body: bytes, caller: str) -> Generator[bytes]:
        """Starts the command and returns the lines of its response. Closing the iterator cancels the command.
        Raises Refused for an invalid request, Stopped in a standby, Overloaded if a command is running.
        """
        operation = next((each for each in OPERATIONS if path == PATH + each), None)
        if operation is None:
            raise Refused(f"there is no command {path}; there are: {', '.join(OPERATIONS)}")
        try:
            arguments = json.loads(body)
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            raise Refused("the body must be a JSON object")
        if self._address is None:
            raise Stopped("this pipeline is not active: it waits for the lease, or stops")
        if not self._busy.acquire(blocking=False):
            raise Overloaded("the pipeline runs another command", bound="commands", retry_after_seconds=5)
        log.info("command started", command=operation, caller=caller)
        run = self._running = _Run(self, operation, arguments)
        run.thread.start()
        return run.lines()

    def _perform(self, run: _Run, say: Callable[[str], None]) -> dict[str, Any]:
        with (
            telemetry.span(f"control.{run.operation}"),
            contextlib.closing(open_catalog(self._config)) as catalog,
        ):
            place = Workplace(self._config, catalog, run.runner, self._metrics, run.sleep)
            return perform(run.operation, run.arguments, place, say)


class _Run:
    """A command that runs in its own thread."""

    def __init__(self, control: Control, operation: Operation, arguments: Mapping[str, Any]) -> None:
        self.operation = operation
        self.arguments = arguments
        self.thread = threading.Thread(target=self._work, name=f"control {operation}", daemon=True)
        # A tag lands data, an erasure rewrites files.
        pools: Mapping[Operation, str] = {"tag": "land", "erase": "maintain", "backfill": "derive"}
        tasks = control._config.maintain.compact.parallel_tasks
        self.runner = control._make_runner(pools[operation], tasks)
        self._control = control
        self._cancelled = threading.Event()
        self._lines: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def cancel(self) -> None:
        self._cancelled.set()
        self.runner.stop()

    def sleep(self, seconds: float) -> None:
        if self._cancelled.wait(seconds):
            raise Stopped("the pipeline is stopping, or the command was cancelled")

    def lines(self) -> Generator[bytes]:
        last = False
        try:
            while not last:
                try:
                    line = self._lines.get(timeout=ALIVE_SECONDS)
                except queue.Empty:
                    line = {}
                last = "result" in line or "error" in line
                yield json.dumps(line).encode() + b"\n"
        finally:
            if not last:
                log.warning("command cancelled: the client has disconnected", command=self.operation)
                self.cancel()

    def _work(self) -> None:
        control = self._control
        try:
            result = control._perform(self, lambda text: self._lines.put({"progress": text}))
        except BaseException as error:
            if not isinstance(error, FrazilError):
                log.error("command failed", command=self.operation, exc_info=error)
            line = error_line(error)
        else:
            line = {"result": result}
        control._running = None
        control._busy.release()
        self._lines.put(line)
