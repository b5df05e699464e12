"""Group commit when the store fails, clients leave, and lanes close."""

from __future__ import annotations

import asyncio

from frazil.errors import StoreUnavailable
from frazil.wal.group import Receipt
from frazil.wal.reader import WalReader
from tests.support.group_commit import Gate, bench, failing, logs, run, settled, turns


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
