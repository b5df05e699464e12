"""The tail: exactly the rows that landing would take, of one tenant, each once, however the cache stands."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from frazil.config import Config
from frazil.errors import SegmentCorrupt, StoreUnavailable
from frazil.otlp.decode import Decoder, conform
from frazil.position import StreamPosition, WalPosition, landing_position
from frazil.query.tail import KEPT_SECONDS, PositionTooOld, Tail, TailCut
from frazil.query.tail.view import View
from frazil.storage.local import LocalStore
from frazil.tables import SIGNALS, Signal, landed_spec
from frazil.tables.promoted import promoted
from frazil.wal.journal import SegmentJournal
from frazil.wal.names import SegmentName
from frazil.wal.reader import NOTHING_LANDED, WalReader
from frazil.wal.segment import SegmentWriter, read_rows, tombstone
from tests.support.fault.land_process import Pipeline
from tests.support.fault.records import logs_request, spans_request
from tests.support.wal_stores import HandClock, MemoryStore

STREAMS = [f"20261115T08182312{number}-9f86d081884c7d65" for number in range(3)]
DECODER = Decoder("logs")
SPEC = landed_spec("logs")
TENANTS = ("acme", "globex")
Rows = dict[str, Sequence[str]]


def name_of(stream: int, sequence: int, signal: Signal = "logs") -> SegmentName:
    return SegmentName(signal, STREAMS[stream], sequence)


def segment(name: SegmentName, rows: Rows, *, stream_rows: int = 0, received: int | None = None) -> bytes:
    """By tenant, the bodies of its rows."""
    now = received or time.time_ns()
    writer = SegmentWriter(1)
    bodies = [logs_request(texts) for texts in rows.values()]
    writer.write(DECODER.decode(bodies, list(rows), [now] * len(bodies)).table)
    return writer.finish(name, stream_rows=stream_rows, received=(now, now))


class Wal:
    """A WAL whose rows are known, beside a tail that follows it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.store = MemoryStore()
        self.clock = HandClock()
        self.folder = folder / "tail"
        config = Config.model_validate({"data_dir": folder, **settings})
        self.tail = Tail(config, self.folder, store=self.store, clock=self.clock)
        self.next = [0] * len(STREAMS)
        self.rows = [0] * len(STREAMS)

    def append(self, stream: int, rows: Rows | None = None, **facts: Any) -> SegmentName:
        name = name_of(stream, self.next[stream])
        where = f"{stream}/{name.sequence}"
        rows = rows or {tenant: [f"{where}/{tenant}/{number}" for number in range(3)] for tenant in TENANTS}
        self.store.create(name.path, segment(name, rows, stream_rows=self.rows[stream], **facts))
        self.next[stream] += 1
        self.rows[stream] += sum(len(texts) for texts in rows.values())
        return name

    def damage(self, name: SegmentName) -> None:
        data = bytearray(self.store.objects[name.path])
        data[len(data) // 2] ^= 0xFF
        self.store.objects[name.path] = bytes(data)

    def close_stream(self, stream: int) -> None:
        name = name_of(stream, self.next[stream])
        self.store.create(name.path, tombstone(name, self.rows[stream]))
        self.next[stream] += 1

    def bodies(self, position: WalPosition = NOTHING_LANDED, tenant: str = "acme", **more: Any) -> list[str]:
        cut = self.tail.cut("logs", position, tenant, **more)
        found = texts_of(cut)
        cut.release()
        return found

    def files(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}

    def count_reads(self) -> list[str]:
        """The paths of segments that are read from now on."""
        reads: list[str] = []
        read = self.store.read
        self.store.read = lambda path: (reads.append(path), read(path))[1]  # type: ignore[method-assign]
        return reads


def rows_of(cut: TailCut) -> pa.Table:
    tables = []
    for chunk in cut.chunks:
        table = pq.read_table(chunk.path, partitioning=None)
        for first, end in chunk.ranges or [(0, table.num_rows)]:
            assert first < end <= table.num_rows
            tables.append(table.slice(first, end - first))
    table = pa.concat_tables(tables) if tables else SPEC.arrow_schema.empty_table()
    assert table.num_rows == cut.rows
    return table


def texts_of(cut: TailCut) -> list[str]:
    texts: list[str] = rows_of(cut)["body"].to_pylist()
    return texts


def at(*sequences: int, closed: Sequence[int] = ()) -> WalPosition:
    return WalPosition(
        {
            STREAMS[stream]: StreamPosition(sequence, closed=stream in closed)
            for stream, sequence in enumerate(sequences)
        }
    )


@pytest.fixture
def make_wal(tmp_path: Path) -> Iterator[Callable[..., Wal]]:
    with contextlib.ExitStack() as stack:

        def make(**settings: Any) -> Wal:
            made = Wal(tmp_path, **settings)
            stack.callback(made.tail.close)
            return made

        yield make


@pytest.fixture
def wal(make_wal: Callable[..., Wal]) -> Wal:
    return make_wal()


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


def carts(text: str) -> bytes:
    """Of which the third has a clock that went wrong, and the fourth one that is years ahead."""
    request = ExportLogsServiceRequest()
    envelope = request.resource_logs.add()
    envelope.resource.attributes.add(key="shop").value.string_value = "corner"
    now = time.time_ns()
    for number, moment in enumerate([now, now - 10**9, 1, now + 10**18, now, now]):
        record = envelope.scope_logs.add().log_records.add(time_unix_nano=moment)
        record.body.string_value = f"{text}/{number}"
        record.attributes.add(key="cart.id").value.int_value = number
    return bytes(request.SerializeToString())


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


def test_bounds_on_time_leave_out_chunks_that_are_wholly_outside(wal: Wal) -> None:
    before = time.time_ns() // 1000
    wal.append(0)
    after = time.time_ns() // 1000
    assert len(wal.bodies(lower=before, upper=after)) == 3
    assert wal.bodies(lower=after + 1) == []
    assert wal.bodies(upper=before - 1) == []


def test_a_segment_outside_the_bounds_is_read_once_and_never_decoded(wal: Wal) -> None:
    now = time.time_ns()
    for sequence, hours in enumerate((3, 2, 1)):
        then = now - hours * 3600 * 10**9
        record = LogRecord(time_unix_nano=then, body={"string_value": f"{hours} h"})
        body = ExportLogsServiceRequest(resource_logs=[{"scope_logs": [{"log_records": [record]}]}])
        writer = SegmentWriter(1)
        writer.write(DECODER.decode([body.SerializeToString()], ["acme"], [then]).table)
        name = name_of(0, sequence)
        wal.store.create(name.path, writer.finish(name, stream_rows=0, received=(then, then)))
    lower = (now - int(1.5 * 3600e9)) // 1000
    assert wal.bodies(lower=lower) == ["1 h"]
    reads = wal.count_reads()
    assert wal.bodies(lower=lower) == ["1 h"]
    assert reads == []
    assert wal.bodies(lower=lower - 3600 * 10**6) == ["2 h", "1 h"]
    assert reads == [name_of(0, 1).path]


def test_bounds_hold_for_the_time_that_landing_sets(wal: Wal) -> None:
    """A sender without a clock: `time` is when the row was received."""
    now = time.time_ns()
    name = name_of(0, 0)
    writer = SegmentWriter(1)
    writer.write(DECODER.decode([carts("1")], ["acme"], [now]).table)
    wal.store.create(name.path, writer.finish(name, stream_rows=0, received=(now, now)))
    lower = now // 1000 - 500_000
    assert {"1/2", "1/3"} <= set(wal.bodies(lower=lower, upper=now // 1000))
    assert wal.bodies(lower=now // 1000 + 10**10) == []


def test_only_the_columns_asked_for_are_decoded(wal: Wal) -> None:
    wal.append(0)
    cut = wal.tail.cut("logs", NOTHING_LANDED, "acme", ["body", "severity_number"])
    assert set(rows_of(cut).column_names) == {"time", "severity_number", "body"}
    assert len(texts_of(cut)) == 3
    assert set(rows_of(wal.tail.cut("logs", NOTHING_LANDED, "acme", [])).column_names) == {"time"}


def test_without_a_query_nothing_is_listed_read_or_decoded(wal: Wal) -> None:
    reads = wal.count_reads()
    for _ in range(3):
        wal.append(0)
        wal.tail.follow({"logs": NOTHING_LANDED})
    assert (reads, wal.store.listed, wal.files()) == ([], [], set())
    assert len(wal.bodies()) == 9
    wal.append(0)
    wal.tail.follow({"logs": NOTHING_LANDED})
    assert len(reads) == 3, "a local log is read when the next query comes"
    wal.clock.seconds += KEPT_SECONDS + 1
    wal.tail.follow({"logs": NOTHING_LANDED})
    assert wal.files() == set()
    wal.store.listed.clear()
    wal.tail.follow({"logs": NOTHING_LANDED})
    assert wal.store.listed == []


def test_from_a_bucket_each_segment_is_read_once_and_ahead_of_the_next_query(
    make_wal: Callable[..., Wal],
) -> None:
    wal = make_wal(wal={"type": "s3", "s3": {"bucket": "frazil"}})
    reads = wal.count_reads()
    wal.append(0)
    assert len(wal.bodies(columns=["body"])) == len(wal.bodies()) == 3
    assert len(reads) == 1
    wal.append(0)
    wal.tail.follow({"logs": NOTHING_LANDED})
    assert len(reads) == 2
    assert len(wal.bodies(columns=["body"])) == len(wal.bodies(tenant="globex")) == 6
    assert len(reads) == 2


def test_the_key_is_that_of_the_content_and_not_of_how_it_is_kept(wal: Wal) -> None:
    def key(position: WalPosition = NOTHING_LANDED, tenant: str = "acme") -> str:
        cut = wal.tail.cut("logs", position, tenant)
        cut.release()
        return cut.key

    keys = {key()}
    for _ in range(3):
        wal.append(0, {"acme": ["one"]})
        keys.add(key())
    assert len(keys) == 4
    now = key()
    wal.append(0, {"globex": ["of somebody else"]})
    assert key() == now
    assert len({now, key(tenant="globex"), key(at(1)), key(at(2))}) == 4


def test_many_small_segments_become_few_chunks_and_no_row_is_lost(make_wal: Callable[..., Wal]) -> None:
    wal = make_wal()
    written = 0
    folder = wal.tail._folder
    write = folder.write

    def counted(rows: Any, *more: Any) -> Any:
        nonlocal written
        written += sum(table.num_rows for _, table in rows)
        return write(rows, *more)

    folder.write = counted  # type: ignore[method-assign]
    for number in range(60):
        wal.append(0, {"acme": [f"{number}/{row}" for row in range(3)]})
        wal.bodies()
    cut = wal.tail.cut("logs", NOTHING_LANDED, "acme")
    assert texts_of(cut) == [f"{number}/{row}" for number in range(60) for row in range(3)]
    assert len(cut.chunks) <= 7
    assert len(wal.files()) == len(cut.chunks)
    assert written <= 180 * 8


def test_a_pinned_file_stays_while_merging_and_dropping_go_on(wal: Wal) -> None:
    cuts = []
    for _ in range(8):
        wal.append(0)
        cuts.append(wal.tail.cut("logs", NOTHING_LANDED, "acme"))
    assert [len(texts_of(cut)) for cut in cuts] == [3 * (n + 1) for n in range(8)]
    wal.bodies(at(8))
    wal.clock.seconds += KEPT_SECONDS + 1
    wal.bodies(at(8))
    assert [len(texts_of(cut)) for cut in cuts] == [3 * (n + 1) for n in range(8)]
    for cut in cuts:
        cut.release()
        cut.release()
    assert wal.files() == set()


def test_rows_that_have_landed_are_kept_for_a_while_and_then_dropped(wal: Wal) -> None:
    for _ in range(4):
        wal.append(0)
    assert len(wal.bodies()) == 12
    assert wal.bodies(at(4)) == []
    for sequence in range(4):
        wal.store.delete(name_of(0, sequence).path)
    assert len(wal.bodies(at(1))) == 9
    wal.append(0)
    wal.bodies(at(4))
    wal.clock.seconds += KEPT_SECONDS + 1
    assert len(wal.bodies(at(4))) == 3
    assert len(wal.files()) == 1
    with pytest.raises(PositionTooOld):
        wal.bodies(at(1))


def test_rows_do_not_expire_while_a_query_counts_on_them(wal: Wal, monkeypatch: pytest.MonkeyPatch) -> None:
    wal.append(0)
    assert len(wal.bodies()) == 3
    wal.clock.seconds += KEPT_SECONDS + 1
    load = View.load

    def with_another(view: View, *rest: Any) -> None:
        monkeypatch.undo()
        load(view, *rest)
        wal.bodies(tenant="globex")

    monkeypatch.setattr(View, "load", with_another)
    assert len(wal.bodies()) == 3


def test_over_the_bound_the_newest_are_kept_and_the_count_of_the_others_is_said(
    make_wal: Callable[..., Wal],
) -> None:
    wal = make_wal(query={"tail_bytes_max": 16 * 2**20})
    chance = random.Random(1)
    now = time.time_ns()
    reads = wal.count_reads()
    for number in range(60):
        large = chance.randbytes(2**18).hex()
        wal.append(number % 2, {"acme": [f"{number} {large}"]}, received=now + number)
    for expected_reads in (True, False):
        reads.clear()
        cut = wal.tail.cut("logs", NOTHING_LANDED, "acme")
        assert bool(reads) is expected_reads
        numbers = sorted(int(text.split()[0]) for text in texts_of(cut))
        left = 60 - len(numbers)
        assert 10 < left < 60
        assert abs(numbers[0] - left) <= 8  # nearly so over both streams
        for parity in range(2):  # of each stream a prefix is left out
            kept = [number for number in numbers if number % 2 == parity]
            assert kept == list(range(kept[0], 60, 2))
        (missing,) = cut.missing
        assert missing.startswith(f"{left} rows of logs")
        assert "query.tail_bytes_max" in missing
        assert sum(path.stat().st_size for path in wal.folder.iterdir()) <= 17 * 2**20
        cut.release()
    wal.append(0, {"acme": ["60 the latest"]}, received=now + 60)
    assert "60 the latest" in wal.bodies()
    position = WalPosition({STREAMS[n]: StreamPosition(wal.next[n], durable_rows=30) for n in range(2)})
    assert wal.tail.cut("logs", position, "acme").missing == ()


def test_one_table_never_takes_the_room_of_another(tmp_path: Path) -> None:
    config = Config.model_validate({"data_dir": tmp_path, "query": {"tail_bytes_max": 16 * 2**20}})
    store, chance, now = MemoryStore(), random.Random(1), time.time_ns()
    large = [chance.randbytes(2**18).hex() for _ in range(50)]
    decoder = Decoder("spans")
    writer = SegmentWriter(1)
    writer.write(decoder.decode([spans_request(large[:6])], ["acme"], [now]).table)
    name = name_of(1, 0, "spans")
    store.create(name.path, writer.finish(name, stream_rows=0, received=(now, now)))
    for number, text in enumerate(large):
        name = name_of(0, number)
        store.create(name.path, segment(name, {"acme": [text]}, stream_rows=number, received=now + number))
    with contextlib.closing(Tail(config, tmp_path / "tail", store=store)) as tail:
        for _ in range(2):
            spans = tail.cut("spans", NOTHING_LANDED, "acme")
            logs = tail.cut("logs", NOTHING_LANDED, "acme")
            assert (spans.rows, spans.missing) == (6, ())
            assert 0 < logs.rows < 50
            assert logs.missing
            spans.release()
            logs.release()


def test_one_tenant_never_takes_the_room_of_another(make_wal: Callable[..., Wal]) -> None:
    wal = make_wal(query={"tail_bytes_max": 16 * 2**20})
    chance, now = random.Random(1), time.time_ns()
    for number in range(50):
        large = chance.randbytes(2**18).hex()
        rows = {"acme": [large], **({"globex": [f"{number}"]} if number % 10 == 0 else {})}
        wal.append(0, rows, received=now + number)
    for columns in ([None], [None, ["body"], ["body", "severity_text"]]):
        for each in columns:
            large_cut = wal.tail.cut("logs", NOTHING_LANDED, "acme", each)
            assert 0 < large_cut.rows < 50
            assert large_cut.missing
            large_cut.release()
        small = wal.tail.cut("logs", NOTHING_LANDED, "globex")
        assert (small.rows, small.missing) == (5, ())
        small.release()
    assert wal.tail.bytes <= 16 * 2**20


def test_with_nothing_new_no_segment_is_read_and_only_the_end_is_listed(wal: Wal) -> None:
    for _ in range(5):
        wal.append(0)
    assert len(wal.bodies(at(0))) == 15
    reads = wal.count_reads()
    wal.store.listed.clear()
    assert len(wal.bodies(at(0))) == 15
    assert len(wal.bodies(at(3))) == 6
    assert (reads, wal.store.listed) == ([], [])


def test_callers_share_a_look_but_never_one_that_began_before_they_came(wal: Wal) -> None:
    wal.append(0)
    children, looks = wal.store.children, 0
    entered, go_on = threading.Semaphore(0), threading.Semaphore(0)

    def slow(prefix: str) -> Sequence[str]:
        nonlocal looks
        looks += 1
        found = children(prefix)
        entered.release()
        assert go_on.acquire(timeout=30)
        return found

    wal.store.children = slow  # type: ignore[method-assign]
    with ThreadPoolExecutor(6) as pool:
        first = pool.submit(wal.bodies)
        assert entered.acquire(timeout=30)
        wal.append(1)  # behind the first look's back
        later = [pool.submit(wal.bodies) for _ in range(5)]
        tickets = wal.tail._tables["logs"].listing._tickets
        while tickets.__reduce__()[1][0] < 8:  # that of the first, of its look, and of the five that wait
            time.sleep(0.001)
        go_on.release(2)
        assert len(first.result(30)) == 3
        assert {len(each.result(30)) for each in later} == {6}
    assert looks == 2


def test_an_error_of_the_store_reaches_all_and_passes(wal: Wal) -> None:
    wal.append(0)
    read = wal.store.read

    def broken(path: str) -> bytes:
        raise StoreUnavailable("no answer")

    wal.store.read = broken  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="no answer"):
            wal.bodies()
    wal.store.read = read  # type: ignore[method-assign]
    assert len(wal.bodies()) == 3


def test_the_folder_is_private_and_closing_removes_it(wal: Wal) -> None:
    wal.append(0)
    wal.bodies()
    assert stat.S_IMODE(wal.folder.stat().st_mode) == 0o700
    assert wal.files()
    for _ in range(2):
        wal.tail.close()
        assert not wal.folder.exists()
    with pytest.raises(StoreUnavailable, match="closing"):
        wal.bodies()


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
