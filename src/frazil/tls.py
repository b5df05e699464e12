"""TLS files of listeners: validation, and reloading after a renewal."""

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
    """A problem with a TLS file. `field` is the key within the listener's section."""

    field: str
    found: str
    fix: str


def listeners(config: Config) -> Iterator[tuple[str, TlsConfig]]:
    """Yield the configuration key and the files of each listener with TLS."""
    for key, tls in (
        ("receive.tls", config.receive.tls),
        ("serve.tls", config.serve.tls),
        ("dashboard.tls", config.dashboard.tls),
    ):
        if tls is not None:
            yield key, tls


def check(key: str, tls: TlsConfig | None) -> None:
    """Raise ConfigError for the first problem with the files of a listener."""
    fault = None if tls is None else next(faults(tls), None)
    if fault is not None:
        raise ConfigError(f"{key}.{fault.field}: {fault.found}: {fault.fix}")


def check_dashboard(config: Config) -> None:
    """Check the dashboard's own files, and its CA certificate for a remote API."""
    dashboard = config.dashboard
    check("dashboard.tls", dashboard.tls)
    if dashboard.api_ca_file is None or not (dashboard.api_url or "").startswith("https:"):
        return
    if (why := ca_file_problem(dashboard.api_ca_file)) is not None:
        raise ConfigError(
            f"dashboard.api_ca_file: {dashboard.api_ca_file} {why}: give the CA certificate of the API"
        )


def is_usable(tls: TlsConfig) -> bool:
    """Return whether the files fit together. During a renewal they may not."""
    return next(faults(tls), None) is None


def faults(tls: TlsConfig) -> Iterator[TlsFault]:
    """Yield problems with the files, except expiry, which `frazil doctor` reports."""
    unreadable = False
    for field, path in _files(tls).items():
        if (why := _unreadable(path)) is not None:
            unreadable = True
            yield TlsFault(field, f"{path} {why}", "correct the path, or the file's permissions")
    if unreadable:
        return
    yield from _chain_faults(tls)
    if tls.client_ca_file is not None and (why := ca_file_problem(tls.client_ca_file)) is not None:
        yield TlsFault("client_ca_file", f"{tls.client_ca_file} {why}", "it must contain PEM certificates")


def ca_file_problem(path: Path) -> str | None:
    """Return why the file is no usable list of CA certificates; None if it is."""
    if (why := _unreadable(path)) is not None:
        return why
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (OSError, ValueError):
        return "contains no readable certificate"
    return None


def stamps(tls: TlsConfig) -> list[tuple[int, int]] | None:
    """Return a value that changes with the files; None while one is missing, during a renewal."""
    try:
        return [(stat.st_mtime_ns, stat.st_ino) for stat in (path.stat() for path in _files(tls).values())]
    except OSError:
        return None


def renewing_context(tls: TlsConfig) -> ssl.SSLContext:
    """Return a server context that uses renewed files for new connections."""
    return _Renewing(tls).first


class _Renewing:
    """A TLS context that follows renewed files: one context per renewal, chosen at a client's hello. New
    files are not loaded into the current context: a failure would leave a certificate without its key, and CA
    certificates would accumulate.
    """

    def __init__(self, tls: TlsConfig) -> None:
        self._tls = tls
        self._seen = stamps(tls)
        self.first = self._now = _server_context(tls)
        self.first.sni_callback = self._choose
        self._check_at = self._next_check()

    def _next_check(self) -> float:
        return time.monotonic() + self._tls.reload_interval_seconds

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """Called for every client, also without a server name."""
        if time.monotonic() >= self._check_at:
            self._reload()
            self._check_at = self._next_check()
        connection.context = self._now

    def _reload(self) -> None:
        now = stamps(self._tls)
        if now is None or now == self._seen:
            return
        try:
            self._now = _server_context(self._tls)
        except (OSError, ValueError):
            return  # during a renewal
        self._seen = now
        log.info("renewed certificates loaded for new connections", file=str(self._tls.cert_file))


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
        if (why := ca_file_problem(tls.cert_file)) is not None:
            yield TlsFault("cert_file", f"{tls.cert_file} {why}", "it must contain the PEM chain, leaf first")
        elif reason in _NOT_ITS_KEY:
            found = f"{tls.key_file} is not the key of {tls.cert_file}"
            yield TlsFault("key_file", found, "give the private key of the certificate")
        elif reason is None:
            found = f"{tls.key_file} contains no readable private key"
            yield TlsFault("key_file", found, "it must be in PEM, without a password")
        else:
            found = f"{tls.cert_file} cannot be used: {reason.replace('_', ' ').lower()}"
            yield TlsFault("cert_file", found, "replace the certificate")


def _load_chain(context: ssl.SSLContext, tls: TlsConfig) -> None:
    context.load_cert_chain(
        tls.cert_file, tls.key_file, password=lambda: ""
    )  # else OpenSSL prompts on the terminal


def _server_context(tls: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_chain(context, tls)
    if tls.client_ca_file is not None:
        context.load_verify_locations(tls.client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
