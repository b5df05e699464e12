"""A cut of the tail holds exactly the rows that landing would take, of one tenant, each once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from frazil.config import Config
from frazil.errors import SegmentCorrupt
from frazil.otlp.decode import conform
from frazil.position import StreamPosition, WalPosition, landing_position
from frazil.query.tail import KEPT_SECONDS, PositionTooOld, Tail, TailCut
from frazil.storage.local import LocalStore
from frazil.tables import SIGNALS, landed_spec
from frazil.tables.promoted import promoted
from frazil.wal.journal import SegmentJournal
from frazil.wal.names import SegmentName
from frazil.wal.reader import NOTHING_LANDED, WalReader
from frazil.wal.segment import SegmentWriter, read_rows
from tests.support.fault.land_process import Pipeline
from tests.support.fault.records import logs_request, spans_request
from tests.support.query.tail_wal import (
    DECODER,
    SPEC,
    STREAMS,
    TENANTS,
    Wal,
    at,
    carts,
    name_of,
    rows_of,
    texts_of,
)


def pending_texts(wal: Wal, position: WalPosition, tenant: str) -> Counter[str]:
    """As landing reads it."""
    found: Counter[str] = Counter()
    for item in WalReader(wal.store).pending("logs", position):
        found.update(_texts(item.name, wal.store.objects[item.name.path]).get(tenant, []))
    return found


@functools.cache
def _texts(name: SegmentName, data: bytes) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    with contextlib.suppress(SegmentCorrupt):
        _, rows = read_rows(name, data, DECODER.spec)
        for tenant, text in zip(rows["tenant_id"].to_pylist(), rows["body"].to_pylist(), strict=True):
            found.setdefault(tenant, []).append(text)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_a_cut_holds_what_landing_would_take_whatever_happened_before(
    make_wal: Callable[..., Wal], seed: int
) -> None:
    wal, chance = make_wal(), random.Random(seed)
    landed, positions, damaged = [0, 0, 0], [NOTHING_LANDED], set()
    held: list[tuple[TailCut, Counter[str]]] = []
    for _ in range(80):
        match chance.choices(
            ["append", "damage", "land", "clean", "cut", "wait", "hold"], [9, 1, 2, 1, 6, 1, 1]
        )[0]:
            case "append":
                wal.append(chance.randrange(3))
            case "damage":
                stream = chance.randrange(3)
                name = wal.append(stream, {"acme": ["lost"], "globex": ["lost"]})
                wal.damage(name)
                damaged.add(name)
            case "land":
                landed = [chance.randint(done, there) for done, there in zip(landed, wal.next, strict=True)]
                positions.append(
                    WalPosition({STREAMS[n]: StreamPosition(done) for n, done in enumerate(landed) if done})
                )
            case "clean":
                kept = positions[-2:]
                for stream, name in enumerate(STREAMS):
                    oldest = min(each.streams.get(name, StreamPosition()).sequence for each in kept)
                    for sequence in range(oldest):
                        wal.store.delete(name_of(stream, sequence).path)
            case "wait":
                wal.clock.seconds += chance.choice([1, KEPT_SECONDS + 1])
            case kind:
                position, tenant = chance.choice(positions[-2:]), chance.choice(TENANTS)
                columns = chance.choice([None, ["body"], ["body", "severity_text"]])
                cut = wal.tail.cut("logs", position, tenant, columns)
                expected = pending_texts(wal, position, tenant)
                assert Counter(texts_of(cut)) == expected
                waiting = {item.name for item in WalReader(wal.store).pending("logs", position)}
                assert len(cut.missing) == min(len(damaged & waiting), 11)
                if kind == "hold":
                    held.append((cut, expected))
                else:
                    cut.release()
    for cut, expected in held:
        assert Counter(texts_of(cut)) == expected
        cut.release()


def test_rows_look_the_same_before_and_after_they_have_landed(tmp_path: Path) -> None:
    """A broken clock, columns that were promoted later, several row groups, both tenants."""
    extra = [{"attribute": "cart.id", "type": "int"}, {"attribute": "shop", "source": "resource"}]
    config = Config.model_validate({"data_dir": tmp_path, "tables": {"promoted": extra}})
    store = LocalStore(config.wal_dir)
    for sequence in range(3):
        name = name_of(0, sequence)
        writer = SegmentWriter(1)
        for group in range(2):
            bodies = [carts(f"{sequence}/{group}/{tenant}") for tenant in TENANTS]
            writer.write(DECODER.decode(bodies, list(TENANTS), [time.time_ns()] * 2).table)
        now = time.time_ns()
        store.create(name.path, writer.finish(name, stream_rows=0, received=(now, now)))
    spec = landed_spec("logs", promoted(config))
    with contextlib.closing(Tail(config, tmp_path / "tail")) as tail:
        narrow = rows_of(tail.cut("logs", NOTHING_LANDED, "acme", ["cart_id", "shop"]))
        assert narrow.column_names == ["time", "cart_id", "shop"]
        before = [conform(rows_of(tail.cut("logs", NOTHING_LANDED, tenant)), spec) for tenant in TENANTS]
        pipeline = Pipeline(config)
        with contextlib.closing(pipeline.catalog):
            pipeline.land()
            after = conform(pipeline.catalog.load_table("otel.logs").scan().to_arrow(), spec)
            position = landing_position(pipeline.lander.checkpoint().position).wal
        assert tail.cut("logs", position, "acme").rows == 0
    assert sorted(map(repr, narrow.to_pylist())) == sorted(
        map(repr, before[0].select(narrow.column_names).to_pylist())
    )
    for tenant, table in zip(TENANTS, before, strict=True):
        assert table["cart_id"].null_count == 0
        assert table["shop"].to_pylist() == ["corner"] * 36
        landed = after.filter(pc.equal(after["tenant_id"], tenant))
        assert sorted(map(repr, table.to_pylist())) == sorted(map(repr, landed.to_pylist()))


def test_all_chunks_have_one_schema_in_the_order_of_the_table(wal: Wal) -> None:
    for stream in range(2):
        wal.append(stream)
    cut = wal.tail.cut("logs", NOTHING_LANDED, "acme")
    schemas = {str(pq.read_schema(chunk.path)) for chunk in cut.chunks}
    assert (len(cut.chunks), len(schemas)) == (1, 1)
    assert rows_of(cut).column_names == [column.name for column in SPEC.columns]
    conform(rows_of(cut), SPEC)
    cut.release()


def test_a_tenants_file_holds_nothing_of_another(wal: Wal) -> None:
    wal.append(0, {"acme": ["mine"], "globex": ["secret", "secret two"]})
    wal.append(0, {"globex": ["secret three"]})
    cut = wal.tail.cut("logs", NOTHING_LANDED, "acme")
    assert texts_of(cut) == ["mine"]
    for chunk in cut.chunks:
        content = Path(chunk.path).read_bytes()
        assert b"secret" not in content
        assert b"globex" not in content
    assert wal.bodies(tenant="nobody") == []


def test_a_position_in_mid_chunk_takes_the_rest_of_it(wal: Wal) -> None:
    for _ in range(10):
        wal.append(0)
    assert len(wal.bodies()) == 30
    for sequence in range(11):
        cut = wal.tail.cut("logs", at(sequence), "acme")
        assert len(cut.chunks) <= 1
        assert Counter(texts_of(cut)) == pending_texts(wal, at(sequence), "acme")
        cut.release()


def test_a_gap_ends_a_stream_and_one_without_its_beginning_gives_nothing(wal: Wal) -> None:
    for stream in range(3):
        for _ in range(4):
            wal.append(stream)
    wal.store.delete(name_of(0, 2).path)
    wal.store.delete(name_of(1, 0).path)
    wal.store.delete(name_of(2, 1).path)
    position = WalPosition({STREAMS[2]: StreamPosition(1)})
    cut = wal.tail.cut("logs", position, "acme")
    assert Counter(texts_of(cut)) == pending_texts(wal, position, "acme")
    assert cut.missing == tuple(
        f"{name.path} is missing; the segments after it are left out"
        for name in (name_of(0, 2), name_of(2, 1))
    )


def test_a_listing_that_a_writer_has_overtaken_is_no_gap(wal: Wal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large folder is read in parts: a file that comes meanwhile may be missed, and the next one seen."""
    wal.append(0)
    position = at(1)
    assert wal.bodies(position) == []
    wal.append(0)
    wal.append(0)
    whole, looks = wal.store.list, []

    def listing(prefix: str, after: str | None = None) -> Any:
        looks.append(prefix)
        return (
            entry for entry in whole(prefix, after) if len(looks) > 1 or not entry.path.endswith("1.parquet")
        )

    monkeypatch.setattr(wal.store, "list", listing)
    cut = wal.tail.cut("logs", position, "acme")
    assert (cut.rows, cut.missing) == (6, ())
    cut.release()


