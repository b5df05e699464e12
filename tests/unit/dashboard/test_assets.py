"""Streamlit's assets: served from memory, compressed once for other machines, named in the page."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from frazil.dashboard import assets
from frazil.dashboard.assets import Assets, preload_links, static_folder
from frazil.dashboard.pages import PATHS

SCRIPT = b"export const words = 'frazil';\n" * 1000
FROM_APPLICATION = b"from the application"


class Served:
    """A folder of assets before an application, and how often each was compressed."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.compressed: list[int] = []
        compress = gzip.compress

        def counted(data: bytes, level: int, mtime: int) -> bytes:
            self.compressed.append(len(data))
            return compress(data, level, mtime=mtime)

        monkeypatch.setattr(assets.gzip, "compress", counted)
        for name, content in (("js/a.js", SCRIPT), ("js/small.js", b"1"), ("media/font.woff2", SCRIPT)):
            path = folder / "static" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        (folder / "secret.js").write_bytes(b"not an asset")

        async def answer(_: Request) -> Response:
            return Response(FROM_APPLICATION)

        application = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])
        self._app = Assets(application, folder)

    def get(
        self, path: str, client: str = "192.0.2.7", method: str = "GET", **headers: str
    ) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, client=(client, 1234))
            async with httpx.AsyncClient(transport=transport, base_url="http://dashboard") as asking:
                given = {name.replace("_", "-"): text for name, text in headers.items()}
                return await asking.request(method, path, headers=given)

        return asyncio.run(ask())


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Served:
    return Served(tmp_path, monkeypatch)


def test_a_script_is_compressed_once_and_is_the_same(served: Served) -> None:
    for _ in range(3):
        found = served.get("/static/js/a.js")
        assert found.content == SCRIPT
        assert found.headers["content-encoding"] == "gzip"
        assert int(found.headers["content-length"]) < len(SCRIPT) / 10
        assert found.headers["content-type"].startswith("text/javascript")
        assert "accept-encoding" in found.headers["vary"].lower()
        assert "immutable" in found.headers["cache-control"]
    assert served.compressed == [len(SCRIPT)]


def test_an_asset_is_read_once(served: Served) -> None:
    assert served.get("/static/js/a.js", "127.0.0.1").content == SCRIPT
    (served.folder / "static/js/a.js").unlink()
    assert served.get("/static/js/a.js", "127.0.0.1").content == SCRIPT


@pytest.mark.parametrize("client", ["127.0.0.1", "::1", "testclient"])
def test_nothing_is_compressed_on_this_machine(served: Served, client: str) -> None:
    found = served.get("/static/js/a.js", client)
    assert (found.content, found.headers.get("content-encoding")) == (SCRIPT, None)


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/static/media/font.woff2", {}),
        ("/static/js/small.js", {}),
        ("/static/js/a.js", {"accept_encoding": "br"}),
    ],
)
def test_an_asset_that_gains_nothing_is_not_compressed(
    served: Served, path: str, headers: dict[str, str]
) -> None:
    found = served.get(path, **headers)
    assert found.content == (served.folder / path[1:]).read_bytes()
    assert "content-encoding" not in found.headers
    assert served.compressed == []


@pytest.mark.parametrize(
    ("path", "method", "headers"),
    [
        ("/", "GET", {}),
        ("/static/js/none.js", "GET", {}),
        ("/static/../secret.js", "GET", {}),
        ("/static/js/../../secret.js", "GET", {}),
        ("/secret.js", "GET", {}),
        ("/static/js/a.js", "POST", {}),
        ("/static/js/a.js", "GET", {"range": "bytes=0-9"}),
    ],
)
def test_other_requests_go_to_the_application(
    served: Served, path: str, method: str, headers: dict[str, str]
) -> None:
    assert served.get(path, method=method, **headers).content == FROM_APPLICATION


def test_a_page_names_the_scripts_of_its_elements_and_those_that_they_import(tmp_path: Path) -> None:
    entries = {
        "index.html": {"file": "static/js/index.js", "isEntry": True, "imports": ["_react"]},
        "_react": {"file": "static/js/react.js"},
        "Chart.tsx": {"file": "static/js/Chart.js", "name": "Chart", "imports": ["_react", "_vega"]},
        "_vega": {"file": "static/js/vega.js", "css": ["static/css/vega.css"], "imports": ["Chart.tsx"]},
        "Table.tsx": {"file": "static/js/Table.js", "name": "Table"},
    }
    (tmp_path / "manifest.json").write_text(json.dumps(entries))
    links = preload_links(["Chart", "Unknown"], tmp_path)
    assert re.findall(r'href="([^"]+)"', links) == [
        "./static/js/Chart.js",
        "./static/js/vega.js",
        "./static/css/vega.css",
    ]


def test_without_a_manifest_no_script_is_named(tmp_path: Path) -> None:
    assert preload_links(["Chart"], tmp_path) == ""


@pytest.mark.parametrize("page", PATHS)
def test_the_elements_of_each_page_exist_in_this_release_of_streamlit(page: str) -> None:
    manifest = json.loads((static_folder() / "manifest.json").read_bytes())
    assert set(PATHS[page]) <= {entry.get("name") for entry in manifest.values()}
    for file in re.findall(r'href="\./([^"]+)"', preload_links(PATHS[page])):
        assert (static_folder() / file).is_file()
