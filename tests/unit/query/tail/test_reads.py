"""What the tail lists, reads and decodes for a query: no more than the query needs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from frazil.errors import StoreUnavailable
from frazil.position import WalPosition
from frazil.query.tail import KEPT_SECONDS
from frazil.query.tail.decode import SegmentDecoder
from frazil.wal.reader import NOTHING_LANDED
from frazil.wal.segment import Facts, SegmentWriter
from tests.support.query.tail_wal import DECODER, Wal, at, carts, name_of, rows_of, texts_of


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


def test_a_segment_without_rows_of_the_tenant_is_not_decoded(
    wal: Wal, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal.append(0, {"acme": ["a"]})
    wal.append(0, {"globex": ["b"]})
    wal.append(0, {"acme": ["c"], "globex": ["d"]})
    decoded: list[set[str]] = []
    read = SegmentDecoder._columns

    def noted(decoder: SegmentDecoder, facts: Facts, file: pq.ParquetFile, names: set[str]) -> pa.Table:
        decoded.append({*names})
        return read(decoder, facts, file, names)

    monkeypatch.setattr(SegmentDecoder, "_columns", noted)
    assert wal.bodies(columns=["body"]) == ["a", "c"]
    assert sorted(decoded, key=len) == [{"time", "body"}, {"time", "body", "tenant_id"}]
    assert wal.bodies(tenant="initech", columns=["body"]) == []
    assert len(decoded) == 2
