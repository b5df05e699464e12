"""TLS and mutual TLS on both transports, and certificates that are renewed while it runs."""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import httpx
import pytest
from cryptography import x509

from tests.components.process import wait_until
from tests.support.integration.authority import Authority, Issued
from tests.support.integration.clients import PROTOBUF, connect, export, received, rows_of
from tests.support.integration.messages import new_service, spans
from tests.support.receiver import Receiver, running_receiver

RELOAD_SECONDS = 0.1


@dataclass
class Secured:
    """A receiver with TLS, its files, and what clients need to trust it."""

    receiver: Receiver
    folder: Path
    servers: Authority
    clients: Authority
    serving: Issued
    client: Issued = field(init=False)

    def __post_init__(self) -> None:
        self.client = self.clients.issue("client")

    def context(self, client: Issued | None = None, *, http2: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.servers.certificate.decode())
        if http2:
            context.set_alpn_protocols(["h2"])
        if client is not None:
            certificate, key = self.folder / "client.crt", self.folder / "client.key"
            certificate.write_bytes(client.certificate)
            key.write_bytes(client.key)
            context.load_cert_chain(certificate, key)
        return context

    def post(self, service: str, client: Issued | None = None, *, http2: bool = False) -> httpx.Response:
        with httpx.Client(verify=self.context(client, http2=http2), http2=http2) as opened:
            return opened.post(
                f"https://127.0.0.1:{self.receiver.http_port}/v1/traces",
                content=spans(service).SerializeToString(),
                headers={"content-type": PROTOBUF},
            )

    def export(self, service: str, client: Issued | None = None) -> bytes:
        credentials = grpc.ssl_channel_credentials(
            self.servers.certificate,
            None if client is None else client.key,
            None if client is None else client.certificate,
        )
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.secure_channel(self.receiver.grpc, credentials, options) as opened:
            return export(opened, "spans", spans(service).SerializeToString(), timeout=10)

    def served_serial(self, port: int) -> int:
        """The serial number of the certificate that a new connection is shown."""
        context = self.context(self.client)
        context.set_alpn_protocols(["h2"])
        with connect(port) as plain, context.wrap_socket(plain, server_hostname="localhost") as secure:
            shown = secure.getpeercert(binary_form=True)
        assert shown is not None
        return x509.load_der_x509_certificate(shown).serial_number

    def serials(self) -> tuple[int, int]:
        receiver = self.receiver
        return self.served_serial(receiver.http_port), self.served_serial(receiver.grpc_port)


@contextlib.contextmanager
def _secured(folder: Path, *, mutual: bool) -> Iterator[Secured]:
    servers, clients = Authority("servers"), Authority("clients")
    serving = servers.issue("frazil")
    tls = {
        "cert_file": str(folder / "tls.crt"),
        "key_file": str(folder / "tls.key"),
        "reload_interval_seconds": RELOAD_SECONDS,
    }
    (folder / "tls.crt").write_bytes(serving.certificate)
    (folder / "tls.key").write_bytes(serving.key)
    if mutual:
        (folder / "clients.crt").write_bytes(clients.certificate)
        tls["client_ca_file"] = str(folder / "clients.crt")
    settings = {"receive": {"tls": tls}, "wal": {"group_wait_seconds": 0.01}}
    with running_receiver(folder, settings, ready=False) as receiver:
        secured = Secured(receiver, folder, servers, clients, serving)
        assert wait_until(lambda: _is_up(secured), seconds_max=60), (folder / "receiver.log").read_text()
        yield secured


def _is_up(secured: Secured) -> bool:
    assert secured.receiver.process.poll() is None, (secured.folder / "receiver.log").read_text()
    try:
        return bool(secured.serials())
    except OSError:
        return False


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with _secured(tmp_path_factory.mktemp("tls"), mutual=False) as running:
        yield running


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with _secured(tmp_path_factory.mktemp("mtls"), mutual=True) as running:
        yield running


def test_both_transports_receive_over_tls(secured: Secured) -> None:
    service = new_service()
    assert secured.post(service).status_code == 200
    response = secured.post(service, http2=True)
    assert (response.status_code, response.http_version) == (200, "HTTP/2")
    assert secured.export(service) == b""
    assert len(rows_of(secured.receiver, "spans", service)) == 3


