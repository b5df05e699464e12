"""The lake's files in a bucket, through obstore."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, cast

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import S3Store
from pyiceberg.io import InputStream

from frazil.errors import ConfigError, StoreUnavailable
from frazil.lake.place import FoundFile, Listing
from frazil.objectstore import client_config, credentials, first_line
from frazil.stopwatch import timed, timed_listing, timing

ALLOW_HTTP = "frazil.s3.allow-http"
_MIB = 1024 * 1024
_READ_WHOLE_BYTES_MAX = 8 * _MIB
_SINGLE_PUT_BYTES_MAX = 64 * _MIB
_PART_BYTES = 16 * _MIB
_PARTS_AT_ONCE = 4
_RETRIES_MAX = 4
_RETRY_SECONDS_MAX = 60.0
_LIST_CHUNK = 1000


@dataclass(frozen=True)
class Connection:
    """How to reach a bucket, from the properties that Iceberg's catalogs and tables use."""

    endpoint: str | None
    region: str
    path_style: bool
    access_key_id: str | None
    secret_access_key: str | None = field(repr=False)
    session_token: str | None = field(repr=False)
    sse_kms_key_id: str | None
    request_timeout_seconds: float
    connect_timeout_seconds: float

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Connection:
        endpoint = properties.get("s3.endpoint")
        if endpoint and endpoint.startswith("http:") and not _is_true(properties.get(ALLOW_HTTP)):
            raise ConfigError(f"the store {endpoint} has no TLS; use https, or set lake.s3.allow_http: true")
        path_style = properties.get("s3.path-style-access")
        return cls(
            endpoint=endpoint.rstrip("/") if endpoint else None,
            region=properties.get("s3.region") or properties.get("client.region") or "us-east-1",
            path_style=endpoint is not None if path_style is None else _is_true(path_style),
            access_key_id=properties.get("s3.access-key-id"),
            secret_access_key=properties.get("s3.secret-access-key"),
            session_token=properties.get("s3.session-token"),
            sse_kms_key_id=properties.get("s3.sse-kms-key-id"),
            request_timeout_seconds=float(properties.get("s3.request-timeout", 60)),
            connect_timeout_seconds=float(properties.get("s3.connect-timeout", 5)),
        )


@functools.lru_cache(maxsize=32)
def open_bucket(name: str, connection: Connection) -> Bucket:
    """One for all tables of a bucket. Bounded, as vended credentials change all the time."""
    return Bucket(name, connection)


