"""Group commit: no ack before the segment is durable, and each request gets the answer that is its own."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from frazil.errors import FrazilError, RequestInvalid, RequestTooLarge, StoreUnavailable
from frazil.otlp.decode import Decoder
from frazil.wal.clock import Clock, boot_seconds
from frazil.wal.group import Receipt, SegmentWritten
from frazil.wal.reader import WalReader
from frazil.wal.segment_lane import SegmentLane, SegmentSettings
from frazil.wal.slices import SLICE_BYTES
from tests.support.otlp_wire import delimited, log_with_body, nested_value, number, within
from tests.support.wal_stores import MemoryStore

DECODER = Decoder("logs", depth_max=64)
MALFORMED = b"\x0a\x7f"


def logs(*texts: str, records: int = 0, **fields: Any) -> bytes:
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    for text in texts or ("x",) * records:
        record = LogRecord(**fields)
        record.body.string_value = text
        scope.log_records.append(record)
    return request.SerializeToString()


class Gate(MemoryStore):
    """A store that waits, when told to, before a segment becomes durable."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Semaphore(0)
        self._open = threading.Event()
        self._open.set()
        self.before_create = self._wait

    def _wait(self, path: str, data: bytes) -> None:
        self.entered.release()
        assert self._open.wait(30)

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def reached(self) -> None:
        """Returns when somebody is in `create`."""
        assert await asyncio.to_thread(self.entered.acquire, timeout=30)


class Seen:
    def __init__(self) -> None:
        self.written: list[SegmentWritten] = []
        self.failed: list[FrazilError] = []

    def segment_written(self, segment: SegmentWritten) -> None:
        self.written.append(segment)

    def segment_failed(self, error: FrazilError) -> None:
        self.failed.append(error)


class Bench:
    """A lane with all that it was given."""

    def __init__(self, store: MemoryStore, clock: Clock = boot_seconds, **settings: Any) -> None:
        numbers = itertools.count()
        defaults = {
            "group_wait_seconds": 0.0,
            "group_bytes_max": 8 << 20,
            "compression_level": 1,
            "records_per_request_max": 1000,
            "stream_use_seconds": 1800.0,
        }
        self.store, self.seen = store, Seen()
        self.lane = SegmentLane(
            store,
            DECODER,
            SegmentSettings(**(defaults | settings)),
            self.seen,
            stream_ids=lambda: f"20261115T08182312{next(numbers)}-9f86d081884c7d65",
            clock=clock,
        )

    def send(self, body: bytes, tenant: str = "t", received: int = 7) -> asyncio.Task[Receipt]:
        return asyncio.create_task(self.lane.append(body, tenant, received))

    async def begun(self, tenant: str) -> None:
        """Returns when a group of this tenant is under way."""
        while not any(tenant in job.tenants for job in self.lane._jobs):
            await turns(1)

    async def outcome(self, body: bytes) -> Receipt | FrazilError:
        try:
            return await self.lane.append(body, "t", 7)
        except FrazilError as error:
            return error

    def bodies(self) -> list[list[str]]:
        """What is durable, a list a segment, streams and sequences in order."""
        reader = WalReader(self.store)
        names = [segment.name for segment in reader.pending("logs")]
        return [reader.rows(name, DECODER.spec)[1].column("body").to_pylist() for name in names]


