"""Whose turn it is, and that there are always as many workers as there should be."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from frazil.errors import Overloaded
from frazil.query import pool as pool_module
from frazil.query.pool import CrashHistory, Pool, WorkerDied, WorkerProcess
from tests.support.event_loop import in_a_loop
from tests.support.query.small_lake import Service, running


@contextlib.asynccontextmanager
async def started(
    folder: Path, workers: int = 2, *, queue_max: int = 64, tenants_share: bool = True
) -> AsyncIterator[Pool]:
    pool = Pool(workers, queue_max=queue_max, tenants_share=tenants_share)
    await pool.start(settings_in(folder))
    try:
        await until(lambda: len(pool._idle) == workers + tenants_share)
        yield pool
    finally:
        await pool.close()
        assert os.listdir(folder) == []


def settings_in(folder: Path) -> dict[str, Any]:
    return {
        "threads": 1,
        "memory_bytes": 128 << 20,
        "temp_bytes": 1 << 20,
        "temp_dir": str(folder),
        "namespace": "otel",
        "s3": None,
    }


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class Client:
    """Waits for a worker, keeps it until it is told to let go, and notes when it got it."""

    def __init__(self, pool: Pool, tenant: str, order: list[str], name: str = "") -> None:
        self.let_go = asyncio.Event()
        self.got = asyncio.Event()
        self._name = name or tenant
        self._order = order
        self.task = asyncio.create_task(self._use(pool, tenant))

    async def _use(self, pool: Pool, tenant: str) -> None:
        async with pool.worker(tenant, 60):
            self._order.append(self._name)
            self.got.set()
            await self.let_go.wait()

    async def done(self) -> None:
        self.let_go.set()
        await self.task


@in_a_loop
async def test_tenants_take_turns_and_within_one_the_first_is_first(tmp_path: Path) -> None:
    async with started(tmp_path, 1) as pool:
        order: list[str] = []
        first = Client(pool, "a", order, "a0")
        await first.got.wait()
        names = ["a1", "a2", "a3", "b1", "b2", "c1"]
        clients = [Client(pool, name[0], order, name) for name in names]
        await until(lambda: pool.waiting == len(names))
        for client in clients:
            client.let_go.set()
        await first.done()
        await asyncio.gather(*(client.task for client in clients))
        assert [name for name in order if name[0] == "a"] == ["a0", "a1", "a2", "a3"]
        assert [name for name in order if name[0] == "b"] == ["b1", "b2"]
        assert order.index("b1") < order.index("a2")
        assert order.index("c1") < order.index("a2")
        assert (pool.waiting, pool.running) == (0, 0)


@in_a_loop
async def test_no_tenant_has_all_workers_where_there_are_several(tmp_path: Path) -> None:
    async with started(tmp_path, 2) as pool:
        order: list[str] = []
        greedy = [Client(pool, "a", order) for _ in range(5)]
        await greedy[0].got.wait()
        other = Client(pool, "b", order)
        await other.got.wait()  # at once: nobody of a has let go
        assert order == ["a", "b"]
        for client in (*greedy, other):
            await client.done()


@in_a_loop
async def test_one_tenant_alone_may_use_all(tmp_path: Path) -> None:
    async with started(tmp_path, 2, tenants_share=False) as pool:
        order: list[str] = []
        clients = [Client(pool, "a", order) for _ in range(2)]
        await asyncio.gather(*(client.got.wait() for client in clients))
        assert pool.running == 2
        for client in clients:
            await client.done()


@in_a_loop
async def test_a_full_queue_and_a_long_wait_are_refused_by_name(tmp_path: Path) -> None:
    async with started(tmp_path, 1, queue_max=1) as pool:
        order: list[str] = []
        busy, waiting = Client(pool, "a", order), Client(pool, "a", order)
        await until(lambda: (pool.running, pool.waiting) == (1, 1))
        with pytest.raises(Overloaded) as full:
            async with pool.worker("a", 60):
                pass
        assert full.value.bound == "query.queue_max"
        with pytest.raises(Overloaded) as late:
            async with pool.worker("b", 0.05):
                pass
        assert late.value.bound == "query.queue_seconds_max"
        assert pool.waiting == 1  # who left, left no hole
        await busy.done()
        await waiting.done()
        async with pool.worker("a", 60) as worker:
            assert worker.is_free


@in_a_loop
async def test_nobody_need_wait_where_no_queue_is_allowed(tmp_path: Path) -> None:
    async with started(tmp_path, 1, queue_max=0) as pool:
        async with pool.worker("a", 60):
            with pytest.raises(Overloaded):
                async with pool.worker("b", 60):
                    pass
        async with pool.worker("b", 60):
            pass


@in_a_loop
async def test_who_is_cancelled_while_waiting_or_just_served_leaves_no_hole(tmp_path: Path) -> None:
    async with started(tmp_path, 1) as pool:
        order: list[str] = []
        busy = Client(pool, "a", order)
        await busy.got.wait()
        gone, last = Client(pool, "a", order, "gone"), Client(pool, "a", order, "last")
        await until(lambda: pool.waiting == 2)
        gone.task.cancel()
        busy.let_go.set()  # in the same breath
        await last.got.wait()
        await last.done()
        for _ in range(20):  # served and cancelled at the same moment
            first = Client(pool, "a", order)
            await first.got.wait()
            served = Client(pool, "b", order)
            await until(lambda: pool.waiting == 1)
            first.let_go.set()
            await first.task
            served.task.cancel()
            await asyncio.gather(served.task, return_exceptions=True)
            assert (pool.running, pool.waiting, len(pool._idle)) == (0, 0, 2)


@in_a_loop
async def test_a_worker_that_dies_while_idle_is_replaced(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(pool_module, "_RESPAWN_SECONDS", 0.01)
    async with started(tmp_path, 2) as pool:
        before = {worker.pid for worker in pool._all}
        for pid in before:
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):  # asyncio was faster
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222
        # Whoever comes now gets one that lives.
        async with pool.worker("a", 60) as worker:
            event = await worker.parse("SELECT 1")
            assert event["event"] == "parsed"
        await until(lambda: pool.alive == 3 and len(pool._idle) == 3)
        assert before.isdisjoint({worker.pid for worker in pool._all})


@in_a_loop
async def test_a_worker_with_half_an_answer_is_not_handed_on(tmp_path: Path) -> None:
    async with started(tmp_path, 1) as pool:
        async with pool.worker("a", 60) as first:
            events = first.run(job(tmp_path, "SELECT 'of a' || i FROM range(100000) t(i)"))
            assert await anext(events)
        async with pool.worker("b", 60) as second:
            found = [event async for event in second.run(job(tmp_path, "SELECT 'of b' AS x"))]
        assert b"of a" not in b"".join(event for event in found if isinstance(event, bytes))
        assert second is not first
        await until(lambda: pool.alive == 2)


async def crash(pool: Pool, tenant: str) -> None:
    """Uses a worker as a query does that ends it."""
    async with pool.worker(tenant, 60) as worker:
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSEGV)
        with pytest.raises(WorkerDied):
            await worker.parse("SELECT 1")
        await worker.ended()


@in_a_loop
async def test_only_the_tenant_that_ended_a_worker_waits_for_its_replacement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_start = asyncio.Event()
    start = WorkerProcess.start

    async def delayed(self: WorkerProcess, *settings: Any) -> None:
        await may_start.wait()
        await start(self, *settings)

    async with started(tmp_path, 2) as pool:
        monkeypatch.setattr(WorkerProcess, "start", delayed)
        await crash(pool, "a")
        order: list[str] = []
        clients = [Client(pool, tenant, order) for tenant in ("a", "b", "c")]
        await asyncio.gather(*(client.got.wait() for client in clients[1:]))
        assert order == ["b", "c"]
        for client in clients[1:]:
            await client.done()
        assert (pool.running, pool.waiting, len(pool._idle)) == (0, 1, 2), "a must not end these too"
        may_start.set()
        await clients[0].got.wait()
        await clients[0].done()


@in_a_loop
async def test_a_tenant_that_ends_workers_again_and_again_is_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_HOLD_SECONDS", 3600.0)
    monkeypatch.setattr(pool_module, "_HOLD_SECONDS_MAX", 3600.0)
    async with started(tmp_path, 1) as pool:
        await crash(pool, "a")
        await crash(pool, "a")  # the first time costs only the start of another worker
        await until(lambda: len(pool._idle) == 2)
        with pytest.raises(Overloaded, match="queries of this tenant crashed their workers"):
            async with pool.worker("a", 0.05):
                pass
        async with pool.worker("b", 60):
            pass


@in_a_loop
async def test_a_worker_that_is_only_replaced_holds_nobody_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "_HOLD_SECONDS", 3600.0)
    async with started(tmp_path, 1) as pool:
        for _ in range(3):  # as when a client leaves before the answer has come
            async with pool.worker("a", 60) as worker:
                await anext(worker.run(job(tmp_path, "SELECT 1")))
        async with pool.worker("a", 60):
            pass
        assert not pool._lost
        assert len(pool._crashes) == 0


def test_crashes_are_held_against_a_tenant_for_longer_each_time_and_forgotten() -> None:
    crashes = CrashHistory()
    assert [crashes.record("a", now) for now in range(7)] == [0, 1, 2, 4, 8, 10, 10]
    assert crashes.record("b", 7) == 0
    assert crashes.record("a", 7 + 61) == 0
    assert len(crashes) == 1, "b is forgotten too"


def test_the_crashes_of_any_number_of_tenants_take_bounded_memory() -> None:
    crashes = CrashHistory()
    for number in range(5000):
        crashes.record(f"tenant{number}", 0.0)
    assert len(crashes) == 1000


@in_a_loop
async def test_progress_that_is_asked_for_too_late_confuses_nobody(tmp_path: Path) -> None:
    async with started(tmp_path, 1) as pool:
        for _ in range(3):
            async with pool.worker("a", 60) as worker:
                events = worker.run(job(tmp_path, "SELECT 1"))
                await worker.request_progress()
                assert [event async for event in events]
                await worker.request_progress()
                await worker.interrupt()
            async with pool.worker("b", 60) as worker:
                assert (await worker.parse("SELECT 1"))["event"] == "parsed"
                await worker.request_progress()
                last = [event async for event in worker.run(job(tmp_path, "SELECT 2"))][-1]
                assert not isinstance(last, bytes)
                assert last["event"] == "done"


def job(folder: Path, sql: str) -> dict[str, Any]:
    return {
        "settings": settings_in(folder),
        "now": 0,
        "tables": [],
        "sql": sql,
        "params": [],
        "format": "json",
        "rows_max": 10**9,
        "rows_kept": None,
        "bytes_max": 1 << 30,
    }


@in_a_loop
async def test_a_start_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_RESPAWN_SECONDS", 0.01)
    starts = 0
    start = WorkerProcess.start

    async def failing(self: WorkerProcess, *settings: Any) -> None:
        nonlocal starts
        starts += 1
        if starts <= 3:
            raise OSError("no more processes")
        await start(self, *settings)

    monkeypatch.setattr(WorkerProcess, "start", failing)
    async with started(tmp_path, 1, tenants_share=False) as pool:
        assert starts == 4
        assert pool.alive == 1


@in_a_loop
async def test_closing_is_safe_before_the_start_and_twice(tmp_path: Path) -> None:
    pool = Pool(1, queue_max=1, tenants_share=False)
    await pool.close()
    async with started(tmp_path, 1) as pool:
        pass
    await pool.close()


@pytest.mark.parametrize("turns", range(4))
def test_a_start_that_is_cancelled_leaves_no_process(tmp_path: Path, turns: int) -> None:
    async def cancelled() -> int | None:
        worker = WorkerProcess()
        starting = asyncio.create_task(worker.start(settings_in(tmp_path)))
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await worker.kill()
        return worker.pid

    pid = asyncio.run(cancelled())
    assert pid is None or not Path(f"/proc/{pid}").exists()
    gc.collect()  # asyncio complains of what outlives its loop, and that is an error in these tests


def _another_writer_to(worker: WorkerProcess) -> int:
    """The pipe that it answers through stays open as long as this."""
    assert worker._process is not None
    pipe = worker._process._transport.get_pipe_transport(1).get_extra_info("pipe")  # type: ignore[attr-defined]
    return os.open(f"/proc/self/fd/{pipe.fileno()}", os.O_WRONLY)


def test_a_worker_whose_output_ends_later_than_itself_outlives_no_loop(tmp_path: Path) -> None:
    async def killed() -> int:
        worker = WorkerProcess()
        await worker.start(settings_in(tmp_path))
        output = _another_writer_to(worker)
        worker.kill_soon()
        while worker._process is not None and worker._process.returncode is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await worker.kill()
        return output

    output = asyncio.run(killed())
    gc.collect()
    os.close(output)


def test_of_eight_clients_with_long_and_short_questions_none_starves(tmp_path: Path) -> None:
    long = "SELECT sum(i % 7) FROM range(3000000) t(i)"

    async def client(service: Service, number: int) -> int:
        tenant = "acme" if number < 5 else "globex"
        for at in range(4):
            sql = long.replace("7", str(number + at + 2)) if number % 2 else f"SELECT {number} + {at}"
            assert (await service.told(sql, tenant)).rows
        return number

    async def all_clients(service: Service) -> list[int]:
        return await asyncio.gather(*(client(service, number) for number in range(8)))

    with running(tmp_path, filled=False) as service:
        assert service.run(all_clients(service)) == list(range(8))
