"""The files of TLS of listeners: their faults, and how renewed ones come to be used."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from frazil.config import Config, TlsConfig
from frazil.errors import ConfigError

_NOT_ITS_KEY = {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"}

log = structlog.get_logger("frazil.tls")


@dataclass(frozen=True)
class TlsFault:
    """`field` is the key below that of the listener."""

    field: str
    found: str
    fix: str


def listeners(config: Config) -> Iterator[tuple[str, TlsConfig]]:
    """The key and the files of each that has TLS."""
    for key, tls in (
        ("receive.tls", config.receive.tls),
        ("serve.tls", config.serve.tls),
        ("dashboard.tls", config.dashboard.tls),
    ):
        if tls is not None:
            yield key, tls


def check(key: str, tls: TlsConfig | None) -> None:
    """Raises ConfigError with the first thing that would keep a listener from using them."""
    fault = None if tls is None else next(faults(tls), None)
    if fault is not None:
        raise ConfigError(f"{key}.{fault.field}: {fault.found}: {fault.fix}")


def check_dashboard(config: Config) -> None:
    """Its own files, and the one by which it knows an API elsewhere."""
    dashboard = config.dashboard
    check("dashboard.tls", dashboard.tls)
    if dashboard.api_ca_file is None or not (dashboard.api_url or "").startswith("https:"):
        return
    if (why := unusable_authorities(dashboard.api_ca_file)) is not None:
        raise ConfigError(
            f"dashboard.api_ca_file: {dashboard.api_ca_file} {why}: name who signed its certificate"
        )


def is_usable(tls: TlsConfig) -> bool:
    """A renewal replaces the files one by one: for a while they may not belong together."""
    return next(faults(tls), None) is None


def faults(tls: TlsConfig) -> Iterator[TlsFault]:
    """Not that a certificate has expired: `frazil doctor` says so, and some clients do not mind."""
    unreadable = False
    for field, path in _files(tls).items():
        if (why := _unreadable(path)) is not None:
            unreadable = True
            yield TlsFault(field, f"{path} {why}", "correct the path, or the file's permissions")
    if unreadable:
        return
    yield from _chain_faults(tls)
    if tls.client_ca_file is not None and (why := unusable_authorities(tls.client_ca_file)) is not None:
        yield TlsFault("client_ca_file", f"{tls.client_ca_file} {why}", "it must hold certificates in PEM")


def unusable_authorities(path: Path) -> str | None:
    """Why nobody could be known by the certificates in it."""
    if (why := _unreadable(path)) is not None:
        return why
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (OSError, ValueError):
        return "holds no certificate that can be read"
    return None


def stamps(tls: TlsConfig) -> list[tuple[int, int]] | None:
    """They differ when the files do. None while one is missing, half-way through a renewal."""
    try:
        return [(stat.st_mtime_ns, stat.st_ino) for stat in (path.stat() for path in _files(tls).values())]
    except OSError:
        return None


def renewing_context(tls: TlsConfig) -> ssl.SSLContext:
    """For a server. New connections are shown the certificate that the files hold by then."""
    return _Renewing(tls).first


class _Renewing:
    """A context for each renewal, chosen when a client says hello. To load new files into the one that is in
    use would not do: what fails half-way leaves a certificate without its key, and authorities only add up.
    """

    def __init__(self, tls: TlsConfig) -> None:
        self._tls = tls
        self._seen = stamps(tls)
        self.first = self._now = _server_context(tls)
        self.first.sni_callback = self._choose
        self._look_at = self._next_look()

    def _next_look(self) -> float:
        return time.monotonic() + self._tls.reload_interval_seconds

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Called for clients that name no server too."""
        if time.monotonic() >= self._look_at:
            self._look()
            self._look_at = self._next_look()
        connection.context = self._now

    def _look(self) -> None:
        now = stamps(self._tls)
        if now is None or now == self._seen:
            return
        try:
            self._now = _server_context(self._tls)
        except (OSError, ValueError):
            return  # half-way through a renewal
        self._seen = now
        log.info("certificates changed; new connections are shown them", file=str(self._tls.cert_file))


def _files(tls: TlsConfig) -> dict[str, Path]:
    files = {"cert_file": tls.cert_file, "key_file": tls.key_file}
    return files if tls.client_ca_file is None else files | {"client_ca_file": tls.client_ca_file}


def _unreadable(path: Path) -> str | None:
    try:
        path.read_bytes()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None


def _chain_faults(tls: TlsConfig) -> Iterator[TlsFault]:
    try:
        _load_chain(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), tls)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None)
        if (why := unusable_authorities(tls.cert_file)) is not None:
            yield TlsFault("cert_file", f"{tls.cert_file} {why}", "it must hold the chain in PEM, leaf first")
        elif reason in _NOT_ITS_KEY:
            found = f"{tls.key_file} is not the key of {tls.cert_file}"
            yield TlsFault("key_file", found, "give the key that belongs to it")
        elif reason is None:
            found = f"{tls.key_file} holds no private key that can be read"
            yield TlsFault("key_file", found, "it must be in PEM, without a password")
        else:
            found = f"{tls.cert_file} cannot be used: {reason.replace('_', ' ').lower()}"
            yield TlsFault("cert_file", found, "have another one made")


def _load_chain(context: ssl.SSLContext, tls: TlsConfig) -> None:
    context.load_cert_chain(
        tls.cert_file, tls.key_file, password=lambda: ""
    )  # else OpenSSL asks the terminal


def _server_context(tls: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_chain(context, tls)
    if tls.client_ca_file is not None:
        context.load_verify_locations(tls.client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
