"""Large groups: tenants take turns between slices, and nobody waits for another tenant's request."""

from __future__ import annotations

from frazil.errors import RequestInvalid, StoreUnavailable
from frazil.wal.group import Receipt
from frazil.wal.reader import WalReader
from frazil.wal.slices import SLICE_BYTES
from tests.support.group_commit import DECODER, Gate, bench, failing, logs, run, settled
from tests.support.otlp_wire import delimited, log_with_body, nested_value, within

LARGE_RECORDS = 3 * SLICE_BYTES // 10_000
LARGE = within((1, 2), delimited(2, delimited(3, b"x" * 10_000)) * LARGE_RECORDS)


@run
async def test_tenants_take_turns_between_the_slices_of_a_large_request() -> None:
    """While one tenant's request is being decoded, another tenant's small one is made durable."""
    async with bench(group_bytes_max=16 * SLICE_BYTES) as at:
        large = at.send(LARGE, tenant="a")
        await at.begun("a")
        assert await at.send(logs("b"), tenant="b") == Receipt(1)
        assert not large.done()
        assert (await large).accepted == LARGE_RECORDS
        assert [item.rows for item in at.seen.written] == [1, LARGE_RECORDS]


@run
async def test_a_tenant_with_more_than_a_slice_has_a_group_of_its_own() -> None:
    async with bench(Gate(), group_bytes_max=16 * SLICE_BYTES) as at:
        at.store.shut()
        tasks = [at.send(logs("first"), tenant="a")]
        await at.store.reached()
        tasks += [at.send(LARGE, tenant="a")]
        tasks += [at.send(logs(tenant), tenant=tenant) for tenant in "bcb"]
        at.store.open()
        await settled(*tasks)
        assert [item.requests for item in at.seen.written] == [1, 3, 1]


@run
async def test_a_large_group_gets_its_turns_however_many_small_requests_come() -> None:
    async with bench(group_bytes_max=16 * SLICE_BYTES) as at:
        large = at.send(LARGE, tenant="a")
        small = 0
        while not large.done():
            assert await at.send(logs("b"), tenant="b") == Receipt(1)
            small += 1
        assert (await large).accepted == LARGE_RECORDS
        assert small < 30


@run
async def test_a_group_serves_all_tenants_in_turn() -> None:
    body = logs("x" * 500)
    async with bench(Gate(), group_bytes_max=4 * len(body)) as at:
        at.store.shut()
        tasks = [at.send(body, tenant="first")]
        await at.store.reached()
        tasks += [at.send(body, tenant=tenant) for tenant in "aaaaaab"]
        at.store.open()
        await settled(*tasks)
        reader = WalReader(at.store)
        rows = reader.rows(at.seen.written[1].name, DECODER.spec)[1]
        assert rows.column("tenant_id").to_pylist() == ["a", "b", "a", "a"]


@run
async def test_a_tenant_whose_requests_were_refused_has_a_group_of_its_own() -> None:
    """Its next group may have to be tried in halves, and other tenants must not wait for that."""
    deep = log_with_body(nested_value(DECODER.depth_max + 1))
    async with bench(Gate()) as at:
        (refused,) = await settled(at.send(deep, tenant="a"))
        assert isinstance(refused, RequestInvalid)
        at.store.shut()
        tasks = [at.send(logs("first"), tenant="c")]
        await at.store.reached()
        tasks += [at.send(logs(text), tenant=text[0]) for text in ("a1", "b1", "a2", "b2")]
        at.store.open()
        await settled(*tasks)
        assert sorted(item.requests for item in at.seen.written) == [1, 2, 2]


@run
async def test_others_have_their_turn_while_a_group_is_tried_in_halves() -> None:
    deep = log_with_body(nested_value(DECODER.depth_max + 1))
    async with bench() as at:
        tasks = [at.send(body, tenant="a") for body in (logs("good"), deep) for _ in range(20)]
        await at.begun("a")
        assert await at.send(logs("b"), tenant="b") == Receipt(1)
        assert not all(task.done() for task in tasks)
        outcomes = await settled(*tasks)
        assert sum(outcome == Receipt(1) for outcome in outcomes) == 20


@run
async def test_a_store_failure_refuses_the_groups_that_are_under_way_too() -> None:
    async with bench(group_bytes_max=16 * SLICE_BYTES) as at:
        large = at.send(LARGE, tenant="a")
        await at.begun("a")
        failing(at.store)
        for outcome in await settled(at.send(logs("b"), tenant="b"), large):
            assert isinstance(outcome, StoreUnavailable)
        assert at.store.objects == {}
        assert at.lane.load_bytes == 0
