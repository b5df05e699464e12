"""Serves the files of a local warehouse as read-only S3 objects, for engines on other machines.

Engines read objects at `ENDPOINT/BUCKET/KEY`. With this server as the endpoint and `iceberg` as the bucket,
that is `/iceberg/files/…`, so clients need no support for endpoints with a path. Tables name their files by
the server's paths; in served metadata these are rewritten to such addresses.
"""

from __future__ import annotations

import gzip
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO
from xml.sax.saxutils import escape

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute

from frazil.errors import Forbidden, FrazilError, Permanent, Transient
from frazil.query.cache import SizedCache
from frazil.serve.iceberg.avro import rewrite
from frazil.serve.iceberg.sigv4 import Credentials, SignatureRefused, SignedRequest

BUCKET = "iceberg"
"""Also the path under which the router is mounted."""
READ_ONLY = "read-only; frazil pipeline writes"
FOLDER = "files"
COLDER_FOLDER = "colder"
_CACHE_BYTES_MAX = 64 << 20
_LENGTHS_MAX = 100_000
_METADATA_BYTES_MAX = 256 << 20
_CHUNK_BYTES = 1 << 20
_SUFFIXES = (".parquet", ".avro", ".metadata.json", ".metadata.json.gz", ".stats")
_RANGE = re.compile(r"bytes=(\d{0,19})-(\d{0,19})")
# Iceberg's ids of fields with paths, and of related fields.
_FILE_PATH, _CONTENT, _REFERENCED_FILE, _MANIFEST_PATH, _MANIFEST_LENGTH = 100, 134, 143, 500, 501
_POSITION_DELETES = 1
_REFUSING_PROPERTIES = dict.fromkeys(
    ("write.delete.mode", "write.update.mode", "write.merge.mode", "write.distribution-mode"), READ_ONLY
)
"""Properties of served tables. Iceberg's library reads them only when it plans a write, and refuses unknown
values. So Spark refuses DELETE, UPDATE, MERGE and INSERT with this text before it runs a job.
"""
_GZIP = b"\x1f\x8b"


