"""The room of the tail: chunks are merged, dropped after landing, and bounded by table and tenant."""

from __future__ import annotations

import contextlib
import random
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frazil.config import Config
from frazil.errors import StoreUnavailable
from frazil.otlp.decode import Decoder
from frazil.position import StreamPosition, WalPosition
from frazil.query.tail import KEPT_SECONDS, PositionTooOld, Tail
from frazil.query.tail.view import View
from frazil.wal.reader import NOTHING_LANDED
from frazil.wal.segment import SegmentWriter
from tests.support.fault.records import spans_request
from tests.support.query.tail_wal import STREAMS, Wal, at, name_of, segment, texts_of
from tests.support.wal_stores import MemoryStore


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
