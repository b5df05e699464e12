"""Opens the WAL's store, and probes its conditional writes, on which the WAL's guarantees depend.

The probe creates the same name from many writers at once. Exactly one may succeed, and the object must have
its content. Otherwise two writers could both own the same sequence of a stream.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from frazil.config import Config, S3WalConfig
from frazil.errors import FrazilError, StoreUnavailable, StoreUnsafe
from frazil.storage import Store
from frazil.storage.local import LocalStore

if TYPE_CHECKING:
    from frazil.storage.s3 import S3Store


def open_store(config: Config) -> Store:
    if config.wal.type == "s3":
        return open_bucket(config.wal.s3, config.wal.write_timeout_seconds)
    return LocalStore(config.wal_dir, config.wal.local.free_bytes_min)


def open_bucket(s3: S3WalConfig | None, create_seconds_max: float) -> S3Store:
    """Returns the store in the WAL's bucket. Loads the S3 client only when needed."""
    from frazil.storage.s3 import S3Endpoint, S3Store

    assert s3 is not None  # checked by the configuration  # noqa: S101
    secret = s3.secret_access_key
    connection = S3Endpoint(
        endpoint=s3.endpoint,
        region=s3.region,
        path_style=s3.uses_path_style,
        access_key_id=s3.access_key_id,
        secret_access_key=None if secret is None else secret.get_secret_value(),
        sse_kms_key_id=s3.sse_kms_key_id,
        allow_http=s3.allow_http,
        request_timeout_seconds=s3.request_timeout_seconds,
    )
    return S3Store(s3.bucket, connection, prefix=s3.prefix, create_seconds_max=create_seconds_max)


@dataclass(frozen=True)
class ProbeResult:
    rounds: int
    writers: int
    seconds: float


def probe_store(store: Store, writers: int = 8, rounds: int = 3) -> ProbeResult:
    """Raises StoreUnsafe if conditional writes do not hold, StoreUnavailable if the store is unreachable."""
    begin = time.perf_counter()
    with ThreadPoolExecutor(writers) as pool:
        for _ in range(rounds):
            _one_round(store, writers, pool)
    return ProbeResult(rounds, writers, time.perf_counter() - begin)


def _one_round(store: Store, writers: int, pool: ThreadPoolExecutor) -> None:
    path = f"probe/{secrets.token_hex(16)}"
    barrier = threading.Barrier(writers)

    def attempt(number: int) -> bytes | None:
        data = b"%d:%s" % (number, secrets.token_hex(16).encode())
        barrier.wait()
        try:
            store.create(path, data)
        except FileExistsError:
            return None
        return data

    try:
        futures = [pool.submit(attempt, number) for number in range(writers)]
        outcomes: list[bytes | None] = []
        failure: FrazilError | None = None
        for future in futures:
            try:
                outcomes.append(future.result())
            except StoreUnavailable as error:
                failure = error
        winners = [outcome for outcome in outcomes if outcome is not None]
        if len(winners) > 1:
            raise StoreUnsafe(
                f"{store.describe()}: {len(winners)} of {writers} concurrent writers created the same "
                "object, so its conditional writes do not work; use a store that supports If-None-Match "
                "(AWS S3, MinIO, versitygw, Ceph 19 or newer) or wal.type local"
            )
        if failure is not None:
            raise failure
        if len(winners) != 1 or _read(store, path) != winners[0]:
            raise StoreUnsafe(f"{store.describe()}: the object read back differs from the one written")
    finally:
        with contextlib.suppress(StoreUnavailable):
            store.delete(path)


def _read(store: Store, path: str) -> bytes | None:
    try:
        return store.read(path)
    except FileNotFoundError:
        return None
