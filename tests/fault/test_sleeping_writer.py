"""A writer that is stopped, taken for dead, cleaned up after and forgotten: what it acks then still lands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from frazil.config import Config, load_config
from frazil.position import StreamPosition, WalPosition
from frazil.tables import table_spec
from frazil.wal import open_store
from frazil.wal.clock import boot_seconds
from frazil.wal.idle_streams import IdleStreamCloser
from frazil.wal.reader import WalReader
from tests.components.process import dies_with_parent, end, wait_until
from tests.support.receiver import write_config
from tests.support.wal_stores import clean_up

IDLE_SECONDS = 3.0
"""A write that takes longer than half of it on a busy machine would be refused."""


class Writer:
    def __init__(self, config_path: Path) -> None:
        self._process = subprocess.Popen(
            dies_with_parent([sys.executable, "-m", "tests.support.fault.writer_process", str(config_path)]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=Path(__file__).parents[2],
            text=True,
        )

    def ask(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._process.pid, number)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        end(self._process)
        self._process.stdout.close()


class Lander:
    """Reads what is pending, as landing does, and keeps the position in memory."""

    def __init__(self, config: Config) -> None:
        self.store = open_store(config)
        self.reader = WalReader(self.store)
        self.closer = IdleStreamCloser(self.store, boot_seconds, IDLE_SECONDS)
        self.position = WalPosition()
        self.landed: list[str] = []

    def land(self) -> None:
        for segment in list(self.reader.pending("logs", self.position)):
            name = segment.name
            facts, rows = self.reader.rows(name, table_spec("logs"))
            self.landed += rows.column("body").to_pylist()
            reached = StreamPosition(name.sequence + 1, closed=facts.tombstone)
            self.position = self.position.with_streams({name.stream: reached})

    def look_after(self) -> bool:
        """One turn; True once no stream is left."""
        self.land()
        self.closer.close_idle("logs", self.position)
        gone = clean_up(self.store, "logs", self.position).empty_streams
        self.position = self.position.without_streams(set(gone))
        return not self.position.streams


@pytest.fixture
def config_path(tmp_path: Path) -> Path:
    settings = {"land": {"stream_idle_seconds": IDLE_SECONDS}, "wal": {"group_wait_seconds": 0}}
    return write_config(tmp_path, 1, 2, settings)


@pytest.fixture
def writer(config_path: Path) -> Iterator[Writer]:
    writer = Writer(config_path)
    yield writer
    writer.close()


def test_what_a_writer_acks_after_it_was_stopped_and_forgotten_still_lands(
    config_path: Path, writer: Writer
) -> None:
    lander = Lander(load_config(config_path, environ={}))
    writer.ask("before")
    assert writer.answer() == "ack before"
    writer.signal(signal.SIGSTOP)
    assert wait_until(lander.look_after, seconds_max=60)
    assert list(lander.store.children("logs/").folders) == []
    writer.ask("after")
    writer.signal(signal.SIGCONT)
    assert writer.answer() == "ack after"
    lander.land()
    assert lander.landed == ["before", "after"]
    assert list(lander.reader.strays("logs", lander.position)) == []


def test_a_writer_that_rests_and_is_fenced_goes_on_elsewhere(config_path: Path, writer: Writer) -> None:
    lander = Lander(load_config(config_path, environ={}))
    writer.ask("first")
    assert writer.answer() == "ack first"
    lander.land()
    (stream,) = lander.position.streams
    lander.closer = IdleStreamCloser(
        lander.store, boot_seconds, 0
    )  # too early, as a wrong clock would have it
    assert lander.closer.close_idle("logs", lander.position) != []
    writer.ask("second")
    assert writer.answer() == "ack second"
    lander.land()
    assert lander.landed == ["first", "second"]
    assert lander.position.streams[stream] == replace(
        lander.position.streams[stream], sequence=2, closed=True
    )
    assert len(lander.position.streams) == 2
