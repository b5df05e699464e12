"""File access to the lake. PyIceberg reads and writes through it too."""

from __future__ import annotations

import builtins
import functools
import io
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
from pydantic import SecretStr
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile
from pyiceberg.typedef import EMPTY_DICT, Properties

from frazil.config import Config
from frazil.errors import ConfigError
from frazil.storage import Entry, Listing, Store
from frazil.storage.local import LocalStore
from frazil.storage.s3 import S3Endpoint, S3Store

IO_IMPLEMENTATION = f"{__name__}.LakeFileIO"
"""For the catalog property `py-io-impl`."""

ALLOW_HTTP = "frazil.s3.allow-http"
_S3_SCHEMES = ("s3", "s3a", "s3n")
_RETRIES_MAX = 4
# The properties that file access needs. Spark's workers must not get the catalog's password.
_OWN_PREFIXES = ("s3.", "client.", "frazil.")
_DISK = LocalStore(None, name="lake")


class LakeFileIO(FileIO):
    """PyIceberg's FileIO on frazil's stores. PyIceberg creates one for each table that it loads, so creation
    opens no connection. Pickles only the properties that file access needs.
    """

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__({key: value for key, value in properties.items() if key.startswith(_OWN_PREFIXES)})

    def __reduce__(self) -> tuple[Any, ...]:
        return LakeFileIO, (dict(self.properties),)

    def new_input(self, location: str) -> LakeFile:
        return LakeFile(location, *self._find(location))

    def new_output(self, location: str) -> LakeFile:
        return LakeFile(location, *self._find(location))

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Deletes a file. A missing file is no error."""
        name = location if isinstance(location, str) else location.location
        store, path = self._find(name)
        store.delete(path)

    def read(self, location: str) -> bytes:
        store, path = self._find(location)
        return store.read(path)

    def write(self, location: str, data: bytes | memoryview | pa.Buffer, *, overwrite: bool = False) -> None:
        """Writes a file: durable when it returns. Raises FileExistsError if it exists, unless `overwrite`."""
        store, path = self._find(location)
        store.create(path, memoryview(data).cast("B"), overwrite=overwrite)

    def temporary(self, location: str) -> Path:
        """Returns the path of a local file to write, which `publish` then stores as `location`."""
        store, path = self._find(location)
        return store.temporary(path)

    def publish(self, location: str, local_file: Path, storage_class: str | None = None) -> None:
        """Stores a `temporary` file as `location`: durable when it returns. Always removes the local file.
        Raises FileExistsError if `location` exists.
        """
        store, path = self._find(location)
        store.publish(path, local_file, storage_class)

    def local(self, location: str) -> AbstractContextManager[Path]:
        """Returns a local path of the file for the duration of the block: a copy, if the file is in a bucket.
        A missing file raises FileNotFoundError here or when the path is opened.
        """
        store, path = self._find(location)
        return store.local(path)

    def list(self, location: str) -> Listing:
        """Returns the names directly in a folder."""
        store, path = self._find(location)
        return store.children(path)

    def delete_all(self, locations: Iterable[str]) -> None:
        """Deletes many files: in buckets with one request per 1,000."""
        paths_by_store: dict[Store, builtins.list[str]] = defaultdict(builtins.list)
        for location in locations:
            store, path = self._find(location)
            paths_by_store[store].append(path)
        for store, paths in paths_by_store.items():
            store.delete_all(paths)

    def walk(self, location: str) -> Iterator[Entry]:
        """Yields all files below a folder, at any depth, with their full locations."""
        store, path = self._find(location)
        scheme, separator, rest = location.partition("://")
        root = f"{scheme}://{rest.partition('/')[0]}/" if separator and scheme in _S3_SCHEMES else ""
        for found in store.list(path):
            yield Entry(root + found.path, found.size, found.modified_seconds)

    def now(self, location: str) -> float:
        """Returns the store's clock in seconds since 1970. Writes a temporary file to `location`."""
        store, path = self._find(location)
        return store.now(path)

    def remove_empty_folders(self, location: str, unchanged_since: float) -> int:
        """Removes empty folders below `location` that have not changed since. Returns their number."""
        store, path = self._find(location)
        return store.remove_empty_folders(path, unchanged_since)

    def _find(self, location: str) -> tuple[Store, str]:
        scheme, separator, rest = location.partition("://")
        if separator and scheme in _S3_SCHEMES:
            bucket, _, key = rest.partition("/")
            return open_bucket(bucket, connection_of(self.properties)), key
        return _DISK, _local_path(location)


