"""A store in an S3-compatible bucket, through obstore."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, cast

import obstore
import pyarrow as pa
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import S3Store as Bucket

from frazil.errors import DeleteRefused, StoreUnavailable
from frazil.storage.base import Entry, Listing, StoreName
from frazil.storage.metrics import timed, timed_listing, timing
from frazil.times import backoff_seconds

_MIB = 1024 * 1024
_BACKOFF_SECONDS = 0.1
_BACKOFF_SECONDS_MAX = 2.0
_READ_WHOLE_BYTES_MAX = 8 * _MIB
_SINGLE_PUT_BYTES_MAX = 64 * _MIB
_PART_BYTES = 16 * _MIB
_PARTS_AT_ONCE = 4
_LIST_CHUNK = 1000
_KEYS_PER_DELETE_MAX = 1000
_DELETES_AT_ONCE_MAX = 4
"""S3 counts each key towards its rate limit: more requests at once would only be throttled."""
_DELETE_TIMEOUT_SECONDS_MIN = 60.0
"""For a request with more than a few keys: some stores delete them one by one before they respond."""
_FEW_KEYS_MAX = 10
_KEY_REFUSED = "request failed for key"
"""Part of obstore's error if the bucket refused one key. Any other error concerns the whole request."""
_REASON_CHARACTERS_MAX = 600
_NO_BUCKET = "the bucket does not exist; create it, or correct its name in the configuration"
# The duration differs at each attempt. Without it, repeated failures have equal messages.
_DURATION = re.compile(r" in \d[\d.]*(?:ns|µs|ms|s)(?= - )")


@dataclass(frozen=True)
class S3Endpoint:
    """Connection settings of a bucket. Without an access key, credentials come from the AWS environment."""

    endpoint: str | None
    region: str
    path_style: bool
    access_key_id: str | None
    secret_access_key: str | None = field(repr=False)
    sse_kms_key_id: str | None
    allow_http: bool
    request_timeout_seconds: float
    connect_timeout_seconds: float = 5.0
    session_token: str | None = field(default=None, repr=False)
    client_retries_max: int = 0
    """Retries of the client for each request, in addition to the retries of `create`."""
    client_retry_seconds_max: float = 60.0


