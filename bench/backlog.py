"""Segments to land: written by the receiver's own decoder and segment writer, in parallel processes."""

from __future__ import annotations

import gzip
import math
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from bench.payloads import BASE_UNIX_NANO, logs_request
from frazil.config import Config
from frazil.otlp.decode import Decoder
from frazil.wal.names import SegmentName, new_stream
from frazil.wal.segment import SegmentWriter
from frazil.wal.slices import SLICE_BYTES
from frazil.wal.store import open_store

RECORDS_PER_REQUEST = 1000
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


def make_backlog(config: Config, records: int, *, first_seed: int = 0) -> Backlog:
    """About `records` log records in the store of `config`, as several receivers' streams."""
    copies = math.ceil(records / DISTINCT_RECORDS_MAX)
    writers = os.cpu_count() or 1
    requests = max(1, round(records / (RECORDS_PER_REQUEST * copies * writers)))
    seeds = [range(first_seed + n * requests, first_seed + (n + 1) * requests) for n in range(writers)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(writers, mp_context=context) as pool:
        made = pool.map(_write_streams, [config] * writers, seeds, [copies] * writers)
        return sum(made, Backlog())


def _write_streams(config: Config, seeds: Sequence[int], copies: int) -> Backlog:
    """The same requests in as many streams as there are copies."""
    pa.set_cpu_count(1)
    store, decoder = open_store(config), Decoder("logs")
    streams, stream_rows, made = [new_stream() for _ in range(copies)], 0, Backlog()
    for sequence, group in enumerate(_packed(map(_Request, seeds), config.wal.segment_bytes_max)):
        tables = [_decoded(decoder, part) for part in _packed(iter(group), SLICE_BYTES)]
        received = (group[0].received_unix_nano, group[-1].received_unix_nano)
        tried = [request for request in group if request.seed % _GZIP_EVERY == 0]
        for stream in streams:
            writer = SegmentWriter(config.wal.compression_level)
            for table in tables:
                writer.write(table)
            name = SegmentName("logs", stream, sequence)
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
            gzip_records=len(tried) * RECORDS_PER_REQUEST,
            gzip_bytes=sum(len(gzip.compress(request.body, 6)) for request in tried),
        )
    return made


class _Request:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.body = logs_request(seed, RECORDS_PER_REQUEST)
        # Just after its last record: nothing is outside the horizon.
        self.received_unix_nano = BASE_UNIX_NANO + (seed + 2) * _SECOND_NANOS


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
