"""Serves Streamlit's static assets from memory, and names those that a page needs.

A page of Streamlit loads about 150 scripts. Each is loaded when its first element arrives, after the scripts
before it have run. With the names in the page, the browser loads them all at once.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from anyio import to_thread
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

_TYPES: Mapping[str, str] = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".png": "image/png",
}
_COMPRESSED = (".js", ".css", ".json", ".svg")
_BYTES_MIN = 1024
_LEVEL = 6
_HEADERS = {"cache-control": "public, max-age=31536000, immutable"}  # names change with the content


def static_folder() -> Path:
    import streamlit

    return Path(streamlit.__file__).parent / "static"


class Assets:
    """Middleware that reads each asset once, and compresses it once for browsers on other machines. Requests
    from this machine get uncompressed assets, which is faster. Uses at most the size of all assets (26 MB) as
    memory, and a third of it for compressed ones.
    """

    def __init__(self, app: ASGIApp, folder: Path | None = None) -> None:
        folder = static_folder() if folder is None else folder
        self._app = app
        self._files = {f"/{path.relative_to(folder).as_posix()}": path for path in folder.glob("static/*/*")}
        self._content: dict[tuple[str, bool], bytes] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        file = self._files.get(path) if scope["type"] == "http" and scope["method"] == "GET" else None
        if file is None or file.suffix not in _TYPES or "range" in Headers(scope=scope):
            await self._app(scope, receive, send)
            return
        compressed = file.suffix in _COMPRESSED and _accepts_gzip(scope)
        content = self._content.get((path, compressed))
        if content is None:
            content = await to_thread.run_sync(_read, file, compressed)
            self._content[path, compressed] = content
        headers = {**_HEADERS, "vary": "accept-encoding"}
        if compressed and content.startswith(b"\x1f\x8b"):
            headers["content-encoding"] = "gzip"
        response = Response(content, headers=headers, media_type=_TYPES[file.suffix])
        await response(scope, receive, send)


def _read(file: Path, compressed: bool) -> bytes:
    content = file.read_bytes()
    return gzip.compress(content, _LEVEL, mtime=0) if compressed and len(content) >= _BYTES_MIN else content


def _accepts_gzip(scope: Scope) -> bool:
    given = Headers(scope=scope).get("accept-encoding", "")
    return "gzip" in {each.partition(";")[0].strip() for each in given.split(",")} and not _is_local(scope)


def _is_local(scope: Scope) -> bool:
    client = scope.get("client")
    try:
        return client is None or ip_address(client[0]).is_loopback
    except ValueError:  # a Unix socket
        return True


def preload_links(elements: Iterable[str], folder: Path | None = None) -> str:
    """Return HTML that makes the browser load the scripts and styles of these elements of Streamlit at once.
    Unknown names are skipped: another release of Streamlit may have other names.
    """
    manifest = _manifest(static_folder() if folder is None else folder)
    by_name = {entry.get("name", ""): key for key, entry in manifest.items()}
    scripts: dict[str, None] = {}
    styles: dict[str, None] = {}
    loaded = _closure(manifest, [key for key, entry in manifest.items() if entry.get("isEntry")])
    for key in _closure(manifest, [by_name[name] for name in elements if name in by_name]):
        if key not in loaded:
            scripts[manifest[key]["file"]] = None
            styles |= dict.fromkeys(manifest[key].get("css", ()))
    return "".join(
        (
            *(
                f'<link rel="modulepreload" fetchpriority="low" crossorigin href="./{file}">'
                for file in scripts
            ),
            *(
                f'<link rel="preload" as="style" fetchpriority="low" crossorigin href="./{file}">'
                for file in styles
            ),
        )
    )


@cache
def _manifest(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found


def _closure(manifest: Mapping[str, Any], keys: Iterable[str]) -> dict[str, None]:
    """Return these entries and all that they import."""
    found: dict[str, None] = {}
    left = list(keys)
    while left:
        key = left.pop()
        if key in found or key not in manifest:
            continue
        found[key] = None
        left += manifest[key].get("imports", ())
    return found