@asynccontextmanager
async def bench(
    store: MemoryStore | None = None, clock: Clock = boot_seconds, **settings: Any
) -> AsyncIterator[Bench]:
    made = Bench(store or MemoryStore(), clock, **settings)
    running = asyncio.create_task(made.lane.run())
    try:
        yield made
    finally:
        if isinstance(made.store, Gate):
            made.store.open()
        await made.lane.close()
        await asyncio.wait_for(running, 30)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test as a coroutine on a real event loop, within bounded time."""

    def bounded() -> None:
        async def timed() -> None:
            async with asyncio.timeout(60):
                await test()

        asyncio.run(timed())

    bounded.__name__, bounded.__doc__ = test.__name__, test.__doc__
    return bounded


async def turns(count: int = 20) -> None:
    """Lets everything that can run, run."""
    for _ in range(count):
        await asyncio.sleep(0)


async def settled(*tasks: Awaitable[Receipt]) -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)


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


def failing(store: MemoryStore) -> None:
    def fail(path: str, data: bytes) -> None:
        raise StoreUnavailable("disk full", retry_after_seconds=5)

    store.before_create = fail


@run
async def test_a_store_failure_refuses_the_group_and_everybody_after_until_it_recovers() -> None:
    async with bench() as at:
        assert await at.send(logs("before")) == Receipt(1)
        failing(at.store)
        for outcome in await asyncio.gather(at.outcome(logs("a")), at.outcome(logs("b"))):
            assert isinstance(outcome, StoreUnavailable)
            assert outcome.retry_after_seconds == 5
        at.store.before_create = lambda path, data: None
        assert isinstance(at.lane.failure, StoreUnavailable)
        assert isinstance(await at.outcome(logs("c")), StoreUnavailable)  # at once, the store is not asked
        assert len(at.seen.failed) == 1
        at.lane.failure = None
        assert await at.send(logs("after")) == Receipt(1)
        assert at.bodies() == [["before"], ["after"]]
        first, second = (item.name for item in at.seen.written)
        assert first.stream != second.stream  # whether the lost segment is there is unknown
        assert (first.sequence, second.sequence) == (0, 0)


@run
async def test_refusals_during_an_outage_do_not_pile_up_in_the_error() -> None:
    async with bench() as at:
        failing(at.store)
        await at.outcome(logs("a"))
        for _ in range(50):
            await at.outcome(logs("b"))
        assert at.lane.failure is not None
        frames, trace = 0, at.lane.failure.__traceback__
        while trace is not None:
            frames, trace = frames + 1, trace.tb_next
        assert frames < 20


@run
async def test_what_waits_while_the_store_fails_is_refused_too_and_not_tried() -> None:
    async with bench(Gate()) as at:
        real = at.store.before_create
        at.store.shut()

        def fail_once(path: str, data: bytes) -> None:
            real(path, data)
            at.store.before_create = real
            raise StoreUnavailable("timed out")

        at.store.before_create = fail_once
        first = at.send(logs("a"))
        await at.store.reached()
        second = at.send(logs("b"))
        await turns()
        at.store.open()
        for outcome in await settled(first, second):
            assert isinstance(outcome, StoreUnavailable)
        assert at.store.objects == {}
        assert at.lane.load_bytes == 0
        at.lane.failure = None
        assert await at.send(logs("c")) == Receipt(1)
        assert at.bodies() == [["c"]]


@run
async def test_a_store_in_which_every_name_exists_is_a_failure_and_not_an_endless_try() -> None:
    async with bench() as at:

        def taken(path: str, data: bytes) -> None:
            at.store.objects[path] = b"somebody else's"

        at.store.before_create = taken
        assert isinstance(await at.outcome(logs("a")), StoreUnavailable)
        assert len(at.store.objects) < 10


@run
async def test_a_fenced_writer_opens_a_new_stream_and_still_acks() -> None:
    async with bench() as at:
        assert await at.send(logs("a")) == Receipt(1)
        last = at.seen.written[0].name
        fence = f"logs/{last.stream}/{1:020d}.parquet"
        at.store.objects[fence] = b"tombstone"
        assert await at.send(logs("b")) == Receipt(1)
        written = at.seen.written[1].name
        assert written.stream != last.stream
        assert written.sequence == 0
        assert at.store.objects[fence] == b"tombstone"
        assert WalReader(at.store).facts(written).stream_rows == 1


@run
async def test_a_lost_answer_that_turns_out_well_is_the_same_segment() -> None:
    """The store's own retry finds its bytes there: `create` succeeds, and nothing is written twice."""
    async with bench() as at:
        at.store.before_create = lambda path, data: at.store.objects.setdefault(path, data) and None
        assert await at.send(logs("a")) == Receipt(1)
        assert at.bodies() == [["a"]]


@run
async def test_a_client_that_has_gone_harms_nobody() -> None:
    async with bench(Gate()) as at:
        at.store.shut()
        first = at.send(logs("first"))
        await at.store.reached()
        gone, stays = at.send(logs("gone")), at.send(logs("stays"))
        await turns()
        first.cancel()
        gone.cancel()
        await turns()
        at.store.open()
        assert await stays == Receipt(1)
        assert at.bodies() == [["first"], ["gone", "stays"]]
        assert await at.send(logs("next")) == Receipt(1)


@run
async def test_closing_makes_durable_what_waits_and_refuses_what_comes_after() -> None:
    store = Gate()
    async with bench(store, group_wait_seconds=3600) as at:
        tasks = [at.send(logs("a")), at.send(logs("b"))]
        await turns()
        await at.lane.close()
        assert await settled(*tasks) == [Receipt(1)] * 2
        assert isinstance(await at.outcome(logs("c")), StoreUnavailable)
        await at.lane.close()
    assert at.bodies() == [["a", "b"]]


@run
async def test_a_lane_that_was_given_nothing_closes() -> None:
    async with bench():
        pass


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


@run
async def test_a_defect_while_writing_is_told_as_retryable_and_the_lane_lives_on() -> None:
    async with bench() as at:

        def defect(path: str, data: bytes) -> None:
            raise ZeroDivisionError

        at.store.before_create = defect
        assert isinstance(await at.outcome(logs("a")), StoreUnavailable)
        at.store.before_create = lambda path, data: None
        assert await at.send(logs("b")) == Receipt(1)
        assert len({item.stream for item in (at.seen.written[0].name,)}) == 1
        assert len(at.seen.failed) == 1


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