def test_a_server_that_is_not_trusted_is_not_sent_to(secured: Secured) -> None:
    stranger = ssl.create_default_context(cadata=Authority("stranger").certificate.decode())
    with httpx.Client(verify=stranger) as opened, pytest.raises(httpx.ConnectError, match="CERTIFICATE"):
        opened.get(f"https://127.0.0.1:{secured.receiver.http_port}/livez")


def test_old_protocol_versions_are_refused(secured: Secured) -> None:
    context = secured.context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    for port in (secured.receiver.http_port, secured.receiver.grpc_port):
        context.set_alpn_protocols(["h2"])
        with connect(port) as plain, context.wrap_socket(plain, server_hostname="localhost") as secure:
            assert secure.version() == "TLSv1.2"
    with pytest.warns(DeprecationWarning, match="TLSVersion"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSVersion"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    for port in (secured.receiver.http_port, secured.receiver.grpc_port):
        with connect(port) as plain, pytest.raises(OSError):
            context.wrap_socket(plain, server_hostname="localhost")


def test_plain_text_on_a_tls_port_fails_cleanly(secured: Secured) -> None:
    with connect(secured.receiver.http_port) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = received(connection)
    assert b"HTTP/1.1 200" not in answer
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(secured.receiver.grpc, options) as opened:
        with pytest.raises(grpc.RpcError) as refused:
            export(opened, "spans", b"", timeout=5)
        assert refused.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    assert secured.post(new_service()).status_code == 200


def test_connections_without_a_handshake_do_not_lock_others_out(secured: Secured) -> None:
    with contextlib.ExitStack() as stack:
        for port in (secured.receiver.http_port, secured.receiver.grpc_port) * 100:
            stack.enter_context(connect(port))
        assert secured.post(service := new_service()).status_code == 200
        assert secured.export(service) == b""


def test_mutual_tls_lets_in_clients_with_a_certificate(mutual: Secured) -> None:
    service = new_service()
    assert mutual.post(service, mutual.client).status_code == 200
    assert mutual.post(service, mutual.client, http2=True).status_code == 200
    assert mutual.export(service, mutual.client) == b""
    assert len(rows_of(mutual.receiver, "spans", service)) == 3


@pytest.mark.parametrize("who", ["nobody", "stranger"])
def test_mutual_tls_refuses_other_clients(mutual: Secured, who: str) -> None:
    client = None if who == "nobody" else Authority("others").issue("client")
    with pytest.raises(httpx.TransportError):
        mutual.post(new_service(), client)
    with pytest.raises(grpc.RpcError) as refused:
        mutual.export(new_service(), client)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert mutual.post(new_service(), mutual.client).status_code == 200


@pytest.mark.slow
def test_renewed_certificates_are_served_and_a_half_way_renewal_harms_nobody(mutual: Secured) -> None:
    """The last test of its receiver, whose files it changes."""
    old, new = mutual.serving.serial, mutual.servers.issue("frazil")
    workers = mutual.receiver.worker_pids()
    (mutual.folder / "tls.crt").write_bytes(new.certificate)  # its key is not there yet
    end = time.monotonic() + 10 * RELOAD_SECONDS
    while time.monotonic() < end:
        assert mutual.serials() == (old, old)
    assert mutual.receiver.worker_pids() == workers
    (mutual.folder / "tls.key").write_bytes(new.key)
    assert wait_until(lambda: new.serial in mutual.serials(), seconds_max=30)
    # Old and new workers overlap, so that there is always one to connect to; then only the new one is left.
    assert wait_until(lambda: not set(workers) & set(mutual.receiver.worker_pids()), seconds_max=60)
    assert [mutual.serials() for _ in range(10)] == [(new.serial, new.serial)] * 10
    service = new_service()
    assert mutual.post(service, mutual.client).status_code == 200
    assert mutual.export(service, mutual.client) == b""
    assert len(rows_of(mutual.receiver, "spans", service)) == 2
    assert mutual.receiver.process.poll() is None
