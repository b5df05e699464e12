"""A real dashboard process: nothing that takes memory without a login, and no more sockets than allowed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from frazil.keys import new_key
from tests.components.process import wait_until
from tests.support.browser.running import Parts, running_parts

PER_ADDRESS_MAX = 3
NOT_FOR_VISITORS = [
    ("PUT", "/_stcore/upload_file/session/file"),
    ("POST", "/_stcore/upload_file/session/file"),
    ("DELETE", "/_stcore/upload_file/session/file"),
    ("OPTIONS", "/_stcore/upload_file/session/file"),
    ("GET", "/_stcore/metrics"),
    ("GET", "/_stcore/script-health-check"),
    ("POST", "/_stcore/agent/interact"),
]


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    key, digest = new_key("shop")
    entry = {"name": "shop", "tenant": "shop", "hash": digest, "roles": ["read"]}
    bounds = {"sockets_per_address_max": PER_ADDRESS_MAX}
    settings = {"auth": {"keys": [entry]}, "dashboard": bounds}
    with running_parts(tmp_path_factory.mktemp("locked"), settings, {"shop": key}) as running:
        yield running


@pytest.fixture
def cookie(locked: Parts) -> str:
    answer = httpx.post(f"{locked.url}/login", data={"key": locked.keys["shop"]}, timeout=30)
    assert answer.status_code == 303, answer.text
    return answer.headers["set-cookie"].partition(";")[0]


def socket(url: str, cookie: str | None = None) -> ClientConnection:
    headers = {} if cookie is None else {"cookie": cookie}
    stream = f"{url.replace('http', 'ws', 1)}/_stcore/stream"
    return connect(stream, additional_headers=headers, open_timeout=60, close_timeout=10, proxy=None)


def status_of_socket(url: str, cookie: str | None = None) -> int:
    with pytest.raises(InvalidStatus) as refused, socket(url, cookie):
        pass
    return refused.value.response.status_code


def asked(url: str, method: str, path: str, **options: Any) -> int:
    return httpx.request(method, url + path, timeout=30, content=b"x" * 1000, **options).status_code


def metric(url: str, line: str) -> float:
    for found in httpx.get(f"{url}/metrics", timeout=30).text.splitlines():
        if found.startswith(line + " "):
            return float(found.rsplit(" ", 1)[1])
    return 0.0


def test_without_a_login_there_is_no_socket_and_no_upload(locked: Parts) -> None:
    assert status_of_socket(locked.url) == 401
    assert status_of_socket(locked.url, "frazil_session=guessed") == 401
    for method, path in NOT_FOR_VISITORS:
        assert asked(locked.url, method, path) == 404
    assert asked(locked.url, "GET", "/_stcore/host-config") == 401
    assert asked(locked.url, "POST", "/logs") == 401
    assert asked(locked.url, "GET", "/logs") == 303
    for path in ("/login", "/_stcore/health", "/livez", "/metrics"):
        assert asked(locked.url, "GET", path) == 200
    assert metric(locked.url, 'frazil_dashboard_refused_total{reason="session"}') >= 4


def test_a_login_opens_sockets_but_no_upload(locked: Parts, cookie: str) -> None:
    with socket(locked.url, cookie):
        assert wait_until(lambda: metric(locked.url, "frazil_dashboard_sockets") == 1, seconds_max=30)
        for method, path in NOT_FOR_VISITORS:
            assert asked(locked.url, method, path, headers={"cookie": cookie}) == 404
    assert asked(locked.url, "GET", "/_stcore/host-config", headers={"cookie": cookie}) == 200
    httpx.get(f"{locked.url}/logout", headers={"cookie": cookie}, timeout=30)
    assert status_of_socket(locked.url, cookie) == 401


def test_sockets_of_one_address_are_bounded_and_given_back(locked: Parts, cookie: str) -> None:
    def is_open_again() -> bool:
        with contextlib.suppress(InvalidStatus), socket(locked.url, cookie):
            return True
        return False

    with contextlib.ExitStack() as stack:
        for _ in range(PER_ADDRESS_MAX):
            stack.enter_context(socket(locked.url, cookie))
        assert status_of_socket(locked.url, cookie) == 429
        refused = 'frazil_dashboard_refused_total{reason="dashboard.sockets_per_address_max"}'
        assert metric(locked.url, refused) == 1
    assert wait_until(is_open_again, seconds_max=30)
    assert wait_until(lambda: metric(locked.url, "frazil_dashboard_sockets") == 0, seconds_max=30)


def test_without_keys_uploads_are_refused_too(tmp_path: Path) -> None:
    with running_parts(tmp_path) as parts, socket(parts.url):
        for method, path in NOT_FOR_VISITORS:
            assert asked(parts.url, method, path) == 404
