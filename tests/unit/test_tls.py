"""TLS files: what is wrong with them is said in a line, and renewed ones are shown to new connections."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from frazil import tls
from frazil.config import Config, TlsConfig
from frazil.errors import ConfigError
from tests.support.integration.authority import Authority, Issued
from tests.support.integration.clients import connect
from tests.support.status_roles import serving

AUTHORITY = Authority("a")
PAGES = {"/livez": (200, b"ok")}


class Files:
    def __init__(self, folder: Path) -> None:
        self.certificate, self.key = folder / "tls.crt", folder / "tls.key"
        self.clients, self.junk = folder / "clients.crt", folder / "junk.pem"
        self.issued = AUTHORITY.issue("frazil")
        self.write(self.issued)
        self.clients.write_bytes(AUTHORITY.certificate)
        self.junk.write_bytes(b"no PEM\n")

    def write(self, issued: Issued) -> None:
        self.certificate.write_bytes(issued.certificate)
        self.key.write_bytes(issued.key)

    def config(
        self,
        certificate: Path | None = None,
        key: Path | None = None,
        clients: Path | None = None,
        seconds: float = 0.001,
    ) -> TlsConfig:
        return TlsConfig(
            cert_file=certificate or self.certificate,
            key_file=key or self.key,
            client_ca_file=clients,
            reload_interval_seconds=seconds,
        )


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def refusal(config: TlsConfig) -> str:
    assert not tls.is_usable(config)
    with pytest.raises(ConfigError) as refused:
        tls.check("serve.tls", config)
    text = str(refused.value)
    assert "\n" not in text
    return text


def test_files_that_can_be_used_pass(files: Files) -> None:
    tls.check("serve.tls", None)
    tls.check("serve.tls", files.config())
    tls.check("serve.tls", files.config(clients=files.clients))
    assert tls.is_usable(files.config(clients=files.clients))


@pytest.mark.parametrize("field", ["cert_file", "key_file", "client_ca_file"])
def test_a_file_that_is_not_there_is_named_with_its_key(files: Files, tmp_path: Path, field: str) -> None:
    gone = tmp_path / "gone.pem"
    config = files.config().model_copy(update={field: gone})
    assert refusal(config).startswith(f"serve.tls.{field}: {gone} cannot be read: No such file or directory")


@pytest.mark.parametrize("field", ["cert_file", "key_file", "client_ca_file"])
def test_a_folder_is_no_file(files: Files, tmp_path: Path, field: str) -> None:
    said = refusal(files.config().model_copy(update={field: tmp_path}))
    assert said.startswith(f"serve.tls.{field}: {tmp_path} cannot be read: Is a directory")


def test_a_file_that_is_no_pem_is_named_with_its_key(files: Files) -> None:
    junk = files.junk
    assert refusal(files.config(certificate=junk)).startswith(
        f"serve.tls.cert_file: {junk} contains no readable cert"
    )
    assert refusal(files.config(certificate=files.key)).startswith("serve.tls.cert_file: ")
    assert refusal(files.config(key=junk)).startswith(
        f"serve.tls.key_file: {junk} contains no readable private key"
    )
    assert refusal(files.config(clients=junk)).startswith(
        f"serve.tls.client_ca_file: {junk} contains no readable cert"
    )


def test_a_key_with_a_password_is_refused_and_asks_nobody_for_it(files: Files) -> None:
    key = serialization.load_pem_private_key(files.issued.key, None)
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    assert "without a password" in refusal(files.config())


def test_a_key_of_another_certificate_is_refused(files: Files, tmp_path: Path) -> None:
    other, rsa_key = tmp_path / "other.key", tmp_path / "rsa.key"
    other.write_bytes(AUTHORITY.issue("other").key)
    rsa_key.write_bytes(
        rsa.generate_private_key(65537, 2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    for key in (other, rsa_key):
        expected = f"serve.tls.key_file: {key} is not the key of {files.certificate}"
        assert refusal(files.config(key=key)).startswith(expected)


def dashboard(**section: object) -> Config:
    return Config.model_validate({"dashboard": section})


def test_the_dashboard_needs_the_authority_of_an_api_elsewhere_and_no_other(files: Files) -> None:
    gone = files.junk.with_name("gone")
    tls.check_dashboard(dashboard(api_ca_file=gone))
    tls.check_dashboard(dashboard(api_ca_file=gone, api_url="http://x"))
    tls.check_dashboard(dashboard(api_ca_file=files.clients, api_url="https://x"))
    for ca_file in (gone, files.junk):
        with pytest.raises(ConfigError, match=f"^dashboard.api_ca_file: {ca_file} "):
            tls.check_dashboard(dashboard(api_ca_file=ca_file, api_url="https://x"))
    with pytest.raises(ConfigError, match=r"^dashboard\.tls\.key_file: "):
        tls.check_dashboard(dashboard(tls=files.config(key=files.junk)))


@contextlib.contextmanager
def listening(config: TlsConfig) -> Iterator[int]:
    with serving(PAGES, tls.renewing_context(config)) as url:
        yield int(url.rpartition(":")[2])


def served_serial(port: int, client: Path | None = None, name: str | None = "localhost") -> int:
    """Of the certificate that a new connection is shown, once it was answered on it."""
    context = ssl.create_default_context(cadata=AUTHORITY.certificate.decode())
    context.check_hostname = False
    if client is not None:
        context.load_cert_chain(client)
    with connect(port) as plain, context.wrap_socket(plain, server_hostname=name) as secure:
        secure.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
        assert secure.recv(100).startswith(b"HTTP/1.0 200")
        shown = secure.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


@pytest.mark.parametrize("name", ["localhost", None])
def test_new_connections_are_shown_the_renewed_certificate(files: Files, name: str | None) -> None:
    new = AUTHORITY.issue("frazil")
    with listening(files.config()) as port:
        assert served_serial(port, name=name) == files.issued.serial
        files.write(new)
        assert served_serial(port, name=name) == new.serial
        assert served_serial(port, name=name) == new.serial


def test_a_half_way_renewal_harms_nobody(files: Files) -> None:
    old, new = files.issued.serial, AUTHORITY.issue("frazil")
    with listening(files.config()) as port:
        files.certificate.write_bytes(new.certificate)  # its key is not there yet
        assert served_serial(port) == old
        files.key.unlink()
        assert served_serial(port) == old
        files.key.write_bytes(new.key[:40])
        assert served_serial(port) == old
        files.key.write_bytes(new.key)
        assert served_serial(port) == new.serial


def test_files_are_looked_at_no_more_often_than_the_interval_says(files: Files) -> None:
    with listening(files.config(seconds=3600)) as port:
        files.write(AUTHORITY.issue("frazil"))
        assert served_serial(port) == files.issued.serial


def test_a_client_authority_that_was_replaced_lets_nobody_in_any_more(files: Files, tmp_path: Path) -> None:
    before, after = Authority("before"), Authority("after")
    old, new = tmp_path / "old.pem", tmp_path / "new.pem"
    for path, authority in ((old, before), (new, after)):
        client = authority.issue("client")
        path.write_bytes(client.certificate + client.key)
    files.clients.write_bytes(before.certificate)
    with listening(files.config(clients=files.clients)) as port:
        assert served_serial(port, old)
        with pytest.raises(OSError):
            served_serial(port, new)
        with pytest.raises(OSError):
            served_serial(port)
        files.clients.write_bytes(after.certificate)
        assert served_serial(port, new)
        for refused in (old, None):
            with pytest.raises(OSError):
                served_serial(port, refused)
