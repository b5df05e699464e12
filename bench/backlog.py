"""Segments to land: written by the receiver's own decoder and segment writer, in parallel processes."""

from __future__ import annotations

import gzip
import math
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from bench import applogs
from bench.payloads import BASE_UNIX_NANO, logs_request
from frazil.config import Config
from frazil.otlp.decode import Decoder
from frazil.tables import Signal
from frazil.wal.names import SegmentName, new_stream
from frazil.wal.segment import SegmentWriter
from frazil.wal.slices import SLICE_BYTES
from frazil.wal.store import open_store

DISTINCT_RECORDS_MAX = 2_500_000
"""Making a record costs more than landing it. A larger backlog has each several times, in other streams:
never twice in what becomes one data file, so nothing compresses better for it.
"""
_GZIP_EVERY = 20
_SECOND_NANOS = 1_000_000_000


@dataclass(frozen=True)
class Backlog:
    """Bytes are of all requests and segments; gzip was tried on a part of the requests."""

    records: int = 0
    distinct_records: int = 0
    segments: int = 0
    request_bytes: int = 0
    segment_bytes: int = 0
    gzip_records: int = 0
    gzip_bytes: int = 0

    def __add__(self, other: Backlog) -> Backlog:
        return Backlog(*(mine + theirs for mine, theirs in zip(self._all(), other._all(), strict=True)))

    def _all(self) -> tuple[int, ...]:
        return (
            self.records,
            self.distinct_records,
            self.segments,
            self.request_bytes,
            self.segment_bytes,
            self.gzip_records,
            self.gzip_bytes,
        )


class Source(Protocol):
    """Who sends: the request of each seed, and when it arrives."""

    @property
    def records_per_request(self) -> int: ...

    @property
    def signal(self) -> Signal: ...

    def body(self, seed: int) -> bytes: ...

    def received_unix_nano(self, seed: int) -> int: ...


@dataclass(frozen=True)
class Payloads:
    """The records that receiving is measured with: random words, and ids on every one."""

    records_per_request: int = 1000
    signal: Signal = "logs"

    def body(self, seed: int) -> bytes:
        return logs_request(seed, self.records_per_request)

    def received_unix_nano(self, seed: int) -> int:
        # Just after its last record: nothing is outside the horizon.
        return BASE_UNIX_NANO + (seed + 2) * _SECOND_NANOS


@dataclass(frozen=True)
class AppLogs:
    """Records as applications write them. All pods send once in `interval_nanos`."""

    first_unix_nano: int
    interval_nanos: int
    ids: applogs.Ids = "traces"
    records_per_request: int = applogs.RECORDS_PER_REQUEST
    signal: Signal = "logs"

    @classmethod
    def around(cls, unix_nano: int, length_nanos: int, records: int, ids: applogs.Ids = "traces") -> AppLogs:
        """So that so many records fill that time, half of them before the moment."""
        rounds = max(2, round(records / (applogs.RECORDS_PER_REQUEST * applogs.PODS)))
        return cls(unix_nano - length_nanos // 2, length_nanos // rounds, ids)

    def body(self, seed: int) -> bytes:
        return applogs.app_logs_request(
            seed,
            self.records_per_request,
            first_unix_nano=self._first_unix_nano(seed),
            length_nanos=self.interval_nanos,
            ids=self.ids,
        )

    def received_unix_nano(self, seed: int) -> int:
        return self._first_unix_nano(seed) + self.interval_nanos

    def _first_unix_nano(self, seed: int) -> int:
        return self.first_unix_nano + seed // applogs.PODS * self.interval_nanos


def make_backlog(
    config: Config,
    records: int,
    *,
    first_seed: int = 0,
    source: Source | None = None,
    distinct_records_max: int = DISTINCT_RECORDS_MAX,
) -> Backlog:
    """About `records` records in the store of `config`, as several receivers' streams."""
    source = source or Payloads()
    copies = math.ceil(records / distinct_records_max)
    writers = os.cpu_count() or 1
    requests = max(1, round(records / (source.records_per_request * copies * writers)))
    last_seed = first_seed + requests * writers
    seeds = [range(first_seed + number, last_seed, writers) for number in range(writers)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(writers, mp_context=context) as pool:
        made = pool.map(_write_streams, [config] * writers, [source] * writers, seeds, [copies] * writers)
        return sum(made, Backlog())


def _write_streams(config: Config, source: Source, seeds: Sequence[int], copies: int) -> Backlog:
    """The same requests in as many streams as there are copies."""
    pa.set_cpu_count(1)
    store, decoder = open_store(config), Decoder(source.signal)
    streams, stream_rows, made = [new_stream() for _ in range(copies)], 0, Backlog()
    for sequence, group in enumerate(
        _packed((_Request(source, seed) for seed in seeds), config.wal.segment_bytes_max)
    ):
        tables = [_decoded(decoder, part) for part in _packed(iter(group), SLICE_BYTES)]
        received = (group[0].received_unix_nano, group[-1].received_unix_nano)
        tried = [request for request in group if request.seed % _GZIP_EVERY == 0]
        for stream in streams:
            writer = SegmentWriter(config.wal.compression_level, decoder.fill.fingerprint)
            for table in tables:
                writer.write(table)
            name = SegmentName(source.signal, stream, sequence)
            data = writer.finish(name, stream_rows=stream_rows, received=received)
            store.create(name.path, data)
            made += Backlog(
                records=writer.rows,
                segments=1,
                request_bytes=sum(len(request.body) for request in group),
                segment_bytes=len(data),
            )
        stream_rows += writer.rows
        made += Backlog(
            distinct_records=writer.rows,
            gzip_records=len(tried) * source.records_per_request,
            gzip_bytes=sum(len(gzip.compress(request.body, 6)) for request in tried),
        )
    return made


class _Request:
    def __init__(self, source: Source, seed: int) -> None:
        self.seed = seed
        self.body = source.body(seed)
        self.received_unix_nano = source.received_unix_nano(seed)


def _packed(requests: Iterator[_Request], bytes_max: int) -> Iterator[list[_Request]]:
    """As a lane takes its groups, and cuts them into slices."""
    pack: list[_Request] = []
    size = 0
    for request in requests:
        if pack and size + len(request.body) > bytes_max:
            yield pack
            pack, size = [], 0
        pack.append(request)
        size += len(request.body)
    if pack:
        yield pack


def _decoded(decoder: Decoder, requests: Sequence[_Request]) -> pa.Table:
    return decoder.decode(
        [request.body for request in requests],
        ["default" for _ in requests],
        [request.received_unix_nano for request in requests],
    ).table
