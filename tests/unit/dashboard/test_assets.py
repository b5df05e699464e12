"""What browsers on other machines load is compressed once, and means the same."""

from __future__ import annotations

import asyncio
import gzip

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from frazil.dashboard import assets
from frazil.dashboard.assets import CompressedAssets

SCRIPT = b"export const words = 'frazil';\n" * 1000


class Served:
    """A script, a font and a page, and how often each was compressed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compressed: list[int] = []
        compress = gzip.compress

        def counted(data: bytes, level: int, mtime: int) -> bytes:
            self.compressed.append(len(data))
            return compress(data, level, mtime=mtime)

        monkeypatch.setattr(assets.gzip, "compress", counted)
        routes = [
            Route(
                "/static/js/a.js",
                self._of("application/javascript", {"etag": '"abc"', "accept-ranges": "bytes"}),
            ),
            Route("/static/js/small.js", self._of("application/javascript", body=b"1")),
            Route("/static/media/font.woff2", self._of("font/woff2")),
            Route("/", self._of("text/html")),
        ]
        self._app = CompressedAssets(Starlette(routes=routes))

    def _of(self, kind: str, headers: dict[str, str] | None = None, body: bytes = SCRIPT):  # type: ignore[no-untyped-def]
        async def answer(_: Request) -> Response:
            return Response(body, headers=headers, media_type=kind)

        return answer

    def get(self, path: str, client: str = "192.0.2.7", **headers: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, client=(client, 1234))
            async with httpx.AsyncClient(transport=transport, base_url="http://dashboard") as asking:
                return await asking.get(
                    path, headers={name.replace("_", "-"): text for name, text in headers.items()}
                )

        return asyncio.run(ask())


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    return Served(monkeypatch)


def test_a_script_is_compressed_once_and_is_the_same(served: Served) -> None:
    for _ in range(3):
        found = served.get("/static/js/a.js")
        assert found.content == SCRIPT
        assert found.headers["content-encoding"] == "gzip"
        assert int(found.headers["content-length"]) < len(SCRIPT) / 10
        assert found.headers["etag"] == '"abc-gzip"'
        assert "accept-encoding" in found.headers["vary"].lower()
        assert "accept-ranges" not in found.headers
    assert served.compressed == [len(SCRIPT)]


@pytest.mark.parametrize("client", ["127.0.0.1", "::1", "testclient"])
def test_nothing_is_compressed_on_this_machine(served: Served, client: str) -> None:
    found = served.get("/static/js/a.js", client)
    assert (found.content, found.headers.get("content-encoding")) == (SCRIPT, None)


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/static/media/font.woff2", {}),
        ("/static/js/small.js", {}),
        ("/", {}),
        ("/static/js/none.js", {}),
        ("/static/js/a.js", {"accept_encoding": "br"}),
        ("/static/js/a.js", {"range": "bytes=0-9"}),
    ],
)
def test_what_gains_nothing_or_cannot_be_goes_as_it_is(
    served: Served, path: str, headers: dict[str, str]
) -> None:
    found = served.get(path, **headers)
    assert "content-encoding" not in found.headers
    assert served.compressed == []


def test_more_than_a_bound_is_not_kept(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "_CACHE_BYTES_MAX", 10)
    for _ in range(2):
        assert served.get("/static/js/a.js").content == SCRIPT
    assert len(served.compressed) == 2
