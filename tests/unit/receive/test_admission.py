"""Admission: a budget that is kept, given back to the last byte, and handed on in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from frazil.config import LimitsConfig
from frazil.errors import Overloaded
from frazil.receive import admission as module
from frazil.receive.admission import Admission, Ticket
from tests.support.admission import KIB, assert_empty, leave, run, turns


def budget(requests: int = 100, kibibytes: int = 10, wait_seconds: float = 60) -> Admission:
    return Admission(
        LimitsConfig(
            request_bytes_max=kibibytes * KIB,
            in_flight_bytes_max=kibibytes * KIB,
            requests_in_flight_max=requests,
            admission_wait_seconds=wait_seconds,
        )
    )


async def newer_wait_for(awaitable: Any, seconds: float) -> Any:
    """What `asyncio.wait_for` is from Python 3.12 on: a cancellation is raised though the result is there."""
    async with asyncio.timeout(seconds):
        return await awaitable


@pytest.fixture(params=["this Python's wait_for", "3.12's wait_for"])
def either_wait(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param.startswith("3.12"):
        monkeypatch.setattr(module.asyncio, "wait_for", newer_wait_for)


def test_requests_enter_while_there_is_room_and_give_it_back() -> None:
    async def test() -> None:
        room = budget()
        with await room.enter(4 * KIB), await room.enter(6 * KIB):
            assert (room.bytes, room.requests) == (10 * KIB, 2)
        assert_empty(room)

    run(test())


def test_an_error_inside_gives_the_room_back() -> None:
    async def test() -> None:
        room = budget()
        with pytest.raises(ZeroDivisionError), await room.enter(KIB):
            raise ZeroDivisionError
        assert_empty(room)

    run(test())


def test_leaving_twice_gives_back_once() -> None:
    async def test() -> None:
        room = budget()
        with await room.enter(KIB):
            ticket = await room.enter(KIB)
            leave(ticket)
            leave(ticket)
            assert (room.bytes, room.requests) == (KIB, 1)
        assert_empty(room)

    run(test())


def test_a_thread_that_grows_a_request_that_has_ended_takes_nothing() -> None:
    async def test() -> None:
        room = budget()
        with await room.enter(KIB) as ticket:
            pass
        ticket.resize(5 * KIB)
        ticket.resize(0)
        assert_empty(room)

    run(test())


@pytest.mark.usefixtures("either_wait")
def test_those_who_wait_get_in_in_order_also_the_small_ones() -> None:
    async def test() -> None:
        room = budget()
        order: list[int] = []

        async def client(number: int, size: int) -> Ticket:
            ticket = await room.enter(size)
            order.append(number)
            return ticket

        first = await room.enter(10 * KIB)
        waiting = []
        for number, size in enumerate((9 * KIB, 1, 1, 9 * KIB, 2)):
            waiting.append(asyncio.create_task(client(number, size)))
            await turns(2)
        assert order == []
        leave(first)
        await turns()
        assert order == [0, 1, 2]  # 3 does not fit, and 4 may not pass it
        leave(await waiting[0])
        await turns()
        assert order == [0, 1, 2, 3, 4]
        for task in waiting[1:]:
            leave(await task)
        assert_empty(room)

    run(test())


@pytest.mark.usefixtures("either_wait")
def test_a_newcomer_that_would_fit_does_not_pass_those_who_wait() -> None:
    async def test() -> None:
        room = budget()
        holder = await room.enter(9 * KIB)
        large = asyncio.create_task(room.enter(5 * KIB))
        await turns()
        small = asyncio.create_task(room.enter(1))
        await turns()
        assert not small.done()
        leave(holder)
        for task in (large, small):
            leave(await task)
        assert_empty(room)

    run(test())


@pytest.mark.usefixtures("either_wait")
def test_a_wait_that_takes_too_long_is_refused_and_leaks_nothing() -> None:
    async def test() -> None:
        room = budget(wait_seconds=0.01)
        holder = await room.enter(10 * KIB)
        with pytest.raises(Overloaded) as caught:
            await room.enter(KIB)
        assert caught.value.bound == "memory"
        assert caught.value.retry_after_seconds >= 1
        leave(holder)
        assert_empty(room)

    run(test())


def test_without_patience_there_is_no_wait() -> None:
    async def test() -> None:
        room = budget(wait_seconds=0)
        with await room.enter(10 * KIB), pytest.raises(Overloaded):
            await room.enter(KIB)
        assert_empty(room)

    run(test())


def test_the_queue_itself_is_bounded() -> None:
    async def test() -> None:
        room = budget(requests=2)
        held = [await room.enter(1), await room.enter(1)]
        waiting = [asyncio.create_task(room.enter(1)) for _ in range(2)]
        await turns()
        with pytest.raises(Overloaded):
            await room.enter(1)
        for ticket in held:
            leave(ticket)
        for task in waiting:
            leave(await task)
        assert_empty(room)

    run(test())


@pytest.mark.usefixtures("either_wait")
def test_a_client_that_goes_while_it_waits_leaks_nothing() -> None:
    async def test() -> None:
        room = budget()
        holder = await room.enter(10 * KIB)
        waiting = asyncio.create_task(room.enter(KIB))
        await turns()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        leave(holder)
        assert_empty(room)

    run(test())


@pytest.mark.usefixtures("either_wait")
@pytest.mark.parametrize("turns_between", [0, 1, 2, 3])
@pytest.mark.parametrize("grant_first", [True, False])
def test_a_client_that_goes_at_the_moment_of_its_turn_leaks_nothing(
    turns_between: int, grant_first: bool
) -> None:
    async def test() -> None:
        room = budget()
        holder = await room.enter(10 * KIB)

        async def client() -> None:
            with await room.enter(10 * KIB):
                await asyncio.sleep(0)

        waiting = asyncio.create_task(client())
        behind = asyncio.create_task(client())
        await turns()
        steps: list[Callable[[], Any]] = [lambda: leave(holder), waiting.cancel]
        for step in steps if grant_first else reversed(steps):
            step()
            await turns(turns_between)
        await asyncio.wait([waiting, behind])
        assert not behind.cancelled()
        assert_empty(room)

    run(test())


@pytest.mark.usefixtures("either_wait")
def test_a_turn_that_comes_at_the_moment_of_the_time_out_leaks_nothing() -> None:
    async def test() -> None:
        for delay in range(30):
            room = budget(wait_seconds=0.002)
            holder = await room.enter(10 * KIB)

            async def client(room: Admission = room) -> None:
                with await room.enter(10 * KIB):
                    pass

            waiting = asyncio.create_task(client())
            asyncio.get_running_loop().call_later(0.0015 + delay * 0.00004, leave, holder)
            await asyncio.wait([waiting])
            await asyncio.sleep(0.003)  # the holder has left by then
            assert waiting.exception() is None or isinstance(waiting.exception(), Overloaded)
            assert_empty(room)

    run(test())


@pytest.mark.usefixtures("either_wait")
def test_when_the_first_in_the_queue_gives_up_those_behind_who_fit_get_in() -> None:
    async def test() -> None:
        room = budget()
        holder = await room.enter(6 * KIB)
        large = asyncio.create_task(room.enter(8 * KIB))
        await turns()
        small = asyncio.create_task(room.enter(KIB))
        await turns()
        large.cancel()
        ticket = await small
        leave(ticket)
        leave(holder)
        assert_empty(room)

    run(test())


def test_growing_beyond_the_budget_is_refused_at_once_and_changes_nothing() -> None:
    async def test() -> None:
        room = budget()
        with await room.enter(KIB) as ticket, await room.enter(8 * KIB):
            ticket.resize(2 * KIB)
            with pytest.raises(Overloaded):
                ticket.resize(3 * KIB)
            assert (ticket.size, room.bytes) == (2 * KIB, 10 * KIB)
        assert_empty(room)

    run(test())


def test_shrinking_lets_others_in() -> None:
    async def test() -> None:
        room = budget()
        ticket = await room.enter(10 * KIB)
        waiting = asyncio.create_task(room.enter(5 * KIB))
        await turns()
        ticket.resize(5 * KIB)
        leave(await waiting)
        leave(ticket)
        assert_empty(room)

    run(test())


class AnyHistory(RuleBasedStateMachine):
    """Enter, grow, shrink, leave, go away: in any order the sums are right."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.room = budget(requests=4)
        self.tasks: list[asyncio.Task[Ticket]] = []
        self.tickets: list[Ticket] = []

    def _step(self) -> None:
        self.loop.run_until_complete(turns(6))
        for task in [task for task in self.tasks if task.done()]:
            self.tasks.remove(task)
            if not task.cancelled() and task.exception() is None:
                self.tickets.append(task.result())

    @rule(size=st.integers(0, 10 * KIB))
    def enter(self, size: int) -> None:
        self.tasks.append(self.loop.create_task(self.room.enter(size)))
        self._step()

    @precondition(lambda self: self.tickets)
    @rule(data=st.data(), size=st.integers(0, 12 * KIB))
    def resize(self, data: st.DataObject, size: int) -> None:
        ticket = data.draw(st.sampled_from(self.tickets))
        before = ticket.size
        try:
            ticket.resize(size)
        except Overloaded:
            assert ticket.size == before
        self._step()

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.tickets))
        self.tickets.remove(ticket)
        leave(ticket)
        self._step()

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def go_away(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.tasks)).cancel()
        self._step()

    @precondition(lambda self: self.tasks and self.tickets)
    @rule(data=st.data(), first=st.booleans())
    def go_away_as_another_ends(self, data: st.DataObject, first: bool) -> None:
        ticket = data.draw(st.sampled_from(self.tickets))
        self.tickets.remove(ticket)
        task = data.draw(st.sampled_from(self.tasks))
        steps: list[Callable[[], Any]] = [lambda: leave(ticket), task.cancel]
        for step in steps if first else reversed(steps):
            step()
        self._step()

    @invariant()
    def the_sums_are_those_of_the_requests_that_are_in(self) -> None:
        assert self.room.bytes == sum(ticket.size for ticket in self.tickets) <= 10 * KIB
        assert self.room.requests == len(self.tickets) <= 4
        assert len(self.room._queue) == len(self.tasks)

    @invariant()
    def nobody_waits_who_could_be_in(self) -> None:
        if self.room._queue:
            assert not self.room._fits(self.room._queue[0][0])

    def teardown(self) -> None:
        while self.tickets or self.tasks:
            for ticket in self.tickets:
                leave(ticket)
            self.tickets = []
            self._step()
        assert_empty(self.room)
        self.loop.close()


AnyHistory.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestAnyHistory = AnyHistory.TestCase
