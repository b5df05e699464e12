"""BackgroundQuery roles over real HTTP, and understanding what they say."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import time
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from frazil import __version__
from frazil.config import Config, StatusConfig
from frazil.dashboard.app_state import open_app_state
from frazil.dashboard.run import health_routes
from frazil.errors import ConfigError
from frazil.health import Role
from frazil.status.poll import Poller, endpoints, parse_response
from frazil.status.stages import Endpoint, PolledRole
from tests.support.integration.authority import Authority
from tests.support.status_roles import endpoint, page, reported, serving

PAGES = page("receiver", "frazil_receive_ready_workers 1\n")


def poll(url: str, role: Role = "receiver") -> PolledRole:
    poller = Poller(StatusConfig())
    try:
        return poller.poll(Endpoint(role, url))
    finally:
        poller.close()


def test_a_role_answers_with_its_health_and_its_numbers() -> None:
    with serving(PAGES) as url:
        found = poll(url)
    assert found.report is not None
    assert (found.state, found.reasons, found.report.version) == ("ok", [], "1.2.3")
    assert found.report.values == [("frazil_receive_ready_workers", {}, 1.0)]


@pytest.mark.parametrize(
    ("role", "problems", "reasons"),
    [
        ("receiver", {"receiver": "the disk is full"}, ["the disk is full"]),
        (
            "api",
            {"catalog": "does not respond", "workers": "none"},
            ["catalog: does not respond", "workers: none"],
        ),
    ],
)
def test_reasons_name_what_has_the_problem(role: Role, problems: dict[str, str], reasons: list[str]) -> None:
    found = parse_response(endpoint(role), 200, reported(role, **problems).model_dump_json().encode())
    assert (found.state, found.reasons) == ("degraded", reasons)


@pytest.mark.parametrize("body", [b"<html>hello</html>", b"[1, 2]", b'{"status": "up"}', b"\xff\xfe"])
def test_a_stranger_on_the_port_is_said_to_be_one(body: bytes) -> None:
    found = parse_response(endpoint("receiver"), 200, body)
    assert (found.state, found.report) == ("down", None)
    assert "unexpected response" in found.reasons[0]


def test_nothing_on_the_port_is_said_in_plain_words() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and nobody listens
        found = poll(f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert (found.state, found.reasons) == ("down", ["connection refused: nothing listens at this address"])


def test_a_dashboard_says_how_it_is_and_what_it_uses() -> None:
    config = Config.model_validate({"dashboard": {"api_url": "http://127.0.0.1:9"}})
    app = Starlette(routes=health_routes(open_app_state(config), config))

    async def get(path: str) -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://dashboard") as client:
            return await client.get(path)

    assert asyncio.run(get("/healthz")).status_code == 503
    answer = asyncio.run(get("/status"))
    with serving({"/status": (answer.status_code, answer.content)}) as url:
        found = poll(url, "dashboard")
    assert found.report is not None
    assert (found.state, found.report.version) == ("degraded", __version__)
    assert found.reasons[0].startswith("api: ")
    assert found.report.memory_bytes is not None
    assert found.report.memory_bytes > 1e6


def test_a_role_that_hangs_holds_up_nobody_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frazil.status.poll.READ_SECONDS_MAX", 0.3)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        serving(PAGES) as url,
    ):
        poller = Poller(StatusConfig())
        begin = time.monotonic()
        hung = Endpoint("pipeline", f"http://127.0.0.1:{silent.getsockname()[1]}")
        found = [future.result() for future in poller.submit([hung, Endpoint("receiver", url)])]
        poller.close()
    assert [each.state for each in found] == ["down", "ok"]
    assert found[0].reasons == ["no response in time"]
    assert time.monotonic() - begin < 3


class Certificate:
    """Files of a certificate that nobody signed whom the system knows, for this machine unless for `host`."""

    def __init__(self, folder: Path, authority: Authority, host: str | None = None) -> None:
        issued = authority.issue("status", host)
        self.file, self.key = folder / "tls.crt", folder / "tls.key"
        self.file.write_bytes(issued.certificate)
        self.key.write_bytes(issued.key)

    def server(self, clients: Path | None = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.file, self.key)
        if clients is not None:
            context.load_verify_locations(clients)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def test_an_own_role_is_known_by_its_certificate_and_a_stranger_by_the_lack_of_it(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    own = Certificate(ours, Authority("a"), "frazil.example.com")
    other = Certificate(theirs, Authority("a"))
    poller = Poller(StatusConfig())
    with serving(PAGES, own.server()) as url:
        assert poller.poll(Endpoint("receiver", url, own.file)).state == "ok"
        stranger = poller.poll(Endpoint("receiver", url, other.file))
        unnamed = poller.poll(Endpoint("receiver", url))
        absent = poller.poll(Endpoint("receiver", url, tmp_path / "gone.crt"))
    poller.close()
    assert (stranger.state, unnamed.state, absent.state) == ("down", "down", "down")
    assert "untrusted certificate" in stranger.reasons[0]
    assert "untrusted certificate" in unnamed.reasons[0]
    assert absent.reasons == [f"{tmp_path / 'gone.crt'}: No such file or directory"]


def test_a_renewed_certificate_is_known_and_so_is_the_one_before_for_a_while(tmp_path: Path) -> None:
    poller = Poller(StatusConfig())
    states = []
    with contextlib.ExitStack() as stack:
        urls = []
        for day in (1, 2, 3):
            certificate = Certificate(tmp_path, Authority("a"))
            os.utime(certificate.file, (day, day))
            urls.append(stack.enter_context(serving(PAGES, certificate.server())))
            states.append([poller.poll(Endpoint("receiver", url, certificate.file)).state for url in urls])
    poller.close()
    assert states == [["ok"], ["ok", "ok"], ["down", "ok", "ok"]]


def test_other_roles_are_known_by_their_authority_and_shown_our_certificate(tmp_path: Path) -> None:
    authority = Authority("a")
    ca = tmp_path / "ca.crt"
    ca.write_bytes(authority.certificate)
    own = Certificate(tmp_path, authority)
    settings = {"ca_file": ca, "client_cert_file": own.file, "client_key_file": own.key}
    with serving(PAGES, own.server(clients=ca)) as url:
        poller, keyless = Poller(StatusConfig.model_validate(settings)), Poller(StatusConfig(ca_file=ca))
        assert poller.poll(Endpoint("receiver", url)).state == "ok"
        refused = keyless.poll(Endpoint("receiver", url))
        poller.close()
        keyless.close()
    assert refused.state == "down"


def test_by_default_this_configurations_own_roles_are_asked() -> None:
    assert [(each.role, each.url) for each in endpoints(Config())] == [
        ("receiver", "http://127.0.0.1:4318"),
        ("pipeline", "http://127.0.0.1:4381"),
        ("api", "http://127.0.0.1:4380"),
        ("dashboard", "http://127.0.0.1:8501"),
    ]
    named = {"receivers": ["http://10.0.0.1:4318/", "http://10.0.0.2:4318"]}
    config = Config.model_validate({"status": named, "dashboard": {"enabled": False}})
    assert [each.url for each in endpoints(config)][:2] == ["http://10.0.0.1:4318", "http://10.0.0.2:4318"]
    assert "dashboard" not in {each.role for each in endpoints(config)}


@pytest.mark.parametrize(
    "url", ["10.0.0.1:4318", "http://", "http://a:b", "http://k:v@h:1", "http://h:1/x?y"]
)
def test_an_address_that_cannot_be_asked_is_refused(url: str, tmp_path: Path) -> None:
    from frazil.config import load_config

    (tmp_path / "frazil.yaml").write_text(f"status: {{receivers: ['{url}']}}")
    with pytest.raises(ConfigError, match="must be a URL with scheme"):
        load_config(tmp_path / "frazil.yaml", {})
