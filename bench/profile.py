"""`python -m bench.profile`: where the receiver's CPU goes, stage by stage, in microseconds a record.

The stages are timed alone, in one thread; what a whole receiver uses beyond their sum is HTTP, the event
loop, admission, metrics and threads waiting for each other.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from bench.__main__ import warm_receiver
from bench.load import Load
from bench.measure import measure
from bench.payloads import requests
from bench.table import machine
from frazil.otlp.decode import Decoder
from frazil.otlp.wire import to_arrow
from frazil.storage.local import LocalStore
from frazil.tables import SIGNALS, Signal
from frazil.wal.names import SegmentName, new_stream
from frazil.wal.segment import SegmentWriter

_REQUESTS = 7
_RECORDS = 1000
_ROUNDS = 9


def _cpu_microseconds(work: Callable[[], object]) -> float:
    """The least of several rounds, a record."""
    best = float("inf")
    for _ in range(_ROUNDS):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    return best / (_REQUESTS * _RECORDS) * 1e6


def stages(signal: Signal, folder: Path) -> dict[str, float]:
    bodies = list(requests(signal, _REQUESTS, _RECORDS))
    decoder, store = Decoder(signal), LocalStore(folder)
    tenants, times = ["default"] * len(bodies), [1] * len(bodies)
    table = decoder.decode(bodies, tenants, times).table
    name = SegmentName(signal, new_stream(), 0)

    def parquet() -> bytes:
        writer = SegmentWriter(1, decoder.fill.fingerprint)
        writer.write(table)
        return writer.finish(name, stream_rows=0, received=(1, 1))

    data = parquet()

    def durable() -> None:
        store.create(SegmentName(signal, new_stream(), 0).path, data)

    decode = _cpu_microseconds(lambda: to_arrow(signal, bodies))
    return {
        "protobuf to Arrow (ptars)": decode,
        "nested to rows (pyarrow, numpy)": _cpu_microseconds(lambda: decoder.decode(bodies, tenants, times))
        - decode,
        "rows to Parquet, zstd, checksum": _cpu_microseconds(parquet),
        "write, fsync, link, fsync": _cpu_microseconds(durable),
    }


def whole(signal: Signal) -> float:
    with warm_receiver(signal=signal) as receiver:
        load = Load(receiver.http_port, receiver.grpc_port, signal=signal, requests=200, clients=16)
        return 1e6 / measure(receiver, load).records_per_cpu_second


def main() -> None:
    pa.set_cpu_count(1)
    columns: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="frazil-profile-") as folder:
        for signal in SIGNALS:
            columns[signal] = stages(signal, Path(folder))
            columns[signal]["HTTP, event loop, admission, metrics"] = whole(signal) - sum(
                columns[signal].values()
            )
    print(f"{machine()}; CPU microseconds per record, batches of 1,000 over HTTP\n")
    print("| stage | " + " | ".join(SIGNALS) + " |\n|---|" + "--:|" * len(SIGNALS))
    for stage in columns["logs"]:
        print(f"| {stage} | " + " | ".join(f"{columns[signal][stage]:.2f}" for signal in SIGNALS) + " |")
    print("| in all | " + " | ".join(f"{sum(columns[signal].values()):.2f}" for signal in SIGNALS) + " |")


if __name__ == "__main__":
    main()
