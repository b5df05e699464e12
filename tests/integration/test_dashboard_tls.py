"""The dashboard with TLS on both sides: who asks it, and the API of its configuration that it asks."""

from __future__ import annotations

import contextlib
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml
from cryptography import x509

from tests.components.process import dies_with_parent, end, free_port, wait_until
from tests.support.integration.authority import Authority, Issued
from tests.support.integration.clients import connect
from tests.support.status_roles import serving

pytestmark = pytest.mark.timeout(120)


@dataclass
class Dashboard:
    port: int
    folder: Path
    authority: Authority
    serving: Issued

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.authority.certificate.decode())

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"https://127.0.0.1:{self.port}{path}", verify=self.context(), timeout=10)

    def served_serial(self) -> int:
        """The serial number of the certificate that a new connection is shown."""
        with (
            connect(self.port) as plain,
            self.context().wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            shown = secure.getpeercert(binary_form=True)
        assert shown is not None
        return x509.load_der_x509_certificate(shown).serial_number


def _written(folder: Path, name: str, issued: Issued) -> dict[str, str | float]:
    cert_file, key_file = folder / f"{name}.crt", folder / f"{name}.key"
    cert_file.write_bytes(issued.certificate)
    key_file.write_bytes(issued.key)
    return {"cert_file": str(cert_file), "key_file": str(key_file), "reload_interval_seconds": 0.05}


@contextlib.contextmanager
def _running(folder: Path) -> Iterator[Dashboard]:
    """The API is a stand-in, with a certificate for a name that is not that of this machine."""
    authority = Authority("a")
    issued, port = authority.issue("dashboard"), free_port()
    api = _written(folder, "api", authority.issue("api", "frazil.example.com"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(api["cert_file"], api["key_file"])  # type: ignore[arg-type]
    with serving({"/livez": (200, b"ok")}, context) as url:
        settings = {
            "data_dir": str(folder / "data"),
            "serve": {"listen": url.removeprefix("https://"), "tls": api},
            "dashboard": {"listen": f"127.0.0.1:{port}", "tls": _written(folder, "dashboard", issued)},
        }
        path = folder / "frazil.yaml"
        path.write_text(yaml.safe_dump(settings))
        with (folder / "dashboard.log").open("wb") as log:
            process = subprocess.Popen(
                dies_with_parent([sys.executable, "-m", "frazil", "--config", path, "dashboard"]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
            )
        dashboard = Dashboard(port, folder, authority, issued)
        try:
            ended = lambda: process.poll() is not None  # noqa: E731
            assert wait_until(lambda: _answers(dashboard), seconds_max=60, give_up=ended), (
                folder / "dashboard.log"
            ).read_text()
            yield dashboard
        finally:
            end(process, 10)


def _answers(dashboard: Dashboard) -> bool:
    try:
        return dashboard.get("/livez").is_success
    except httpx.TransportError:
        return False


def test_it_trusts_the_api_of_its_configuration_and_shows_renewed_certificates(tmp_path: Path) -> None:
    with _running(tmp_path) as dashboard:
        said = dashboard.get("/healthz")
        assert said.status_code == 200, said.text
        old, new = dashboard.serving.serial, dashboard.authority.issue("dashboard")
        base = f"https://127.0.0.1:{dashboard.port}"
        with httpx.Client(base_url=base, verify=dashboard.context()) as kept:
            assert kept.get("/livez").is_success
            (tmp_path / "dashboard.crt").write_bytes(new.certificate)  # its key is not there yet
            assert not wait_until(lambda: dashboard.served_serial() != old, seconds_max=0.3)
            (tmp_path / "dashboard.key").write_bytes(new.key)
            assert wait_until(lambda: dashboard.served_serial() == new.serial, seconds_max=10)
            assert kept.get("/livez").is_success
        assert dashboard.get("/healthz").status_code == 200


@pytest.mark.parametrize("role", ["receive", "serve", "dashboard"])
def test_a_role_whose_files_cannot_be_used_says_so_in_a_line_and_is_not_worth_starting_again(
    tmp_path: Path, role: str
) -> None:
    tls = _written(tmp_path, "tls", Authority("a").issue("frazil")) | {"key_file": str(tmp_path / "gone.key")}
    listen = {"listen": "127.0.0.1:0"}
    settings = {
        "data_dir": str(tmp_path / "data"),
        "receive": {"http": listen, "grpc": listen, "tls": tls},
        "serve": {**listen, "tls": tls},
        "dashboard": {**listen, "tls": tls},
    }
    path = tmp_path / "frazil.yaml"
    path.write_text(yaml.safe_dump(settings))
    ended = subprocess.run(
        [sys.executable, "-m", "frazil", "--config", str(path), role],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    expected = f"frazil: error: {role}.tls.key_file: {tmp_path / 'gone.key'} cannot be read: No such file"
    assert ended.stderr.startswith(expected)
    assert len(ended.stderr.splitlines()) == 1
