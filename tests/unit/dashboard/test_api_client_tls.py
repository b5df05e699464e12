"""The dashboard's way to an API with TLS: whom it trusts, and what it says when it does not."""

from __future__ import annotations

import contextlib
import os
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from frazil.config import Config
from frazil.dashboard.api_client import ApiClient, ApiError, explain_tls_error
from frazil.dashboard.app_state import open_app_state
from tests.support.integration.authority import Authority, Issued
from tests.support.status_roles import serving

PAGES = {"/livez": (200, b"ok")}
PUBLIC = "frazil.example.com"


@pytest.fixture(autouse=True)
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses between tries, which nobody waits for here."""
    taken: list[float] = []
    # In that module alone: py4j has a thread that sleeps.
    monkeypatch.setattr("urllib3.util.retry.time", SimpleNamespace(sleep=taken.append, time=time.time))
    return taken


def written(folder: Path, issued: Issued, day: int = 1) -> tuple[Path, Path]:
    cert_file, key_file = folder / "tls.crt", folder / "tls.key"
    cert_file.write_bytes(issued.certificate)
    key_file.write_bytes(issued.key)
    os.utime(cert_file, (day, day))
    return cert_file, key_file


def context_of(cert_file: Path, key_file: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert_file, key_file)
    return context


@contextlib.contextmanager
def api(folder: Path, issued: Issued) -> Iterator[str]:
    with serving(PAGES, context_of(*written(folder, issued))) as url:
        yield url


def livez(api_client: ApiClient) -> str:
    """What the API said, or what is said instead."""
    try:
        return api_client.request("GET", "/livez", None, accept="*/*").data.decode()
    except ApiError as error:
        found = error
    assert found.code == "unreachable"
    assert "frazil serve" not in found.message, "it runs"
    return found.message


def asked(url: str, ca_file: Path | None = None, own_certificate: Path | None = None) -> str:
    api_client = ApiClient(url, ca_file, own_certificate=own_certificate)
    said = livez(api_client)
    api_client.close()
    return said


def own_api(url: str, cert_file: Path, key_file: Path, **dashboard: object) -> Config:
    tls = {"cert_file": cert_file, "key_file": key_file}
    listen = url.removeprefix("https://")
    return Config.model_validate({"serve": {"listen": listen, "tls": tls}, "dashboard": dashboard})


def test_the_own_api_is_known_by_its_certificate_whatever_name_it_is_for(tmp_path: Path) -> None:
    files = written(tmp_path, Authority("a").issue("api", PUBLIC))
    with serving(PAGES, context_of(*files)) as url:
        for named in ({}, {"api_ca_file": tmp_path / "not.needed"}):
            state = open_app_state(own_api(url, *files, **named))
            assert livez(state.api_client) == "ok"
            state.api_client.close()


def test_the_authority_that_signed_the_own_certificate_is_not_trusted_for_others(tmp_path: Path) -> None:
    authority = Authority("a")
    ours = tmp_path / "ours.crt"
    ours.write_bytes(authority.issue("api").certificate + authority.certificate)
    with api(tmp_path, authority.issue("another")) as url:
        said = asked(url, own_certificate=ours)
    assert "presents a certificate other than" in said
    assert str(ours) in said
    assert "serve.tls.cert_file" in said


def test_a_renewed_certificate_is_known_and_so_is_the_one_before_for_a_while(tmp_path: Path) -> None:
    said = []
    with contextlib.ExitStack() as stack:
        doors = {}
        for day in (1, 2, 3):
            files = written(tmp_path, Authority("a").issue("api"), day)
            url = stack.enter_context(serving(PAGES, context_of(*files)))
            doors[url] = ApiClient(url, own_certificate=files[0])
            stack.callback(doors[url].close)
            said.append([livez(api_client) for api_client in doors.values()])
    assert said[0] == ["ok"]
    assert said[1] == ["ok", "ok"]
    assert said[2][1:] == ["ok", "ok"]


def test_a_half_written_certificate_harms_nobody(tmp_path: Path) -> None:
    files = written(tmp_path, Authority("a").issue("api"))
    with serving(PAGES, context_of(*files)) as url:
        api_client = ApiClient(url, own_certificate=files[0])
        assert livez(api_client) == "ok"
        files[0].write_bytes(b"-----BEGIN CERTIFI")
        assert livez(api_client) == "ok"
        files[0].unlink()
        assert livez(api_client) == "ok"
        api_client.close()


def test_an_api_elsewhere_is_known_by_its_authority(tmp_path: Path) -> None:
    authority = Authority("a")
    ca_file = tmp_path / "ca.crt"
    ca_file.write_bytes(authority.certificate)
    with api(tmp_path, authority.issue("api")) as url:
        assert asked(url, ca_file) == "ok"


def test_who_is_not_trusted_is_said_at_once_with_what_to_set(tmp_path: Path, naps: list[float]) -> None:
    begin = time.monotonic()
    with api(tmp_path, Authority("a").issue("api")) as url:
        said = asked(url)
    assert "not signed by a trusted CA" in said
    assert "dashboard.api_ca_file" in said
    assert naps == []
    assert time.monotonic() - begin < 3


def test_a_certificate_for_another_name_is_said_with_what_to_set(tmp_path: Path) -> None:
    authority = Authority("a")
    ca_file = tmp_path / "ca.crt"
    ca_file.write_bytes(authority.certificate)
    with api(tmp_path, authority.issue("api", PUBLIC)) as url:
        said = asked(url, ca_file)
    assert "not valid for '127.0.0.1'" in said
    assert "dashboard.api_url" in said


@pytest.mark.parametrize("content", [None, b"junk"])
def test_a_ca_file_that_cannot_be_used_is_named(
    tmp_path: Path, content: bytes | None, naps: list[float]
) -> None:
    ca_file = tmp_path / "ca.crt"
    if content is not None:
        ca_file.write_bytes(content)
    with api(tmp_path, Authority("a").issue("api")) as url:
        said = asked(url, ca_file)
    assert f"dashboard.api_ca_file: {ca_file}" in said
    assert ("No such file or directory" if content is None else "no readable certificate") in said
    assert naps == []


@pytest.mark.parametrize("content", [None, b"junk"])
def test_an_own_certificate_that_cannot_be_used_is_named(tmp_path: Path, content: bytes | None) -> None:
    own = tmp_path / "own.crt"
    if content is not None:
        own.write_bytes(content)
    with api(tmp_path, Authority("a").issue("api")) as url:
        said = asked(url, own_certificate=own)
    assert f"serve.tls.cert_file: {own}" in said
    assert ("No such file or directory" if content is None else "no readable certificate") in said


def test_an_api_without_tls_is_said_to_be_that() -> None:
    with serving(PAGES) as url:
        said = asked(url.replace("http:", "https:"))
    assert "does not use TLS" in said
    assert "dashboard.api_url" in said


def test_an_api_that_wants_a_certificate_is_said_to_be_that() -> None:
    error = ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required")
    error.reason = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    assert "serve.tls.client_ca_file" in explain_tls_error(error, None, None)


def test_what_has_no_words_is_said_as_openssl_says_it() -> None:
    error = ssl.SSLError(1, "[SSL: NO_SHARED_CIPHER] no shared cipher")
    error.reason = "NO_SHARED_CIPHER"
    assert explain_tls_error(error, None, None).startswith("no shared cipher: check dashboard.api_url")


def test_an_api_that_is_not_there_is_tried_twice_and_not_for_long(naps: list[float]) -> None:
    begin = time.monotonic()
    api_client = ApiClient("https://127.0.0.1:1")
    with pytest.raises(ApiError, match="does not answer"):
        api_client.request("GET", "/livez", None)
    assert naps == []
    assert time.monotonic() - begin < 3
