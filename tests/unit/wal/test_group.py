"""Group commit: no ack before the segment is durable, and each request gets the answer that is its own."""

from __future__ import annotations

import asyncio

from frazil.errors import RequestInvalid, RequestTooLarge
from frazil.wal.group import Receipt
from frazil.wal.reader import WalReader
from tests.support.group_commit import DECODER, Gate, bench, logs, run, settled, turns
from tests.support.otlp_wire import delimited, log_with_body, nested_value, number, within

MALFORMED = b"\x0a\x7f"


@run
async def test_no_ack_before_the_segment_is_durable() -> None:
    async with bench(Gate()) as at:
        at.store.shut()
        sent = at.send(logs("a"))
        await at.store.reached()
        await turns()
        assert not sent.done()
        assert at.store.objects == {}
        at.store.open()
        assert await sent == Receipt(1)
        assert at.bodies() == [["a"]]


@run
async def test_requests_that_arrive_while_a_segment_is_in_flight_share_the_next() -> None:
    async with bench(Gate()) as at:
        at.store.shut()
        first = at.send(logs("first"))
        await at.store.reached()
        others = [at.send(logs(f"{n}"), received=n) for n in (5, 3, 9)]
        await turns()
        assert not any(task.done() for task in (first, *others))
        at.store.open()
        assert await settled(first, *others) == [Receipt(1)] * 4
        assert at.bodies() == [["first"], ["5", "3", "9"]]
        assert [item.requests for item in at.seen.written] == [1, 3]
        facts = WalReader(at.store).facts(at.seen.written[1].name)
        assert (facts.received_min_unix_nano, facts.received_max_unix_nano) == (3, 9)


@run
async def test_one_segment_is_in_flight_at_a_time() -> None:
    async with bench(Gate()) as at:
        at.store.shut()
        tasks = [at.send(logs("a"))]
        await at.store.reached()
        tasks += [at.send(logs("b")) for _ in range(5)]
        await turns()
        assert not at.store.entered.acquire(blocking=False)
        at.store.open()
        await settled(*tasks)


@run
async def test_company_is_waited_for_and_enough_bytes_close_the_group_early() -> None:
    body = logs("x" * 500)
    async with bench(group_wait_seconds=3600, group_bytes_max=3 * len(body)) as at:
        tasks = [at.send(body), at.send(body)]
        await turns()
        assert at.lane.load_bytes == 2 * len(body)
        assert not any(task.done() for task in tasks)
        tasks.append(at.send(body))
        assert await settled(*tasks) == [Receipt(1)] * 3
        assert [item.requests for item in at.seen.written] == [3]
        assert at.lane.load_bytes == 0


@run
async def test_a_group_holds_at_most_its_bytes_and_a_larger_request_goes_alone() -> None:
    small, large = logs("s" * 100), logs("l" * 5000)
    async with bench(Gate(), group_bytes_max=1000) as at:
        at.store.shut()
        tasks = [at.send(small)]
        await at.store.reached()
        tasks += [at.send(body) for body in (small, large, *([small] * 20))]
        at.store.open()
        assert await settled(*tasks) == [Receipt(1)] * len(tasks)
        sizes = [item.requests for item in at.seen.written]
        assert sizes[:3] == [1, 1, 1]
        assert max(sizes) <= 1000 // len(small)
        assert sum(sizes) == len(tasks)


@run
async def test_the_wait_for_company_ends() -> None:
    async with bench(group_wait_seconds=0.01) as at:
        assert await at.send(logs("a")) == Receipt(1)


@run
async def test_a_malformed_request_fails_alone() -> None:
    async with bench(Gate()) as at:
        at.store.shut()
        tasks = [at.send(logs("first"))]
        await at.store.reached()
        tasks += [at.send(body) for body in (logs("a"), MALFORMED, logs("b"), b"\xff" * 9, logs("c"))]
        at.store.open()
        outcomes = await settled(*tasks)
        assert [type(item) for item in outcomes] == [
            Receipt,
            Receipt,
            RequestInvalid,
            Receipt,
            RequestInvalid,
            Receipt,
        ]
        assert at.bodies() == [["first"], ["a", "b", "c"]]
        assert at.lane.failure is None


@run
async def test_a_group_of_malformed_requests_makes_no_segment() -> None:
    async with bench() as at:
        for outcome in await asyncio.gather(*(at.outcome(MALFORMED) for _ in range(3))):
            assert isinstance(outcome, RequestInvalid)
        assert at.store.objects == {}
        assert await at.send(logs("a")) == Receipt(1)
        assert at.bodies() == [["a"]]