class S3Store:
    """A store in a bucket. `create` has its own retry, because an existing object after a lost response may
    be its own.
    """

    def __init__(
        self,
        bucket: str,
        connection: S3Endpoint,
        *,
        prefix: str = "",
        create_seconds_max: float = 0.0,
        name: StoreName = "wal",
    ) -> None:
        """`create_seconds_max` is how long `create` retries; it makes at least one attempt."""
        self.name: StoreName = name
        self._create_seconds_max = create_seconds_max
        self._where = f"s3://{bucket}/{prefix}".rstrip("/")
        timeout = connection.request_timeout_seconds
        self._bucket = _client(bucket, prefix, connection, timeout)
        self._deleting = _client(bucket, prefix, connection, max(timeout, _DELETE_TIMEOUT_SECONDS_MIN))
        self._probe_id = secrets.token_hex(8)

    def describe(self) -> str:
        return self._where

    @timed("put")
    def create(self, path: str, data: bytes | memoryview, *, overwrite: bool = False) -> None:
        # WAL segments compete for names, so they need the conditional write at any size.
        if len(data) > _SINGLE_PUT_BYTES_MAX and self.name == "lake":
            self._upload(path, data, overwrite=overwrite)
        elif overwrite:
            with self._failures():
                obstore.put(self._bucket, path, data, use_multipart=False)
        else:
            self._create(path, data)

    def _create(self, path: str, data: bytes | memoryview, attributes: dict[str, str] | None = None) -> None:
        """Retries until `create_seconds_max`. Each attempt is conditional, so a retry is safe."""
        deadline = time.monotonic() + self._create_seconds_max
        for attempt in itertools.count(1):
            try:
                obstore.put(
                    self._bucket, path, data, attributes=attributes, mode="create", use_multipart=False
                )
                return
            except (AlreadyExistsError, FileExistsError) as error:
                # 412, or 409 for two concurrent creates, of which neither may succeed
                failure: Exception = error
                if (found := self._found(path)) is not None:
                    if found == data:  # an earlier attempt of this write, whose response was lost
                        return
                    raise self._taken(path) from None
            except (PermissionDeniedError, UnauthenticatedError, FileNotFoundError) as error:
                raise self._unavailable(error) from None
            except (BaseError, OSError) as error:
                failure = error
            pause = backoff_seconds(attempt, _BACKOFF_SECONDS, _BACKOFF_SECONDS_MAX, jitter=True)
            if time.monotonic() + pause > deadline:
                raise self._unavailable(failure)
            time.sleep(pause)

    def _found(self, path: str) -> bytes | None:
        """Returns None also if the read fails: the write is then retried, and so is the read."""
        try:
            return self.read(path)
        except (FileNotFoundError, StoreUnavailable):
            return None

    def _upload(
        self,
        path: str,
        content: bytes | memoryview | Path,
        *,
        overwrite: bool = False,
        attributes: dict[str, str] | None = None,
    ) -> None:
        """Uploads in parts. Not every store supports conditional multipart uploads, so this one is
        unconditional: data files have unique names.
        """
        with self._failures():
            if not overwrite and self._has(path):
                raise self._taken(path)
            obstore.put(
                self._bucket,
                path,
                content,
                attributes=attributes,
                use_multipart=True,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )

    def _has(self, path: str) -> bool:
        try:
            self.size(path)
        except FileNotFoundError:
            return False
        return True

    def temporary(self, path: str) -> Path:
        descriptor, name = tempfile.mkstemp(prefix="frazil-")  # readable by this user only
        os.close(descriptor)
        return Path(name)

    @timed("put")
    def publish(self, path: str, local_file: Path, storage_class: str | None = None) -> None:
        attributes = {"Storage-Class": storage_class} if storage_class else None
        try:
            if local_file.stat().st_size <= _PART_BYTES:
                self._create(path, local_file.read_bytes(), attributes)
            else:
                self._upload(path, local_file, attributes=attributes)
        finally:
            local_file.unlink(missing_ok=True)

    @timed("get")
    def read(self, path: str) -> bytes:
        with self._failures(path):
            return bytes(obstore.get(self._bucket, path).bytes())

    @timed("get")
    def open(self, path: str) -> IO[bytes]:
        """Reads a small object with the first request, and only the requested ranges of a larger one."""
        with self._failures(path):
            found = obstore.get(self._bucket, path)
            size = int(found.meta["size"])
            if size <= _READ_WHOLE_BYTES_MAX:
                return cast(IO[bytes], pa.BufferReader(pa.py_buffer(found.bytes())))
        return cast(IO[bytes], ObjectReader(self, path, size))

    @timed("get")
    def read_range(self, path: str, start: int, length: int) -> bytes:
        with self._failures(path):
            return bytes(obstore.get_range(self._bucket, path, start=start, length=length))

    @contextlib.contextmanager
    def local(self, path: str) -> Iterator[Path]:
        copy = self.temporary(path)
        try:
            with timing(self.name, "get"), self._failures(path), copy.open("wb") as target:
                for chunk in obstore.get(self._bucket, path).stream(min_chunk_size=_MIB):
                    target.write(chunk)
            yield copy
        finally:
            copy.unlink(missing_ok=True)

    @timed("head")
    def size(self, path: str) -> int:
        with self._failures(path):
            return int(obstore.head(self._bucket, path)["size"])

    @timed_listing
    def list(self, folder: str, after: str | None = None) -> Iterator[Entry]:
        with self._failures():
            for batch in obstore.list(self._bucket, _prefix(folder), offset=after, chunk_size=_LIST_CHUNK):
                for item in batch:
                    yield Entry(str(item["path"]), int(item["size"]), item["last_modified"].timestamp())

    @timed("list")
    def children(self, folder: str) -> Listing:
        with self._failures():
            found = obstore.list_with_delimiter(self._bucket, _prefix(folder))
        return Listing(
            folders=tuple(sorted(_last_name(str(prefix)) for prefix in found["common_prefixes"])),
            files=tuple(sorted(_last_name(str(item["path"])) for item in found["objects"])),
        )

    def delete(self, path: str) -> None:
        self.delete_all([path])

    def delete_all(self, paths: Sequence[str]) -> None:
        """Sends one request per 1,000 keys, several at a time. After a failed request no further one is sent.

        Keys that the bucket refuses do not stop the others: DeleteRefused is raised after the last request.
        """
        size = _KEYS_PER_DELETE_MAX
        chunks = [[*paths[at : at + size]] for at in range(0, len(paths), size)]
        if len(chunks) <= 1:
            for chunk in chunks:
                self._delete_chunk(chunk)
            return
        pool = ThreadPoolExecutor(_DELETES_AT_ONCE_MAX, thread_name_prefix=f"{self.name}-delete")
        try:
            refused = [error for error in pool.map(self._refused, chunks) if error is not None]
        finally:
            pool.shutdown(cancel_futures=True)  # the others would fail too, each after a timeout
        if refused:
            raise refused[0]

    def _refused(self, paths: Sequence[str]) -> DeleteRefused | None:
        try:
            self._delete_chunk(paths)
        except DeleteRefused as error:
            return error
        return None

    @timed("delete")
    def _delete_chunk(self, paths: Sequence[str]) -> None:
        try:
            obstore.delete(self._bucket if len(paths) <= _FEW_KEYS_MAX else self._deleting, paths)
        except (BaseError, OSError) as error:
            if _KEY_REFUSED in str(error):
                reason = f"{self._where} refused to delete an object: {_first_line(error)}"
                raise DeleteRefused(reason) from None
            raise self._unavailable(error) from None

    def remove_folder(self, path: str) -> None:
        """A bucket has no folders."""

    def remove_empty_folders(self, path: str, unchanged_since: float) -> int:
        """A bucket has no folders."""
        return 0

    def now(self, folder: str | None = None) -> float:
        """Returns the modification time of a new object. Most stores have whole seconds."""
        path = f"probe/clock-{self._probe_id}"
        if folder is not None:
            path = f"{_prefix(folder) or ''}clock.{secrets.token_hex(8)}.tmp"
        with self._failures():
            obstore.put(self._bucket, path, b"", use_multipart=False)
            try:
                return obstore.head(self._bucket, path)["last_modified"].timestamp()
            finally:
                # A receiver may lack permission to delete. Then one object stays, as its name is fixed.
                with contextlib.suppress(BaseError, OSError):
                    obstore.delete(self._bucket, path)

    def check_reachable(self) -> None:
        """Raises StoreUnavailable if the bucket is missing or does not respond. Needs no permission: a
        refusal is a response too.
        """
        refused = (PermissionDeniedError, UnauthenticatedError)
        with (
            contextlib.suppress(FileNotFoundError),
            self._failures("health"),
            contextlib.suppress(*refused),
        ):
            obstore.get(self._bucket, "health")

    @contextlib.contextmanager
    def _failures(self, path: str | None = None) -> Iterator[None]:
        """Turns errors into StoreUnavailable, or FileNotFoundError if `path` is given and missing, but not
        the whole bucket.
        """
        try:
            yield
        except (NotFoundError, FileNotFoundError) as error:
            if path is None or _is_missing_bucket(error):
                raise self._unavailable(error) from None
            where = f"{self._where}/{path}"
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where) from None
        except FileExistsError:
            raise
        except (BaseError, OSError) as error:
            raise self._unavailable(error) from None

    def _taken(self, path: str) -> FileExistsError:
        return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), f"{self._where}/{path}")

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        problem = "" if _is_missing_bucket(error) else " is unavailable"
        return StoreUnavailable(f"{self._where}{problem}: {_first_line(error)}")


