"""A bucket as the WAL's store: one conditional PUT a segment."""

from __future__ import annotations

import contextlib
import random
import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, cast

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import S3Store as Bucket

from frazil.config import S3WalConfig
from frazil.errors import DeleteRefused, StoreUnavailable
from frazil.objectstore import client_config, credentials, first_line, is_missing_bucket
from frazil.stopwatch import timed, timed_listing
from frazil.wal.store import Entry

_BACKOFF_SECONDS = 0.1
_BACKOFF_SECONDS_MAX = 2.0
_KEYS_PER_DELETE_MAX = 1000
_DELETES_AT_ONCE_MAX = 4
"""S3 counts each key of a request towards the rate that it allows: more at once would only be throttled."""
_DELETE_TIMEOUT_SECONDS_MIN = 60.0
"""For a request of more than a few keys: some stores delete them one after another before they answer."""
_FEW_KEYS_MAX = 10
_KEY_REFUSED = "request failed for key"
"""What obstore says if the bucket answered and refused a key. Any other error is of the whole request."""


class S3Store:
    """Retries are made here, not in the client: only here an "exists" after a lost answer can be told from a
    rival.
    """

    def __init__(self, config: S3WalConfig, *, write_timeout_seconds: float) -> None:
        self._timeout_seconds = write_timeout_seconds
        self._where = f"s3://{config.bucket}/{config.prefix}"
        self._bucket = _client(config, config.request_timeout_seconds)
        self._probe_id = secrets.token_hex(8)
        self._deleting = _client(config, max(config.request_timeout_seconds, _DELETE_TIMEOUT_SECONDS_MIN))

    def describe(self) -> str:
        return self._where

    @timed("wal", "put")
    def create(self, path: str, data: bytes) -> None:
        """Tries until the write's time is over; each attempt is conditional, so trying again is safe."""
        deadline = time.monotonic() + self._timeout_seconds
        backoff = _BACKOFF_SECONDS
        while True:
            try:
                obstore.put(self._bucket, path, data, mode="create", use_multipart=False)
                return
            except (
                AlreadyExistsError
            ) as error:  # 412, and 409 too: two creates at once, neither of which may win
                failure: Exception = error
                if (found := self._found(path)) is not None:
                    if found == data:  # an earlier attempt of this very write, whose answer was lost
                        return
                    raise FileExistsError(path) from None
            except (PermissionDeniedError, UnauthenticatedError, FileNotFoundError) as error:
                raise self._unavailable(error) from None
            except (BaseError, OSError) as error:
                failure = error
            if time.monotonic() + backoff > deadline:
                raise self._unavailable(failure)
            time.sleep(backoff * random.uniform(0.5, 1.0))  # noqa: S311
            backoff = min(backoff * 2, _BACKOFF_SECONDS_MAX)

    def _found(self, path: str) -> bytes | None:
        """None also if it cannot be read now: the write is tried again then, and the question comes again."""
        try:
            return self.read(path)
        except (FileNotFoundError, StoreUnavailable):
            return None

    def now(self) -> float:
        """When the store says that it took a new object. In whole seconds on most stores."""
        path = f"probe/clock-{self._probe_id}"
        try:
            obstore.put(self._bucket, path, b"", use_multipart=False)
            try:
                return obstore.head(self._bucket, path)["last_modified"].timestamp()
            finally:
                # A receiver may lack the right to delete. One object is left then: the name stays the same.
                with contextlib.suppress(BaseError, OSError):
                    obstore.delete(self._bucket, path)
        except (BaseError, OSError) as error:
            raise self._unavailable(error) from None

    @timed("wal", "get")
    def read(self, path: str) -> bytes:
        try:
            return bytes(obstore.get(self._bucket, path).bytes())
        except (NotFoundError, FileNotFoundError) as error:
            if is_missing_bucket(error):  # must not look like a bucket that lost a single object
                raise self._unavailable(error) from None
            raise FileNotFoundError(path) from None
        except (BaseError, OSError) as error:
            raise self._unavailable(error) from None

    def check_reachable(self) -> None:
        """Raises StoreUnavailable if the bucket is missing or does not answer. Needs no right of its own: a
        store that refuses the request has answered.
        """
        try:
            obstore.get(self._bucket, "health")
        except (PermissionDeniedError, UnauthenticatedError):
            return
        except (NotFoundError, FileNotFoundError) as error:
            if is_missing_bucket(error):
                raise self._unavailable(error) from None
        except (BaseError, OSError) as error:
            raise self._unavailable(error) from None

    @timed_listing("wal")
    def list(self, prefix: str, after: str | None = None) -> Iterator[Entry]:
        try:
            for batch in obstore.list(self._bucket, prefix or None, offset=after):
                for item in batch:
                    yield Entry(str(item["path"]), int(item["size"]), item["last_modified"].timestamp())
        except (BaseError, OSError) as error:
            raise self._unavailable(error) from None

    @timed("wal", "list")
    def children(self, prefix: str) -> Sequence[str]:
        try:
            found = obstore.list_with_delimiter(self._bucket, prefix or None)["common_prefixes"]
        except (BaseError, OSError) as error:
            raise self._unavailable(error) from None
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)

    def delete(self, path: str) -> None:
        self.delete_all([path])

    def delete_all(self, paths: Sequence[str]) -> None:
        """One request for 1,000 keys, several requests at a time. If a request fails, no further one is sent.

        Keys that the bucket refuses do not hold up the others: DeleteRefused comes after the last request.
        """
        size = _KEYS_PER_DELETE_MAX
        chunks = [[*paths[at : at + size]] for at in range(0, len(paths), size)]
        if len(chunks) <= 1:
            for chunk in chunks:
                self._delete_chunk(chunk)
            return
        pool = ThreadPoolExecutor(_DELETES_AT_ONCE_MAX, thread_name_prefix="wal-delete")
        try:
            refused = [error for error in pool.map(self._refused, chunks) if error is not None]
        finally:
            pool.shutdown(cancel_futures=True)  # where one fails, the others would, each after its time
        if refused:
            raise refused[0]

    def _refused(self, paths: Sequence[str]) -> DeleteRefused | None:
        try:
            self._delete_chunk(paths)
        except DeleteRefused as error:
            return error
        return None

    @timed("wal", "delete")
    def _delete_chunk(self, paths: Sequence[str]) -> None:
        try:
            obstore.delete(self._bucket if len(paths) <= _FEW_KEYS_MAX else self._deleting, paths)
        except (BaseError, OSError) as error:
            if _KEY_REFUSED in str(error):
                reason = f"{self._where} refuses to delete an object: {first_line(error)}"
                raise DeleteRefused(reason) from None
            raise self._unavailable(error) from None

    def remove_folder(self, path: str) -> None:
        """A bucket has no folders."""

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        said = "" if is_missing_bucket(error) else " does not answer as it should"
        return StoreUnavailable(f"{self._where}{said}: {first_line(error)}")


def _client(config: S3WalConfig, timeout_seconds: float) -> Bucket:
    return Bucket(
        config.bucket,
        prefix=config.prefix or None,
        config=cast(
            Any,
            client_config(
                region=config.region,
                path_style=config.uses_path_style,
                endpoint=config.endpoint,
                sse_kms_key_id=config.sse_kms_key_id,
            ),
        ),
        credential_provider=credentials(
            config.access_key_id,
            None if config.secret_access_key is None else config.secret_access_key.get_secret_value(),
        ),
        client_options={
            "timeout": timedelta(seconds=timeout_seconds),
            "connect_timeout": timedelta(seconds=min(5.0, timeout_seconds)),
            "allow_http": config.allow_http,
        },
        retry_config={
            "max_retries": 0,
            "retry_timeout": timedelta(seconds=timeout_seconds),
        },
    )