def test_what_comes_into_a_gap_is_seen(wal: Wal) -> None:
    wal.append(0)
    late = wal.append(0)
    wal.append(0)
    data = wal.store.objects.pop(late.path)
    assert len(wal.bodies()) == 3
    wal.store.create(late.path, data)
    assert len(wal.bodies()) == 9


def test_closed_streams_give_nothing_and_tombstones_have_no_rows(wal: Wal) -> None:
    wal.append(0)
    wal.close_stream(0)
    wal.append(1)
    assert len(wal.bodies()) == 6
    assert len(wal.bodies(at(2, 0, closed=[0]))) == 3
    assert wal.tail.cut("logs", NOTHING_LANDED, "acme").missing == ()


def test_a_stream_that_was_cleaned_up_and_dropped_from_the_position_does_not_come_back(wal: Wal) -> None:
    wal.append(0)
    wal.append(1)
    assert len(wal.bodies(at(0, 0))) == 6
    wal.store.delete(name_of(0, 0).path)
    assert len(wal.bodies(WalPosition({STREAMS[1]: StreamPosition(0)}))) == 3
    assert len(wal.bodies(at(0, 0))) == 6  # a query that began before still has its cut


def test_what_cannot_be_read_is_named_and_passed_over(wal: Wal) -> None:
    wal.append(0)
    bad = wal.append(0)
    wal.append(0)
    wal.damage(bad)
    cut = wal.tail.cut("logs", NOTHING_LANDED, "acme")
    assert cut.rows == 6
    (problem,) = cut.missing
    assert bad.path in problem
    assert "set it aside" in problem
    assert wal.tail.cut("logs", at(2), "acme").missing == ()


