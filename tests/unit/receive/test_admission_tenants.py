"""Admission of several tenants: no tenant takes the budget or the queue from the others."""

from __future__ import annotations

import asyncio

import pytest

from frazil.config import LimitsConfig
from frazil.errors import Overloaded
from frazil.receive.admission import Admission, FairSlots
from tests.support.admission import KIB, assert_empty, leave, run, turns

# Tenants ------------------------------------------------------------------------------------------


def shared_budget() -> Admission:
    """16 KiB and 16 requests, of which a tenant may have 14."""
    limits = LimitsConfig(
        request_bytes_max=4 * KIB,
        in_flight_bytes_max=16 * KIB,
        requests_in_flight_max=16,
        admission_wait_seconds=60,
    )
    return Admission(limits, tenants_share=True)


def test_no_tenant_can_have_the_whole_budget() -> None:
    async def test() -> None:
        room = shared_budget()
        held = [await room.enter(2 * KIB, "a") for _ in range(7)]
        waiting = asyncio.create_task(room.enter(1, "a"))
        await turns()
        assert not waiting.done()
        others = [await room.enter(KIB, "b") for _ in range(2)]  # at once, though a's request waits
        with pytest.raises(Overloaded):
            held[0].resize(2 * KIB + 1)
        leave(held.pop())
        held.append(await waiting)
        for ticket in held + others:
            leave(ticket)
        assert_empty(room)
        assert room._held == {}

    run(test())


def test_requests_of_one_tenant_that_wait_for_room_stay_in_order() -> None:
    async def test() -> None:
        room = shared_budget()
        held = [await room.enter(2 * KIB, "a") for _ in range(7)]
        large = asyncio.create_task(room.enter(3 * KIB, "a"))
        await turns()
        small = asyncio.create_task(room.enter(1, "a"))
        await turns()
        leave(held.pop())
        await turns()
        assert not large.done()
        assert not small.done()
        leave(held.pop())
        held += [await large, await small]
        for ticket in held:
            leave(ticket)
        assert_empty(room)

    run(test())


def test_a_tenant_cannot_fill_the_line() -> None:
    async def test() -> None:
        room = shared_budget()
        held = [await room.enter(1, "a") for _ in range(14)]
        waiting = [asyncio.create_task(room.enter(1, "a")) for _ in range(14)]
        await turns()
        with pytest.raises(Overloaded):
            await room.enter(1, "a")
        held.append(await room.enter(1, "b"))
        for ticket in held:
            leave(ticket)
        for task in waiting:
            leave(await task)
        assert_empty(room)

    run(test())


def test_tenants_take_turns() -> None:
    async def test() -> None:
        slots = FairSlots(2, per_tenant=1, waiting_max=10)
        order: list[str] = []

        async def use(tenant: str) -> None:
            async with slots.slot(tenant):
                order.append(tenant)
                await turns(3)

        await asyncio.gather(*(use(tenant) for tenant in "aaaabbc"))
        assert sorted(order) == list("aaaabbc")
        assert order[-2:] == ["a", "a"]  # who asks for most waits longest
        assert not slots._waiting
        assert slots._held == {}

    run(test())


def test_one_tenant_alone_has_only_its_share_of_the_places() -> None:
    async def test() -> None:
        slots = FairSlots(3, per_tenant=2, waiting_max=10)
        requested = [slots.request("a") for _ in range(4)]
        assert [slot.done() for slot in requested] == [True, True, False, False]
        other = slots.request("b")
        assert other.done()
        slots.release("a", requested[2])  # gives up
        slots.release("a", requested[0])
        assert requested[3].done()
        for tenant, slot in (("a", requested[1]), ("a", requested[3]), ("b", other)):
            slots.release(tenant, slot)
        assert slots._free == 3

    run(test())


def test_a_tenant_whose_large_requests_fill_the_budget_reads_one_at_a_time() -> None:
    async def test() -> None:
        mib = 2**20
        room = Admission(LimitsConfig(in_flight_bytes_max=128 * mib, request_bytes_max=64 * mib))
        slots = FairSlots(3, per_tenant=lambda tenant: 1 if room.has_large(tenant) else 2, waiting_max=10)
        large = await room.enter(40 * mib, "a")
        small = [await room.enter(mib, "b") for _ in range(40)]
        assert (room.has_large("a"), room.has_large("b"), room.has_large("c")) == (True, False, False)
        requested = [slots.request("a") for _ in range(3)]
        assert [slot.done() for slot in requested] == [True, False, False]
        others = [slots.request("b") for _ in range(2)]
        assert all(slot.done() for slot in others)
        slots.release("a", requested[0])
        assert [slot.done() for slot in requested] == [True, True, False], "one after the other"
        leave(large)
        slots.release("b", others[0])
        assert requested[2].done(), "two at a time again"
        for ticket in small:
            leave(ticket)
        assert_empty(room)

    run(test())


def test_more_waiting_requests_of_a_tenant_than_allowed_are_refused() -> None:
    async def test() -> None:
        slots = FairSlots(1, per_tenant=1, waiting_max=2)
        requested = [slots.request("a") for _ in range(3)]
        with pytest.raises(Overloaded):
            slots.request("a")
        waiting = slots.request("b")
        slots.release("a", requested[0])
        assert requested[1].done()
        slots.release("a", requested[1])  # the tenant that was served goes to the end of the line
        assert waiting.done()
        assert not requested[2].done()

    run(test())


def test_a_request_that_goes_away_while_it_waits_leaves_the_line() -> None:
    async def test() -> None:
        slots = FairSlots(1, per_tenant=1, waiting_max=2)
        first = slots.request("a")

        async def use() -> None:
            async with slots.slot("b"):
                raise AssertionError

        waiting = asyncio.create_task(use())
        await turns()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not slots._waiting
        slots.release("a", first)
        assert slots._free == 1

    run(test())
