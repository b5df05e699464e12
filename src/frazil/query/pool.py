"""A pool of query worker processes, shared fairly among tenants."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
import uuid
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import structlog

from frazil.errors import LimitReached, Overloaded
from frazil.query import worker_protocol
from frazil.times import backoff_seconds

_START_SECONDS_MAX = 60.0
_PARSE_SECONDS_MAX = 10.0
_RESPAWN_SECONDS = 1.0
_RESPAWN_SECONDS_MAX = 30.0
_HOLD_SECONDS = 1.0
_HOLD_SECONDS_MAX = 10.0
_CRASHES_KEPT_SECONDS = 60.0
_CRASHING_TENANTS_MAX = 1000

log = structlog.get_logger("frazil.query")


class WorkerDied(Exception):
    """The worker process ended while it ran a query: out of memory, or a crash."""


class WorkerProcess:
    """One worker process. Runs one query at a time."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._folder: Path | None = None
        self.percent: float | None = None
        self._run = 0
        self._has_pending_output = False
        self._is_killed = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code of a process that has ended; negative: the signal that ended it."""
        return None if self._process is None else self._process.returncode

    @property
    def is_killed(self) -> bool:
        """Return whether the pool killed the worker. A worker that ended otherwise has crashed."""
        return self._is_killed

    @property
    def is_alive(self) -> bool:
        return self.pid is not None and not self._is_killed and not _has_ended(self.pid)

    @property
    def is_free(self) -> bool:
        """Alive, with no output left unread: the next query would take that output for its own."""
        return self.is_alive and not self._has_pending_output

    async def start(self, settings: Mapping[str, Any], tables: Sequence[Mapping[str, Any]] = ()) -> None:
        # One folder per process: DuckDB's temporary files have the same names in every process.
        self._folder = Path(settings["temp_dir"]) / uuid.uuid4().hex
        self._folder.mkdir(mode=0o700)
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # do not import from the current folder
                "-m",
                "frazil.query.worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=_environment(),
                start_new_session=True,
                limit=4 << 20,
            )
        )
        try:
            self._process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._process = await starting  # the caller must kill it
            raise
        async with asyncio.timeout(_START_SECONDS_MAX):
            await self._event()
            await self._send({"op": "prepare", "settings": self._with_folder(settings), "tables": tables})
            await self._event()

    def _with_folder(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**settings, "temp_dir": str(self._folder)}

    async def parse(self, sql: str) -> Mapping[str, Any]:
        """Return the event `parsed` or `error`."""
        return await self._request({"op": "parse", "sql": sql})

    async def constrain(
        self, sql: str, params: Sequence[Any], now: int, views: Sequence[Mapping[str, Any]] = ()
    ) -> Mapping[str, Any]:
        """Return the event `constrained`: for each table, constraints on the rows that the query needs.
        `views` are the declarations of views in the query, which may be newer than the worker.
        """
        request = {"op": "constrain", "sql": sql, "params": list(params), "now": now, "views": list(views)}
        return await self._request(request)

    async def _request(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        self._has_pending_output = True
        await self._send(message)
        try:
            async with asyncio.timeout(_PARSE_SECONDS_MAX):
                event = await self._event()
        except TimeoutError:
            await self.kill()
            raise LimitReached(
                f"the SQL takes longer than {_PARSE_SECONDS_MAX:g} s to plan: shorten it",
                limit="query.sql_bytes_max",
            ) from None
        self._has_pending_output = False
        return event

    async def run(self, job: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any] | bytes]:
        """Yield events and data until the last event, `done` or `error`. The caller must read to the end or
        kill the worker: unread output would be taken for that of the next query.
        """
        self.percent = None
        self._run += 1
        self._has_pending_output = True
        await self._send(
            {"op": "run", "run": self._run, **job, "settings": self._with_folder(job["settings"])}
        )
        while True:
            kind, payload = await self._frame()
            if kind == worker_protocol.DATA:
                yield payload
                continue
            event: Mapping[str, Any] = orjson.loads(payload)
            if event["event"] == "progress":
                self.percent = event["percent"] if event["run"] == self._run else None
                continue
            is_last = event["event"] in ("done", "error")
            if is_last:
                # A worker that did not return its memory is replaced: keep it marked as not free.
                self._has_pending_output = bool(event["spent"])
            yield event
            if is_last:
                return

    async def request_progress(self) -> None:
        """Request a progress event. `run` receives it between other events and sets `percent`."""
        with contextlib.suppress(WorkerDied):
            await self._send({"op": "progress"})

    async def interrupt(self) -> None:
        with contextlib.suppress(WorkerDied):
            await self._send({"op": "cancel", "run": self._run})

    def kill_soon(self) -> None:
        """Send SIGKILL. The worker counts as dead at once, even before the process has ended."""
        if not self._is_killed and self.pid is not None and not _has_ended(self.pid):
            # Not `Process.kill`: it polls the process, and may take the exit code from asyncio's watcher.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._is_killed = True

    async def kill(self) -> None:
        self.kill_soon()
        await self.ended()

    async def ended(self) -> None:
        """Wait until the process has ended, then delete its temporary files."""
        if self._process is not None:
            await self._process.wait()
            # The end of the output may arrive after the exit, and even after the end of the event loop.
            self._process._transport.close()  # type: ignore[attr-defined]
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None  # noqa: S101, PT018
        try:
            self._process.stdin.write(worker_protocol.control(message))
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise WorkerDied from None

    async def _frame(self) -> tuple[int, bytes]:
        assert self._process is not None and self._process.stdout is not None  # noqa: S101, PT018
        try:
            return await worker_protocol.receive(self._process.stdout)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            raise WorkerDied from None

    async def _event(self) -> Mapping[str, Any]:
        """Return the next event that is not a progress event."""
        while True:
            event: Mapping[str, Any] = orjson.loads((await self._frame())[1])
            if event["event"] != "progress":
                return event


def _has_ended(pid: int) -> bool:
    """Return whether the process has ended, even if asyncio has not noticed yet."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _environment() -> dict[str, str]:
    """Return a minimal environment: that of the server may hold keys and passwords."""
    kept = ("PATH", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV")
    return {key: os.environ[key] for key in kept if key in os.environ} | {"PYTHONDONTWRITEBYTECODE": "1"}


class CrashHistory:
    """Recent worker crashes by tenant. A tenant's count is reset a minute after its last crash."""

    def __init__(self) -> None:
        self._crashes: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._crashes)

    def record(self, tenant: str, now: float) -> float:
        """Record a crash. Returns how long the slot stays taken: 0 s at first, then longer each time."""
        while self._crashes and next(iter(self._crashes.values()))[1] < now - _CRASHES_KEPT_SECONDS:
            self._crashes.popitem(last=False)
        count, _ = self._crashes.pop(tenant, (0, now))
        self._crashes[tenant] = (count + 1, now)
        if len(self._crashes) > _CRASHING_TENANTS_MAX:
            self._crashes.popitem(last=False)
        return backoff_seconds(count, _HOLD_SECONDS, _HOLD_SECONDS_MAX) if count else 0.0