class LakeFile(InputFile, OutputFile):
    def __init__(self, location: str, store: Store, path: str) -> None:
        super().__init__(location)
        self._store = store
        self._path = path

    def __len__(self) -> int:
        return self._store.size(self._path)

    def exists(self) -> bool:
        try:
            self._store.size(self._path)
        except FileNotFoundError:
            return False
        return True

    def open(self, seekable: bool = True) -> InputStream:
        return self._store.open(self._path)

    def to_input_file(self) -> LakeFile:
        return self

    def create(self, overwrite: bool = False) -> BufferedOutput:
        """Opens the file for writing. An existing file raises on close: an earlier check would cost a
        request.
        """
        return BufferedOutput(self._store, self._path, overwrite=overwrite)


class BufferedOutput(io.BytesIO):
    """An output file that is buffered in memory and written on close. It is discarded if its `with` block
    fails, or if it is never closed.
    """

    def __init__(self, store: Store, path: str, *, overwrite: bool) -> None:
        super().__init__()
        self._store = store
        self._path = path
        self._overwrite = overwrite

    def close(self) -> None:
        if self.closed:
            return
        data = memoryview(self.getvalue())  # a view of the buffer would prevent its close on failure
        super().close()
        self._store.create(self._path, data, overwrite=self._overwrite)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            super().close()

    def __del__(self) -> None:
        """Replaces the finalizer of BytesIO, which calls `close` and so would publish half a file."""


@functools.lru_cache(maxsize=32)
def open_bucket(name: str, connection: S3Endpoint) -> S3Store:
    """Returns one store for all tables of a bucket. Bounded, because vended credentials change often."""
    return S3Store(name, connection, name="lake")


def connection_of(properties: Mapping[str, str]) -> S3Endpoint:
    """Returns the S3 endpoint that properties of an Iceberg catalog or table describe."""
    endpoint = properties.get("s3.endpoint")
    is_http = endpoint is not None and endpoint.startswith("http:")
    if is_http and not _is_true(properties.get(ALLOW_HTTP)):
        raise ConfigError(f"the store {endpoint} has no TLS; use https, or set lake.s3.allow_http: true")
    path_style = properties.get("s3.path-style-access")
    return S3Endpoint(
        endpoint=endpoint,
        region=properties.get("s3.region") or properties.get("client.region") or "us-east-1",
        path_style=endpoint is not None if path_style is None else _is_true(path_style),
        access_key_id=properties.get("s3.access-key-id"),
        secret_access_key=properties.get("s3.secret-access-key"),
        session_token=properties.get("s3.session-token"),
        sse_kms_key_id=properties.get("s3.sse-kms-key-id"),
        allow_http=is_http,
        request_timeout_seconds=float(properties.get("s3.request-timeout", 60)),
        connect_timeout_seconds=float(properties.get("s3.connect-timeout", 5)),
        client_retries_max=_RETRIES_MAX,
    )


def _is_true(text: str | None) -> bool:
    return text is not None and text.strip().lower() == "true"


def open_files(config: Config) -> LakeFileIO:
    """Returns file access without a catalog. For tables of a REST catalog use `table.io`: such a catalog may
    provide credentials.
    """
    return LakeFileIO(file_properties(config))


def file_properties(config: Config) -> dict[str, str]:
    """Returns the catalog properties for file access.

    A REST catalog may provide its own: then only explicitly configured values are set.
    """
    s3 = config.lake.s3
    given: Mapping[str, str | None] = {
        "s3.endpoint": s3.endpoint,
        "client.region": s3.region,
        "s3.path-style-access": str(s3.uses_path_style).lower(),
        "s3.access-key-id": s3.access_key_id,
        "s3.secret-access-key": secret_text(s3.secret_access_key),
        "s3.sse-kms-key-id": s3.sse_kms_key_id,
        ALLOW_HTTP: str(s3.allow_http).lower(),
    }
    properties = {key: value for key, value in given.items() if value is not None}
    if config.lake.catalog.type == "rest":
        if s3.endpoint is None and "region" not in s3.model_fields_set:
            del properties["client.region"]
        if s3.endpoint is None and s3.path_style is None:
            del properties["s3.path-style-access"]
    return properties


def secret_text(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


def _local_path(location: str) -> str:
    """Accepts a plain path, `file:/path` or `file:///path`. Percent signs are not decoded, as in Iceberg."""
    path = location
    if location.startswith("file:"):
        path = location.removeprefix("file:")
        if path.startswith("//"):
            path = "/" + path[2:].partition("/")[2]
    elif "://" in location:
        raise ConfigError(f"{location} is not supported: a lake is in a local folder or in S3")
    return os.path.abspath(path)
