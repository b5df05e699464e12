"""Worker processes, and whose turn it is to use one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import uuid
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Coroutine, Mapping
from pathlib import Path
from typing import Any

import orjson
import structlog

from frazil.errors import LimitReached, Overloaded
from frazil.query import frames

_START_SECONDS_MAX = 60.0
_PARSE_SECONDS_MAX = 10.0
_RESPAWN_SECONDS = 1.0
_RESPAWN_SECONDS_MAX = 30.0

log = structlog.get_logger("frazil.query")


class WorkerDied(Exception):
    """The process ended over a question: killed by the system for its memory, or by a defect."""


class WorkerProcess:
    """One worker. Used by one question at a time."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._folder: Path | None = None
        self.percent: float | None = None
        self._run = 0
        self._owes = False
        self._is_killed = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def is_alive(self) -> bool:
        return self.pid is not None and not self._is_killed and not _has_ended(self.pid)

    @property
    def is_free(self) -> bool:
        """Alive, and nothing of an answer is still to come: the next question would take it for its own."""
        return self.is_alive and not self._owes

    async def start(self, settings: Mapping[str, Any]) -> None:
        # Of its own: DuckDB's temporary files have the same names in every process.
        self._folder = Path(settings["temp_dir"]) / uuid.uuid4().hex
        self._folder.mkdir(mode=0o700)
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # what lies in the current folder is not to be imported
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
            self._process = await starting  # whoever cancelled this has a process to kill
            raise
        async with asyncio.timeout(_START_SECONDS_MAX):
            await self._event()
            await self._send({"op": "prepare", "settings": self._own(settings)})
            await self._event()

    def _own(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**settings, "temp_dir": str(self._folder)}

    async def parse(self, sql: str) -> Mapping[str, Any]:
        """The events `parsed` or `error`."""
        self._owes = True
        await self._send({"op": "parse", "sql": sql})
        try:
            async with asyncio.timeout(_PARSE_SECONDS_MAX):
                event = await self._event()
        except TimeoutError:
            await self.kill()
            raise LimitReached(
                f"this takes longer than {_PARSE_SECONDS_MAX:g} s to parse", limit="query.sql_bytes_max"
            ) from None
        self._owes = False
        return event

    async def run(self, job: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any] | bytes]:
        """Events and data until `done` or `error`, which is the last. To be read to its end, or the worker
        killed: what is left unread would be taken for the next answer.
        """
        self.percent = None
        self._run += 1
        self._owes = True
        await self._send({"op": "run", "run": self._run, **job, "settings": self._own(job["settings"])})
        while True:
            kind, payload = await self._frame()
            if kind == frames.DATA:
                yield payload
                continue
            event: Mapping[str, Any] = orjson.loads(payload)
            if event["event"] == "progress":
                self.percent = event["percent"] if event["run"] == self._run else None
                continue
            is_last = event["event"] in ("done", "error")
            if is_last:
                # One that has grown and does not shrink again is not asked again.
                self._owes = bool(event["spent"])
            yield event
            if is_last:
                return

    async def ask_progress(self) -> None:
        """The answer comes between the others."""
        with contextlib.suppress(WorkerDied):
            await self._send({"op": "progress"})

    async def interrupt(self) -> None:
        with contextlib.suppress(WorkerDied):
            await self._send({"op": "cancel", "run": self._run})

    def kill_soon(self) -> None:
        """It is dead to everybody at once, whenever the system gets to it."""
        # A second signal would take the exit code from asyncio's watcher.
        if not self._is_killed and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        self._is_killed = True

    async def kill(self) -> None:
        self.kill_soon()
        await self.ended()

    async def ended(self) -> None:
        """Returns when the process has ended and what it left is gone."""
        if self._process is not None:
            await self._process.wait()
            # The end of its output may come later than its exit, and later than the end of the loop.
            self._process._transport.close()  # type: ignore[attr-defined]
        if self._folder is not None:
            await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _send(self, message: Mapping[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None  # noqa: S101, PT018
        try:
            self._process.stdin.write(frames.control(message))
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise WorkerDied from None

    async def _frame(self) -> tuple[int, bytes]:
        assert self._process is not None and self._process.stdout is not None  # noqa: S101, PT018
        try:
            return await frames.receive(self._process.stdout)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            raise WorkerDied from None

    async def _event(self) -> Mapping[str, Any]:
        """What was said of progress comes when it wants."""
        while True:
            event: Mapping[str, Any] = orjson.loads((await self._frame())[1])
            if event["event"] != "progress":
                return event


def _has_ended(pid: int) -> bool:
    """Also when asyncio has not heard of it yet."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _environment() -> dict[str, str]:
    """Nothing that a question could be after: keys and passwords are in the environment of servers."""
    kept = ("PATH", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV")
    return {key: os.environ[key] for key in kept if key in os.environ} | {"PYTHONDONTWRITEBYTECODE": "1"}


class Pool:
    """A fixed number of workers. Tenants take turns; within a tenant, who came first is served first."""

    def __init__(self, workers: int, *, queue_max: int, tenants_share: bool) -> None:
        self._wanted = workers
        self._queue_max = queue_max
        # Where there are several tenants, none can have all workers to itself.
        self._share = max(1, workers - 1) if tenants_share else workers
        self._idle: list[WorkerProcess] = []
        self._all: set[WorkerProcess] = set()
        self._busy: dict[str, int] = {}
        self._waiting: OrderedDict[str, deque[asyncio.Future[WorkerProcess]]] = OrderedDict()
        self._settings: Mapping[str, Any] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self, settings: Mapping[str, Any]) -> None:
        """Returns when one worker is ready; the others follow. Those that do not start are tried again."""
        self._settings = settings
        tasks = [self._begin(self._spawn()) for _ in range(self._wanted)]
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
                await worker.start(self._settings)
            except asyncio.CancelledError:
                await worker.kill()
                raise
            except Exception as error:
                log.error("a query worker did not start", reason=str(error) or type(error).__name__)
                self._all.discard(worker)
                await worker.kill()
                await asyncio.sleep(delay)
                delay = min(2 * delay, _RESPAWN_SECONDS_MAX)
                continue
            self._idle.append(worker)
            self._begin(self._watch(worker))
            self._hand_out()
            return

    async def _watch(self, worker: WorkerProcess) -> None:
        """Replaces it when it has ended, whether a question ended it or not."""
        await worker.ended()
        self._all.discard(worker)
        if worker in self._idle:
            self._idle.remove(worker)
            log.warning("a query worker ended while it had nothing to do", pid=worker.pid)
            await asyncio.sleep(_RESPAWN_SECONDS)
        if not self._closed:
            self._begin(self._spawn())

    @contextlib.asynccontextmanager
    async def worker(self, tenant: str, seconds_max: float) -> AsyncIterator[WorkerProcess]:
        """A worker for one question. One that is not free afterwards is replaced."""
        worker = await self._take(tenant, seconds_max)
        try:
            yield worker
        finally:
            self._give_back(tenant, worker)

    async def _take(self, tenant: str, seconds_max: float) -> WorkerProcess:
        queue = self._waiting.setdefault(tenant, deque())
        if len(queue) >= max(self._queue_max, 1 if self._idle else 0):
            raise Overloaded(
                f"{len(queue)} queries of this tenant wait already (query.queue_max)",
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
                f"no query worker was free for {seconds_max:g} s (query.queue_seconds_max)",
                bound="query.queue_seconds_max",
                retry_after_seconds=2,
            ) from None

    def _hand_out(self) -> None:
        """The tenant that was served goes to the end of the line."""
        while any(self._serve(tenant) for tenant in list(self._waiting)):
            pass

    def _serve(self, tenant: str) -> bool:
        queue = self._waiting[tenant]
        while queue and queue[0].done():
            queue.popleft()
        if not queue:
            del self._waiting[tenant]
            return False
        if self._busy.get(tenant, 0) >= self._share:
            return False
        # The one that has rested longest: it has its next DuckDB ready.
        worker = next((worker for worker in self._idle if worker.is_free), None)
        if worker is None:
            return False
        self._idle.remove(worker)
        self._busy[tenant] = self._busy.get(tenant, 0) + 1
        queue.popleft().set_result(worker)
        self._waiting.move_to_end(tenant)
        return True

    def _give_back(self, tenant: str, worker: WorkerProcess) -> None:
        self._busy[tenant] -= 1
        if not self._busy[tenant]:
            del self._busy[tenant]
        if worker.is_free:
            self._idle.append(worker)
        else:
            worker.kill_soon()  # who watches it replaces it
        self._hand_out()