class Pool:
    """Runs a fixed number of queries at a time in worker processes. Tenants take turns; the queries of one
    tenant run in the order of arrival.

    If several tenants share the pool, no tenant can use all slots, and one spare worker is kept ready. A
    worker that a query crashed occupies a slot of the query's tenant until it is replaced, and longer after
    repeated crashes: other tenants do not wait for the replacement.
    """

    def __init__(self, workers: int, *, queue_max: int, tenants_share: bool) -> None:
        self._workers_max = workers
        self._queue_max = queue_max
        self._tenants_share = tenants_share
        self._share = max(1, workers - 1) if tenants_share else workers
        self._spare = 1 if tenants_share else 0
        self._idle: list[WorkerProcess] = []
        self._all: set[WorkerProcess] = set()
        self._watching: dict[WorkerProcess, asyncio.Task[None]] = {}
        self._busy: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        """Slots by tenant whose workers ended and are not replaced yet."""
        self._crashes = CrashHistory()
        self._waiting: OrderedDict[str, deque[asyncio.Future[WorkerProcess]]] = OrderedDict()
        self._settings: Mapping[str, Any] = {}
        self._tables: Sequence[Mapping[str, Any]] = ()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self, settings: Mapping[str, Any], tables: Sequence[Mapping[str, Any]] = ()) -> None:
        """Start the workers and return when one is ready. Workers that fail to start are retried. `tables`
        are the arguments of `TableSource` of all tables.
        """
        self._settings, self._tables = settings, tables
        tasks = [self._begin(self._spawn()) for _ in range(self._workers_max + self._spare)]
        await asyncio.wait(tasks, timeout=_START_SECONDS_MAX, return_when=asyncio.FIRST_COMPLETED)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        for queue in self._waiting.values():
            for waiting in queue:
                waiting.cancel()
        await asyncio.gather(
            *(worker.kill() for worker in list(self._all)), *self._tasks, return_exceptions=True
        )

    @property
    def running(self) -> int:
        return sum(self._busy.values())

    @property
    def waiting(self) -> int:
        return sum(len(queue) for queue in self._waiting.values())

    @property
    def alive(self) -> int:
        return sum(worker.is_alive for worker in self._all)

    async def _spawn(self) -> None:
        delay = _RESPAWN_SECONDS
        while not self._closed:
            worker = WorkerProcess()
            self._all.add(worker)
            try:
                await worker.start(self._settings, self._tables)
            except asyncio.CancelledError:
                await worker.kill()
                raise
            except Exception as error:
                log.error("query worker not started", reason=str(error) or type(error).__name__)
                self._all.discard(worker)
                await worker.kill()
                await asyncio.sleep(delay)
                delay = min(2 * delay, _RESPAWN_SECONDS_MAX)
                continue
            self._idle.append(worker)
            self._watching[worker] = self._begin(self._watch(worker))
            self._hand_out()
            return

    async def _watch(self, worker: WorkerProcess) -> None:
        """Wait for a worker to end, then replace it. Returns when the new worker is ready."""
        await worker.ended()
        self._all.discard(worker)
        if worker in self._idle:
            self._idle.remove(worker)
            log.warning("idle query worker exited", pid=worker.pid)
            await asyncio.sleep(_RESPAWN_SECONDS)
        if not self._closed:
            await self._spawn()
        self._watching.pop(worker, None)

    @contextlib.asynccontextmanager
    async def worker(self, tenant: str, seconds_max: float) -> AsyncIterator[WorkerProcess]:
        """Lend a worker for one query. A worker that is not free afterwards is replaced."""
        worker = await self._take(tenant, seconds_max)
        try:
            yield worker
        finally:
            self._give_back(tenant, worker)

    async def _take(self, tenant: str, seconds_max: float) -> WorkerProcess:
        queue = self._waiting.setdefault(tenant, deque())
        if len(queue) >= max(self._queue_max, 1 if self._free_worker(tenant) is not None else 0):
            raise Overloaded(
                f"{len(queue)} queries of this tenant are already waiting (query.queue_max)",
                bound="query.queue_max",
                retry_after_seconds=1,
            )
        turn: asyncio.Future[WorkerProcess] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        self._hand_out()
        try:
            async with asyncio.timeout(seconds_max):
                return await turn
        except (TimeoutError, asyncio.CancelledError) as error:
            if turn.done() and not turn.cancelled():
                self._give_back(tenant, turn.result())
            with contextlib.suppress(ValueError):
                queue.remove(turn)
            if isinstance(error, asyncio.CancelledError):
                raise
            raise Overloaded(
                f"no query worker was free for {seconds_max:g} s (query.queue_seconds_max)"
                + (": queries of this tenant crashed their workers" if tenant in self._lost else ""),
                bound="query.queue_seconds_max",
                retry_after_seconds=2,
            ) from None

    def _hand_out(self) -> None:
        """Assign free workers to waiting queries, in turn by tenant."""
        while any(self._serve(tenant) for tenant in list(self._waiting)):
            pass

    def _serve(self, tenant: str) -> bool:
        queue = self._waiting[tenant]
        while queue and queue[0].done():
            queue.popleft()
        if not queue:
            del self._waiting[tenant]
            return False
        worker = self._free_worker(tenant)
        if worker is None:
            return False
        self._idle.remove(worker)
        self._busy[tenant] += 1
        queue.popleft().set_result(worker)
        self._waiting.move_to_end(tenant)
        return True

    def _free_worker(self, tenant: str) -> WorkerProcess | None:
        """Return a worker for the tenant's next query; None if the query has to wait."""
        if self.running >= self._workers_max or self._busy[tenant] + self._lost[tenant] >= self._share:
            return None
        # The worker that has been idle longest: it has already prepared its next DuckDB.
        return next((worker for worker in self._idle if worker.is_free), None)

    def _give_back(self, tenant: str, worker: WorkerProcess) -> None:
        _decrement(self._busy, tenant)
        if worker.is_free:
            self._idle.append(worker)
        elif not self._closed:
            is_crash = self._tenants_share and not worker.is_alive
            seconds = self._crashes.record(tenant, time.monotonic()) if is_crash else 0.0
            if seconds:
                log.warning("tenant throttled after worker crashes", tenant=tenant, seconds=seconds)
            worker.kill_soon()
            self._lost[tenant] += 1
            self._begin(self._free_slot(tenant, worker, seconds))
        else:
            worker.kill_soon()
        self._hand_out()

    async def _free_slot(self, tenant: str, worker: WorkerProcess, seconds: float) -> None:
        """Free the slot of a lost worker once it is replaced, but not before `seconds` have passed."""
        until = time.monotonic() + seconds
        if (replacing := self._watching.get(worker)) is not None:
            await asyncio.wait([replacing])
        await asyncio.sleep(until - time.monotonic())
        _decrement(self._lost, tenant)
        self._hand_out()


def _decrement(counts: Counter[str], tenant: str) -> None:
    """Subtract one, and delete the tenant's entry at zero."""
    counts[tenant] -= 1
    if counts[tenant] <= 0:
        del counts[tenant]