class LakeFiles:
    """Maps between the warehouse's paths and addresses, and reads the files of tables."""

    def __init__(self, warehouse: str, hidden: Sequence[Path] = (), colder: str | None = None) -> None:
        """Files in `hidden` folders are not served, even below the warehouse. `colder` is the location of old
        data files, if tiering is configured.
        """
        self.roots = {FOLDER: warehouse} | ({} if colder is None else {COLDER_FOLDER: colder})
        """Local folders, by the folder in addresses."""
        self._hidden = tuple(os.path.realpath(path) for path in hidden)
        # Files of a lake never change.
        self.cache: SizedCache[tuple[str, int], bytes] = SizedCache(_CACHE_BYTES_MAX, _CACHE_BYTES_MAX)
        self._lengths: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._rewriting = threading.RLock()

    def address(self, location: str) -> str:
        """Return the address of a file of the warehouse. Returns other locations unchanged."""
        path = _plain(location)
        for folder, root in self.roots.items():
            if path == root or path.startswith(f"{root}/"):
                return f"s3://{BUCKET}/{folder}{path[len(root) :]}"
        return location

    def find(self, key: str, folder: str = FOLDER) -> str:
        """Return the local path of a key. Raises Forbidden unless it is a file of a table."""
        parts = key.split("/")
        if not key.endswith(_SUFFIXES) or "\0" in key or any(part in ("", ".", "..") for part in parts):
            raise Forbidden("only data files, manifests and metadata of tables can be read")
        path = os.path.realpath(os.path.join(self.roots[folder], *parts))
        root = os.path.realpath(self.roots[folder])
        if not _is_below(path, root) or any(_is_below(path, folder) for folder in self._hidden):
            raise Forbidden("only files of tables can be read")
        return path

    def rewritten(self, path: str) -> bytes | None:
        """Return the file with paths rewritten to addresses; None if it is served unchanged."""
        if path.endswith((".parquet", ".stats")):
            return None
        stat = os.stat(path)
        if stat.st_size > _METADATA_BYTES_MAX:
            raise Forbidden(
                f"a metadata file of {stat.st_size} bytes is too large: rewrite the table's manifests"
            )
        key = (path, stat.st_mtime_ns)
        found = self.cache.get(key)
        if found is None:
            with self._rewriting:  # one at a time: it is CPU bound, and others may wait for the same file
                found = self.cache.get(key)
                if found is None:
                    found = self._rewrite(path)
                    self.cache.put(key, found, len(found))
        return found

    def metadata(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """Return a table's metadata with addresses instead of paths."""
        changed = {**metadata, "location": self.address(metadata["location"])}
        for name, fields in _METADATA_LISTS.items():
            if name in metadata:
                changed[name] = [self._with_addresses(entry, fields) for entry in metadata[name]]
        if "properties" in metadata:
            changed["properties"] = self.properties(metadata["properties"])
        return changed

    def properties(self, properties: Mapping[str, str]) -> dict[str, str]:
        return {name: self.address(value) for name, value in properties.items()}

    def _with_addresses(self, entry: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
        return {
            name: self.address(value) if name in fields and isinstance(value, str) else value
            for name, value in entry.items()
        }

    def _rewrite(self, path: str) -> bytes:
        with open(path, "rb") as file:
            data = file.read()
        if path.endswith(".avro"):
            return self._rewrite_manifest(data)
        changed = orjson.dumps(self.metadata(parse_metadata(data)))
        return gzip.compress(changed, mtime=0) if data.startswith(_GZIP) else changed

    def _rewrite_manifest(self, data: bytes) -> bytes:
        """Rewrite a manifest or a manifest list: they have no field ids in common."""
        manifest = ""

        def path_of_manifest(location: str) -> str:
            nonlocal manifest
            manifest = location
            return self.address(location)

        def length_of_manifest(length: int) -> int:
            """Return the rewritten length of a manifest: engines read as many bytes as the list says."""
            return length if self.address(manifest) == manifest else self._length(_plain(manifest), length)

        edits: Mapping[int, Callable[[Any], Any]] = {
            _FILE_PATH: self.address,
            _REFERENCED_FILE: self.address,
            _CONTENT: _refuse_position_deletes,
            _MANIFEST_PATH: path_of_manifest,
            _MANIFEST_LENGTH: length_of_manifest,
        }
        return rewrite(data, edits)

    def _length(self, path: str, length: int) -> int:
        """Return the length of a rewritten manifest; cached longer than its content. The manifest of an
        expired snapshot is deleted: then the length does not matter.
        """
        known = self._lengths.get((path, length))
        if known is None:
            try:
                content = self.rewritten(os.path.realpath(path))
            except FileNotFoundError:
                return length
            known = length if content is None else len(content)
            self._lengths[path, length] = known
            if len(self._lengths) > _LENGTHS_MAX:
                self._lengths.popitem(last=False)
        return known


_METADATA_LISTS: Mapping[str, Sequence[str]] = {
    "snapshots": ("manifest-list",),
    "metadata-log": ("metadata-file",),
    "statistics": ("statistics-path",),
    "partition-statistics": ("statistics-path",),
}


def parse_metadata(data: bytes) -> dict[str, Any]:
    """Parse a metadata file, compressed or not. The result has the properties that refuse writes."""
    if data.startswith(_GZIP):
        data = gzip.decompress(data)
    found = orjson.loads(data)
    if not isinstance(found, dict) or not isinstance(found.get("location"), str):
        raise Permanent("a metadata file does not contain table metadata")
    return {**found, "properties": found.get("properties", {}) | _REFUSING_PROPERTIES}


@dataclass(frozen=True)
class ServedFiles:
    """A local warehouse, and the credentials to read it."""

    files: LakeFiles
    credentials: Credentials


def files_router(served: ServedFiles) -> APIRouter:
    """Serve GET, with ranges, and HEAD of objects. Requests are signed with a table's credentials."""
    router = APIRouter(route_class=_S3Route, include_in_schema=False)
    for folder in served.files.roots:
        _add_folder(router, served, folder)
    return router


def _add_folder(router: APIRouter, served: ServedFiles, folder: str) -> None:
    @router.api_route(f"/{folder}/{{key:path}}", methods=["GET", "HEAD"])
    def read(request: Request, key: str) -> Response:
        served.credentials.check(_signed(request))
        return _object(served.files, served.files.find(key, folder), request)

    @router.api_route(f"/{folder}/{{key:path}}", methods=["PUT", "POST", "DELETE", "PATCH"])
    def write(key: str) -> Response:
        return _error(403, "AccessDenied", "the files are read-only; only the frazil pipeline writes them")


def _object(files: LakeFiles, path: str, request: Request) -> Response:
    content = files.rewritten(path)
    stat = os.stat(path)
    if not S_ISREG(stat.st_mode):
        raise FileNotFoundError(path)
    size = stat.st_size if content is None else len(content)
    span = byte_range(request.headers.get("range"), size)
    if span is None:
        beyond = {"Content-Range": f"bytes */{size}"}
        return _error(416, "InvalidRange", "the range is not within the object", beyond)
    start, end, partial = span
    headers = {
        "Accept-Ranges": "bytes",
        "Content-Length": str(end - start),
        "Content-Type": "application/octet-stream",
        "ETag": f'"{stat.st_mtime_ns:x}-{size:x}"',
        "Last-Modified": formatdate(stat.st_mtime, usegmt=True),
    }
    if partial:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    status = 206 if partial else 200
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers)
    if content is not None:
        return Response(content[start:end], status, headers)
    # Opened before the response starts: a file that is deleted later can still be read to its end.
    file = open(path, "rb")  # noqa: SIM115
    return StreamingResponse(_chunks(file, start, end), status, headers)


def byte_range(header: str | None, size: int) -> tuple[int, int, bool] | None:
    """Return start, end, and whether the range is a part; None if it is not within the object.

    A header that S3 ignores is ignored.
    """
    match = _RANGE.fullmatch(header.strip()) if header else None
    if match is None or match[0] == "bytes=-":
        return 0, size, False
    first, last = match.groups()
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1 if last else size)
        if last and int(last) < start:
            return 0, size, False
    return (start, end, True) if start < end else None