def test_a_segment_that_vanishes_while_it_is_read_means_that_the_position_is_too_old(wal: Wal) -> None:
    for _ in range(4):
        wal.append(0)
    listing = wal.store.list

    def vanish(prefix: str, after: str | None = None) -> Any:
        found = list(listing(prefix, after))
        wal.store.delete(name_of(0, 1).path)
        return iter(found)

    wal.store.list = vanish  # type: ignore[method-assign]
    with pytest.raises(PositionTooOld) as raised:
        wal.tail.cut("logs", at(1), "acme")
    assert raised.value.table == "logs"
    assert isinstance(raised.value.again(), PositionTooOld)
    assert len(wal.bodies(at(2))) == 6
    with pytest.raises(PositionTooOld):
        wal.tail.cut("logs", at(1), "acme")


def test_a_segment_that_went_after_it_was_listed_is_not_asked_for_again(wal: Wal) -> None:
    """The position may be the newest that the catalog can say: the planner knows how old it is."""
    name = wal.append(0)
    wal.append(1)
    assert len(wal.bodies(at(0, 0), tenant="globex")) == 6
    wal.store.delete(name.path)
    with pytest.raises(PositionTooOld):
        wal.bodies(at(0, 0))
    assert len(wal.bodies(at(0, 0))) == 3


class Quiet:
    def segment_written(self, segment: object) -> None: ...

    def segment_failed(self, error: object) -> None: ...


def test_every_row_acked_before_a_cut_is_in_it_once_while_receivers_write(tmp_path: Path) -> None:
    """A journal with its lanes, for all signals, and four threads that ask."""
    config = Config.model_validate({"data_dir": tmp_path, "wal": {"lanes": 2, "group_wait_seconds": 0}})
    acked: dict[str, set[str]] = {tenant: set() for tenant in TENANTS}
    ended = threading.Event()

    async def write() -> None:
        journal = SegmentJournal(config, LocalStore(config.wal_dir), Quiet())
        await journal.start()

        async def client(tenant: str, number: int) -> None:
            for count in range(12):
                texts = [f"{tenant}/{number}/{count}/{row}" for row in range(4)]
                await journal.append("logs", logs_request(texts), tenant, time.time_ns())
                acked[tenant] |= set(texts)
                await journal.append("spans", spans_request(texts), tenant, time.time_ns())

        await asyncio.gather(*(client(tenant, number) for tenant in TENANTS for number in range(3)))
        await journal.close()

    def ask(tail: Tail, tenant: str) -> int:
        seen: set[str] = set()
        cuts = 0
        while True:
            last, before = ended.is_set(), set(acked[tenant])
            cut = tail.cut("logs", NOTHING_LANDED, tenant)
            found = texts_of(cut)
            cut.release()
            assert len(found) == len(set(found)), "a row is there twice"
            assert before <= set(found), "an acked row is missing"
            assert seen <= set(found), "a row went away"
            assert all(text.startswith(tenant) for text in found)
            seen, cuts = set(found), cuts + 1
            if last:
                assert len(seen) == 144
                return cuts

    with contextlib.closing(Tail(config, tmp_path / "tail")) as tail, ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, tail, tenant) for tenant in TENANTS * 2]
        try:
            asyncio.run(write())
        finally:
            ended.set()
        assert min(each.result(60) for each in asking) > 0
        tail.follow(dict.fromkeys(SIGNALS, NOTHING_LANDED))
        assert tail.cut("spans", NOTHING_LANDED, "acme").rows == 144
        assert tail.cut("metrics", NOTHING_LANDED, "acme").rows == 0