class ObjectReader(io.RawIOBase):
    """An object as a seekable file. Unbuffered: pyarrow already coalesces the ranges that it reads."""

    def __init__(self, store: S3Store, path: str, size: int) -> None:
        self._store = store
        self._path = path
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"cannot seek to {base + offset}")
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._position)
        length = left if size is None or size < 0 else min(size, left)
        if length == 0:
            return b""
        data = self._store.read_range(self._path, self._position, length)
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, target: Any) -> int:
        view = memoryview(target).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)


def _client(bucket: str, prefix: str, connection: S3Endpoint, timeout_seconds: float) -> Bucket:
    options: dict[str, Any] = {
        "region": connection.region,
        "virtual_hosted_style_request": not connection.path_style,
        "conditional_put": "etag",
    }
    if connection.endpoint is not None:
        options["endpoint"] = connection.endpoint.rstrip("/")
    if connection.sse_kms_key_id is not None:
        options["server_side_encryption"] = "aws:kms"
        options["sse_kms_key_id"] = connection.sse_kms_key_id
    return Bucket(
        bucket,
        prefix=prefix or None,
        config=cast(Any, options),
        client_options={
            "timeout": timedelta(seconds=timeout_seconds),
            "connect_timeout": timedelta(seconds=min(connection.connect_timeout_seconds, timeout_seconds)),
            "allow_http": connection.allow_http,
        },
        retry_config={
            "max_retries": connection.client_retries_max,
            "retry_timeout": timedelta(seconds=connection.client_retry_seconds_max),
        },
        credential_provider=_credentials(connection),
    )


def _credentials(connection: S3Endpoint) -> Any:
    """Returns a credential provider; None to use the environment. Credentials passed as options would be
    mixed with AWS_SESSION_TOKEN by obstore.
    """
    if connection.access_key_id is None or connection.secret_access_key is None:
        return None
    credentials = {
        "access_key_id": connection.access_key_id,
        "secret_access_key": connection.secret_access_key,
        "token": connection.session_token,
        "expires_at": None,
    }
    return lambda: credentials


def _is_missing_bucket(error: Exception) -> bool:
    """Returns whether the error says that the bucket, not an object in it, does not exist."""
    return "NoSuchBucket" in str(error)


def _first_line(error: Exception) -> str:
    """Returns the client's reason in one line, equal for equal failures."""
    if _is_missing_bucket(error):
        return _NO_BUCKET
    line = str(error).strip().split("\n")[0]
    return _DURATION.sub("", line)[:_REASON_CHARACTERS_MAX] or type(error).__name__


def _prefix(folder: str) -> str | None:
    return f"{folder.rstrip('/')}/" if folder else None


def _last_name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