class Bucket:
    """Paths are keys."""

    def __init__(self, name: str, connection: Connection) -> None:
        self._name = name
        self._store = _client(name, connection)

    @timed("lake", "put")
    def write(self, path: str, data: memoryview, *, overwrite: bool) -> None:
        with self._failures(path, missing_is_unavailable=True):
            if len(data) <= _SINGLE_PUT_BYTES_MAX:
                self._put(path, data, overwrite=overwrite)
                return
            # No conditional upload in parts that every store knows. Data files have unique names anyway.
            if not overwrite and self._has(path):
                raise FileExistsError(path)
            obstore.put(
                self._store,
                path,
                data,
                use_multipart=True,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )

    def _put(
        self, path: str, data: memoryview, *, overwrite: bool, attributes: dict[str, str] | None = None
    ) -> None:
        mode: Literal["overwrite", "create"] = "overwrite" if overwrite else "create"
        try:
            obstore.put(self._store, path, data, attributes=attributes, mode=mode, use_multipart=False)
        except (AlreadyExistsError, FileExistsError):
            # The client tries again by itself: this may be what it wrote when the first answer was lost.
            if bytes(obstore.get(self._store, path).bytes()) != bytes(data):
                raise

    def _has(self, path: str) -> bool:
        try:
            self.size(path)
        except FileNotFoundError:
            return False
        return True

    def temporary(self, path: str) -> Path:
        descriptor, name = tempfile.mkstemp(prefix="frazil-")  # which no other user may read
        os.close(descriptor)
        return Path(name)

    @timed("lake", "put")
    def publish(self, path: str, local_file: Path, storage_class: str | None = None) -> None:
        attributes = {"Storage-Class": storage_class} if storage_class else None
        try:
            with self._failures(path, missing_is_unavailable=True):
                if local_file.stat().st_size <= _PART_BYTES:
                    data = memoryview(local_file.read_bytes())
                    self._put(path, data, overwrite=False, attributes=attributes)
                    return
                if self._has(path):
                    raise FileExistsError(path)
                obstore.put(
                    self._store,
                    path,
                    local_file,
                    attributes=attributes,
                    use_multipart=True,
                    chunk_size=_PART_BYTES,
                    max_concurrency=_PARTS_AT_ONCE,
                )
        finally:
            local_file.unlink(missing_ok=True)

    @contextlib.contextmanager
    def local(self, path: str) -> Iterator[Path]:
        copy = self.temporary(path)
        try:
            with timing("lake", "get"), self._failures(path), copy.open("wb") as target:
                for chunk in obstore.get(self._store, path).stream(min_chunk_size=_MIB):
                    target.write(chunk)
            yield copy
        finally:
            copy.unlink(missing_ok=True)

    @timed("lake", "get")
    def open(self, path: str) -> InputStream:
        """Small objects come with the first request; of larger ones only the ranges that are read."""
        with self._failures(path):
            found = obstore.get(self._store, path)
            size = int(found.meta["size"])
            if size <= _READ_WHOLE_BYTES_MAX:
                return cast(InputStream, pa.BufferReader(pa.py_buffer(found.bytes())))
        return ObjectReader(self, path, size)

    @timed("lake", "get")
    def read_range(self, path: str, start: int, length: int) -> bytes:
        with self._failures(path):
            return bytes(obstore.get_range(self._store, path, start=start, length=length))

    @timed("lake", "head")
    def size(self, path: str) -> int:
        with self._failures(path):
            return int(obstore.head(self._store, path)["size"])

    @timed("lake", "delete")
    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._failures(path):
            obstore.delete(self._store, path)

    @timed("lake", "delete")
    def delete_all(self, paths: Sequence[str]) -> None:
        """A request for every thousand."""
        if not paths:
            return
        with self._failures(paths[0], missing_is_unavailable=True):
            obstore.delete(self._store, [*paths])

    @timed_listing("lake")
    def walk(self, path: str) -> Iterator[FoundFile]:
        prefix = f"{path.rstrip('/')}/" if path else None
        with self._failures(path, missing_is_unavailable=True):
            for chunk in obstore.list(self._store, prefix, chunk_size=_LIST_CHUNK):
                for item in chunk:
                    yield FoundFile(str(item["path"]), int(item["size"]), item["last_modified"].timestamp())

    def now(self, folder: str) -> float:
        path = f"{folder.rstrip('/')}/clock.{secrets.token_hex(8)}.tmp"
        with self._failures(path, missing_is_unavailable=True):
            try:
                obstore.put(self._store, path, b"", use_multipart=False)
                return obstore.head(self._store, path)["last_modified"].timestamp()
            finally:
                obstore.delete(self._store, path)

    def remove_empty_folders(self, path: str, unchanged_since: float) -> int:
        """A bucket has no folders."""
        return 0

    @timed("lake", "list")
    def list(self, path: str) -> Listing:
        with self._failures(path, missing_is_unavailable=True):
            found = obstore.list_with_delimiter(self._store, f"{path.rstrip('/')}/" if path else None)
        return Listing(
            folders=tuple(sorted(str(prefix).rsplit("/", 1)[-1] for prefix in found["common_prefixes"])),
            files=tuple(sorted(str(item["path"]).rsplit("/", 1)[-1] for item in found["objects"])),
        )

    @contextlib.contextmanager
    def _failures(self, path: str, *, missing_is_unavailable: bool = False) -> Iterator[None]:
        where = f"s3://{self._name}/{path}"
        try:
            yield
        except (NotFoundError, FileNotFoundError) as error:
            # A bucket that is not there must not look like one that lost a single file.
            if missing_is_unavailable or "NoSuchBucket" in str(error):
                raise StoreUnavailable(f"{where}: {first_line(error)}") from None
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where) from None
        except (AlreadyExistsError, FileExistsError):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), where) from None
        except (BaseError, OSError) as error:
            raise StoreUnavailable(f"{where}: {first_line(error)}") from None


class ObjectReader(io.RawIOBase):
    """An object as a file. Not buffered: pyarrow asks for the ranges it needs, already joined."""

    def __init__(self, bucket: Bucket, path: str, size: int) -> None:
        self._bucket = bucket
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
        data = self._bucket.read_range(self._path, self._position, length)
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, target: Any) -> int:
        view = memoryview(target).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)


def _client(name: str, connection: Connection) -> S3Store:
    options = client_config(
        region=connection.region,
        path_style=connection.path_style,
        endpoint=connection.endpoint,
        sse_kms_key_id=connection.sse_kms_key_id,
    )
    return S3Store(
        name,
        config=cast(Any, options),
        client_options={
            "timeout": timedelta(seconds=connection.request_timeout_seconds),
            "connect_timeout": timedelta(seconds=connection.connect_timeout_seconds),
            "allow_http": connection.endpoint is not None and connection.endpoint.startswith("http:"),
        },
        retry_config={
            "max_retries": _RETRIES_MAX,
            "retry_timeout": timedelta(seconds=_RETRY_SECONDS_MAX),
        },
        credential_provider=credentials(
            connection.access_key_id, connection.secret_access_key, connection.session_token
        ),
    )


def _is_true(text: str | None) -> bool:
    return text is not None and text.strip().lower() == "true"
