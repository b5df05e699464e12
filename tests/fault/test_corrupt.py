"""Segments that are broken, cut, foreign or from the future: found out, kept, reported, in nobody's way."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from frazil.config import Config
from frazil.errors import SegmentCorrupt, SegmentUnknown, StoreUnavailable
from frazil.ledger import balance
from frazil.tables import table_spec
from frazil.wal import SegmentName, open_store, segment
from frazil.wal.journal import SegmentJournal
from frazil.wal.reader import WalReader
from frazil.wal.segment import read_facts, read_rows
from tests.fault.test_journal import local_config
from tests.support.fault.records import logs_request
from tests.support.fault.traffic import Account, burst, found_logs
from tests.support.group_commit import Seen
from tests.support.receiver import running_receiver, write_config
from tests.support.wal_stores import set_aside_copies


def write_segments(config: Config, texts: list[str]) -> list[SegmentName]:
    """One segment for each text, all in one stream."""
    seen = Seen()

    async def live() -> None:
        journal = SegmentJournal(config, open_store(config), seen)
        await journal.start()
        for text in texts:
            await journal.append("logs", logs_request([text]), "default", time.time_ns())
        await journal.close()

    asyncio.run(live())
    return [written.name for written in seen.written]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return local_config(tmp_path)


@pytest.fixture
def one(config: Config) -> tuple[SegmentName, bytes]:
    (name,) = write_segments(config, ["the only record"])
    return name, open_store(config).read(name.path)


def test_every_flipped_bit_is_found_out(one: tuple[SegmentName, bytes]) -> None:
    name, data = one
    assert read_facts(name, data).rows == 1
    broken = bytearray(data)
    unnoticed = []
    for at in range(len(data)):
        for bit in range(8):
            broken[at] ^= 1 << bit
            try:
                read_facts(name, bytes(broken))
                unnoticed.append((at, bit))
            except SegmentCorrupt:
                pass
            broken[at] ^= 1 << bit
    assert unnoticed == []
    assert bytes(broken) == data


def test_every_cut_is_found_out(one: tuple[SegmentName, bytes]) -> None:
    name, data = one
    for length in range(len(data)):
        for part in (data[:length], data[len(data) - length :]):
            with pytest.raises(SegmentCorrupt):
                read_facts(name, part)


def test_bytes_swapped_doubled_zeroed_or_added_are_found_out(one: tuple[SegmentName, bytes]) -> None:
    name, data = one
    chance = random.Random(7)
    for _ in range(3000):
        a, b = sorted(chance.sample(range(len(data)), 2))
        for broken in (
            data[:a] + data[b:],
            data[:a] + bytes(b - a) + data[b:],
            data[:b] + data[a:],
            data[:a] + data[a:b][::-1] + data[b:],
            data + data[a:b],
            data[a:b] + data,
        ):
            if broken != data:
                with pytest.raises(SegmentCorrupt):
                    read_facts(name, broken)


FOREIGN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "flipped": lambda data: data[:100] + bytes([data[100] ^ 4]) + data[101:],
    "zeroed": lambda data: bytes(len(data)),
    "text": lambda data: b"not a segment at all",
    "magic alone": lambda data: b"PAR1" * 4,
    "somebody's Parquet": lambda data: parquet({}),
    "somebody's Parquet with our keys": lambda data: parquet(
        {"frazil.format": "1", "frazil.checksum": "xxh3:"}
    ),
}


def parquet(metadata: dict[str, str]) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"body": ["foreign"]}).replace_schema_metadata(metadata)
    pq.write_table(table, sink, store_schema=False)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_broken_segment_is_set_aside_and_the_others_are_read(kind: str, config: Config) -> None:
    names = write_segments(config, ["before", "broken", "after"])
    store = open_store(config)
    reader, spec = WalReader(store), table_spec("logs")
    broken = FOREIGN[kind](store.read(names[1].path))
    (config.wal_dir / names[1].path).write_bytes(broken)
    read, aside = [], []
    for found in reader.pending("logs"):
        try:
            read += reader.rows(found.name, spec)[1].column("body").to_pylist()
        except SegmentCorrupt as error:
            aside.append(reader.set_aside(found.name, error))
    assert read == ["before", "after"]
    (kept,) = aside
    assert store.read(kept) == broken
    before = set_aside_copies(store)
    assert [path for path, _ in before] == aside
    assert before[0][1]["segment"] == names[1].path
    assert before[0][1]["reason"]
    with pytest.raises(SegmentCorrupt) as caught:
        reader.facts(names[1])
    assert reader.set_aside(names[1], caught.value) == kept  # twice is once
    assert set_aside_copies(store) == before
    ledger = balance(config)
    assert len(ledger.problems) == 1
    assert names[1].path in ledger.problems[0]


def test_a_future_format_is_not_guessed_at(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "FORMAT", "2")
    (future,) = write_segments(config, ["from the future"])
    monkeypatch.undo()
    write_segments(config, ["of today"])
    reader = WalReader(open_store(config))
    with pytest.raises(
        SegmentUnknown, match="format version 2, which this release cannot read; upgrade frazil"
    ):
        reader.rows(future, table_spec("logs"))
    try:
        reader.facts(future)
    except SegmentUnknown as error:
        reader.set_aside(future, error)
    ((_, facts),) = set_aside_copies(open_store(config))
    assert "upgrade" in facts["reason"]
    assert len(balance(config).problems) == 1


def test_a_segment_under_another_ones_name_is_found_out(config: Config) -> None:
    """Copied by hand, or by a restore gone wrong: its rows would count twice, or in a wrong place."""
    first, second = write_segments(config, ["first", "second"])
    store = open_store(config)
    for other in (
        SegmentName("logs", first.stream, 2),
        SegmentName("spans", first.stream, 0),
        SegmentName("logs", first.stream[:-1] + ("0" if first.stream[-1] != "0" else "1"), 0),
    ):
        with pytest.raises(SegmentCorrupt, match="the footer names"):
            read_facts(other, store.read(first.path))
    store.create(SegmentName("logs", first.stream, 2).path, store.read(second.path))
    (problem,) = balance(config).problems
    assert "the footer names" in problem


def test_what_is_no_segments_name_is_left_alone(config: Config) -> None:
    (name,) = write_segments(config, ["one"])
    folder = (config.wal_dir / name.path).parent
    for stranger in ("notes.txt", "0.parquet", "00000000000000000001.parquet.bak", "x" * 20 + ".parquet"):
        (folder / stranger).write_bytes(b"foreign")
    (config.wal_dir / "logs" / "lost+found").mkdir()
    assert balance(config).problems == []
    assert found_logs(config) == {"one": 1}


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_missing_segment_is_reported(gone: int, config: Config) -> None:
    names = write_segments(config, ["a", "b", "c", "d"])
    (config.wal_dir / names[gone].path).unlink()
    (problem,) = balance(config).problems
    assert f"sequence {gone} is missing" in problem
    assert names[gone + 1].path in problem


def test_a_segment_that_vanishes_while_it_is_verified_is_no_problem(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = write_segments(config, ["a", "b", "c"])
    real = WalReader.facts

    def facts(self: WalReader, name: SegmentName) -> segment.Facts:
        if name == names[1]:
            raise FileNotFoundError(name.path)
        return real(self, name)

    monkeypatch.setattr(WalReader, "facts", facts)
    assert balance(config).problems == []


def test_a_segment_that_the_disk_cannot_read_is_reported_and_the_others_are_verified(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = write_segments(config, ["a", "b", "c"])
    real = WalReader.facts

    def facts(self: WalReader, name: SegmentName) -> segment.Facts:
        if name == names[1]:
            raise StoreUnavailable(f"{name.path} cannot be read: Input/output error")
        return real(self, name)

    monkeypatch.setattr(WalReader, "facts", facts)
    ledger = balance(config)
    (problem,) = ledger.problems
    assert "Input/output error" in problem
    assert ledger.lines[0].waiting == 2


def frazil_verify(config_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "frazil", "--config", str(config_path), "verify", *options]
    return subprocess.run(command, capture_output=True, text=True, cwd=config_path.parent)


@pytest.mark.slow
def test_frazil_verify_reports_and_a_receiver_starts_beside_broken_segments(tmp_path: Path) -> None:
    account = Account()
    with running_receiver(tmp_path, {"receive": {"workers": 1}}) as receiver:
        burst(receiver, account)
        sound = frazil_verify(receiver.config_path)
        assert sound.returncode == 0
        assert "all durable rows have landed or wait to land" in sound.stdout
        receiver.stop()
        store, config = open_store(receiver.config), receiver.config
        victims = []
        for kind, damage in FOREIGN.items():
            (name,) = write_segments(local_config(config.data_dir), [f"broken: {kind}"])
            (config.wal_dir / name.path).write_bytes(damage(store.read(name.path)))
            victims.append(name.path)
        receiver.start()
        burst(receiver, account)
        broken = frazil_verify(receiver.config_path)
        assert broken.returncode == 1
        said = frazil_verify(receiver.config_path, "--json")
        assert said.returncode == 1
        problems = json.loads(said.stdout)["problems"]
        assert len(problems) == len(victims)
        for path in victims:
            assert path in broken.stdout
            assert sum(path in problem for problem in problems) == 1
    reader, spec, there = WalReader(store), table_spec("logs"), []
    for found in reader.pending("logs"):
        if found.name.path not in victims:
            there += reader.rows(found.name, spec)[1].column("body").to_pylist()
    assert sorted(there) == sorted(account.acked)
    assert not account.answers("nothing") + account.answers("refused")


def test_frazil_verify_of_a_wal_that_is_not_there_is_no_problem(tmp_path: Path) -> None:
    path = write_config(tmp_path, 1, 2, {})
    assert frazil_verify(path).returncode == 0


def test_rows_of_a_sound_segment_come_back(one: tuple[SegmentName, bytes]) -> None:
    facts, rows = read_rows(*one, table_spec("logs"))
    assert facts.stream_rows == facts.rows == rows.num_rows == 1