@run
async def test_requests_that_are_too_much_only_together_are_written_one_by_one() -> None:
    """Each shares its resource's attributes between its records within the bound; all of them do not."""
    resource = b"".join(delimited(1, delimited(1, b"k%d" % n)) for n in range(900))
    body = delimited(1, delimited(1, resource) + delimited(2, delimited(2, b"") * 5_000))
    async with bench(Gate(), records_per_request_max=10_000) as at:
        at.store.shut()
        first = at.send(logs("first"))
        await at.store.reached()
        tasks = [at.send(body) for _ in range(3)]
        at.store.open()
        assert await settled(first, *tasks) == [Receipt(1), *[Receipt(5_000)] * 3]
        assert [item.rows for item in at.seen.written] == [1, 5_000, 5_000, 5_000]


@run
async def test_a_deep_value_and_a_value_that_is_there_twice_share_a_segment() -> None:
    async with bench(Gate()) as at:
        at.store.shut()
        first = at.send(logs("first"))
        await at.store.reached()
        twice = log_with_body(delimited(1, b"a") + number(3, 5))
        tasks = [at.send(log_with_body(nested_value(49))), at.send(twice)]
        at.store.open()
        assert await settled(first, *tasks) == [Receipt(1)] * 3
        assert [item.requests for item in at.seen.written] == [1, 2]


@run
async def test_empty_and_wholly_rejected_requests_succeed_without_a_segment() -> None:
    async with bench() as at:
        assert await at.send(b"") == Receipt(0)
        assert await at.send(within((1, 2), b"")) == Receipt(0)
        rejected = await at.send(logs("a", "b", trace_id=b"short"))
        assert (rejected.accepted, rejected.rejected) == (0, 2)
        assert rejected.reason == "2 log records rejected: trace_id is not 16 bytes long"
        assert at.store.objects == {}
        assert at.seen.written == []


@run
async def test_each_request_hears_of_its_own_rejects() -> None:
    async with bench(Gate()) as at:
        at.store.shut()
        tasks = [at.send(logs("first"))]
        await at.store.reached()
        tasks += [at.send(logs("a")), at.send(logs("b", span_id=b"1") + logs("c")), at.send(logs("d"))]
        at.store.open()
        outcomes = await settled(*tasks)
        assert [(item.accepted, item.rejected) for item in outcomes] == [(1, 0), (1, 0), (1, 1), (1, 0)]
        assert at.bodies() == [["first"], ["a", "c", "d"]]


@run
async def test_a_request_may_have_so_many_records_and_no_more() -> None:
    async with bench(records_per_request_max=5) as at:
        assert await at.send(logs(records=5)) == Receipt(5)
        outcomes = await asyncio.gather(at.outcome(logs(records=6)), at.outcome(logs(records=5)))
        assert isinstance(outcomes[0], RequestTooLarge)
        assert outcomes[1] == Receipt(5)


@run
async def test_a_request_larger_than_a_slice_is_one_request() -> None:
    texts = [f"{n:04d} " + "x" * 20_000 for n in range(300)]
    async with bench() as at:
        assert await at.send(logs(*texts)) == Receipt(300)
        (found,) = at.bodies()
        assert found == texts


@run
async def test_sequences_have_no_gap_and_row_counts_add_up() -> None:
    async with bench() as at:
        for number_ in range(6):
            assert await at.send(logs(*["x"] * (number_ + 1))) == Receipt(number_ + 1)
            await at.send(b"")
        reader = WalReader(at.store)
        facts = [reader.facts(segment.name) for segment in reader.pending("logs")]
        assert [item.name.sequence for item in facts] == list(range(6))
        assert [item.rows for item in facts] == [1, 2, 3, 4, 5, 6]
        assert [item.stream_rows for item in facts] == [1, 3, 6, 10, 15, 21]


@run
async def test_rows_belong_to_the_tenant_that_sent_them() -> None:
    async with bench(Gate()) as at:
        at.store.shut()
        tasks = [at.send(logs("first"))]
        await at.store.reached()
        tasks += [at.send(logs(tenant, tenant), tenant=tenant) for tenant in ("a", "b", "a")]
        at.store.open()
        await settled(*tasks)
        reader = WalReader(at.store)
        rows = reader.rows(at.seen.written[1].name, DECODER.spec)[1]
        assert rows.column("tenant_id").to_pylist() == rows.column("body").to_pylist() == list("aabbaa")


def test_many_clients_are_all_answered_and_each_record_is_there_once() -> None:
    async def test() -> None:
        async with bench(group_wait_seconds=0.001, group_bytes_max=2_000) as at:

            async def client(number_: int) -> None:
                for turn in range(10):
                    assert await at.send(logs(f"{number_}/{turn}")) == Receipt(1)

            await asyncio.gather(*(client(number_) for number_ in range(20)))
            found = [text for bodies in at.bodies() for text in bodies]
            assert sorted(found) == sorted(f"{c}/{t}" for c in range(20) for t in range(10))
            for number_ in range(20):
                own = [text for text in found if text.startswith(f"{number_}/")]
                assert own == [f"{number_}/{turn}" for turn in range(10)]

    asyncio.run(test())