def _chunks(file: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    with file:
        file.seek(start)
        while start < end and (chunk := file.read(min(_CHUNK_BYTES, end - start))):
            start += len(chunk)
            yield chunk


def _signed(request: Request) -> SignedRequest:
    headers: dict[str, str] = {}
    for name, value in request.headers.items():
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    path = request.scope["path"]
    raw = request.scope.get("raw_path") or path.encode()
    return SignedRequest(
        method=request.method,
        path=path,
        raw_path=raw.decode("latin-1").partition("?")[0],
        query=request.query_params.multi_items(),
        headers=headers,
    )


class ErrorRoute(APIRoute):
    """Renders errors in the form that the clients of the route expect."""

    def error_response(self, error: Exception) -> Response | None:
        """Return the response for an error; None for unexpected errors, which the application handles."""
        raise NotImplementedError

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_errors(request: Request) -> Response:
            try:
                return await handle(request)
            except Exception as error:
                response = self.error_response(error)
                if response is None:
                    raise
                return response

        return handle_errors


class _S3Route(ErrorRoute):
    """Renders errors in the form of S3."""

    def error_response(self, error: Exception) -> Response | None:
        match error:
            case SignatureRefused():
                return _error(403, error.code, str(error))
            case Forbidden():
                return _error(403, "AccessDenied", str(error))
            case FileNotFoundError() | IsADirectoryError() | NotADirectoryError():
                return _error(
                    404, "NoSuchKey", "the file does not exist; the table may have changed: load it again"
                )
            case Transient():
                return _error(503, "SlowDown", str(error))
            case FrazilError():
                return _error(400, "InvalidRequest", str(error))
        return None


def _error(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    body = (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
    )
    return Response(body, status_code=status, headers=headers, media_type="application/xml")


def _refuse_position_deletes(content: int) -> int:
    """Refuse position deletes: their files name data files by local path, which matches no address."""
    if content == _POSITION_DELETES:
        raise Permanent(
            "the table has position deletes, which other machines cannot read: rewrite its data files, or "
            "read it on the server's machine (warehouse `local`)"
        )
    return content


def _plain(location: str) -> str:
    """Return the path of `/path`, `file:/path` or `file:///path`."""
    if not location.startswith("file:"):
        return location
    path = location.removeprefix("file:")
    return "/" + path[2:].partition("/")[2] if path.startswith("//") else path


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")
