"""The HTTP client of commands and roles: timeouts, TLS, no redirects."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import urllib3
from urllib3.exceptions import ProtocolError, SSLError

_CHUNK_BYTES = 1 << 16
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class HttpClient:
    """An HTTP client that keeps connections open. Thread-safe."""

    def __init__(
        self,
        *,
        ca_file: Path | None = None,
        client_certificate: tuple[Path, Path | None] | None = None,
        own_certificate: Path | None = None,
        verify: bool = True,
        connect_seconds: float = 3.0,
        connections_max: int = 4,
    ) -> None:
        """`client_certificate`: files of a certificate and its key, for servers that require one.
        `own_certificate`: the certificate of a role of this configuration. The client trusts exactly this
        certificate, whatever its host name. TLS files are read at the first request.
        """
        self._ca_file = ca_file
        self._client_certificate = client_certificate
        self._verify = verify
        self._connect_seconds = connect_seconds
        self._connections_max = connections_max
        self._own = None if own_certificate is None else _OwnRole(own_certificate, self._pool_of)
        self._plain = urllib3.PoolManager(maxsize=connections_max)
        self._trusted: urllib3.PoolManager | None = None

    def send(
        self,
        method: str,
        url: str,
        *,
        read_seconds: float,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        repeatable: bool = True,
    ) -> urllib3.BaseHTTPResponse:
        """Return the response with an unread body. Raises urllib3's HTTPError; OSError or ValueError for
        unusable TLS files. A repeatable request may be sent twice, so it must not change data.
        """
        for last in (False, True) if repeatable else (True,):
            try:
                return self._pool(url).request(
                    method,
                    url,
                    headers=headers,
                    body=body,
                    preload_content=False,
                    redirect=False,  # a redirect would send the API key to another address
                    retries=False,
                    timeout=urllib3.Timeout(connect=self._connect_seconds, read=read_seconds),
                )
            except ProtocolError:  # the server may have just closed a kept connection
                if last:
                    raise
        raise AssertionError("unreachable")

    def get(
        self, url: str, *, seconds_max: float, bytes_max: int = 1 << 20, accept: str = "*/*"
    ) -> tuple[int, bytes]:
        """Return the status and the body. Raises as `send`; ValueError for a body that is too long or takes
        too long.
        """
        response = self.send("GET", url, read_seconds=seconds_max, headers={"accept": accept})
        deadline, body = time.monotonic() + seconds_max, bytearray()
        try:
            for chunk in response.stream(_CHUNK_BYTES):
                body += chunk
                if len(body) > bytes_max:
                    raise ValueError(f"the response has more than {bytes_max >> 20} MiB")
                if time.monotonic() > deadline:
                    raise ValueError(f"the response takes longer than {seconds_max:g} s")
            response.release_conn()
        except BaseException:
            response.close()
            raise
        return response.status, bytes(body)

    def close(self) -> None:
        if self._own is not None:
            self._own.close()
        self._plain.clear()
        if self._trusted is not None:
            self._trusted.clear()

    def _pool(self, url: str) -> urllib3.PoolManager:
        if not url.startswith("https:"):
            return self._plain
        if self._own is not None:
            return self._own.pool()
        if self._trusted is None:
            try:
                context = ssl.create_default_context(cafile=self._ca_file)
            except OSError as error:
                raise SSLError(error) from error
            if not self._verify:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self._trusted = self._pool_of(context)
        return self._trusted

    def _pool_of(
        self, ssl_context: ssl.SSLContext, assert_hostname: Literal[False] | None = None
    ) -> urllib3.PoolManager:
        if self._client_certificate is not None:
            certificate, key = self._client_certificate
            ssl_context.load_cert_chain(
                certificate, key, password=lambda: ""
            )  # else OpenSSL prompts on the terminal
        return urllib3.PoolManager(
            maxsize=self._connections_max, ssl_context=ssl_context, assert_hostname=assert_hostname
        )


class _OwnRole:
    """Connections to a role of this configuration. They trust exactly the certificate that the configuration
    names, whatever its issuer and host name.
    """

    def __init__(self, certificate: Path, make: Callable[..., urllib3.PoolManager]) -> None:
        """`make` creates a PoolManager from the given arguments."""
        self.certificate, self._make = certificate, make
        self._pool: urllib3.PoolManager | None = None
        self._changed = 0
        self._pem = ""

    def pool(self) -> urllib3.PoolManager:
        """Return the pool, recreated after a renewal. Raises OSError or ValueError if no certificate was read
        yet.
        """
        try:
            changed = self.certificate.stat().st_mtime_ns
            if self._pool is None or changed != self._changed:
                pem = _leaf(self.certificate)
                # The role may still use the previous certificate for a while.
                trusting = _trusting(f"{pem}\n{self._pem}")
                self._pool = self._make(ssl_context=trusting, assert_hostname=False)
                self._pem, self._changed = pem, changed
        except (OSError, ValueError):
            if self._pool is None:
                raise
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.clear()


def _leaf(file: Path) -> str:
    """Return the first certificate only: trusting its issuers would trust their other certificates."""
    if (found := _CERTIFICATE.search(file.read_text())) is None:
        raise ValueError(f"{file} has no certificate")
    return found[0]


def _trusting(certificates: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=certificates)
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = False
    return context


def reason(error: Exception) -> str:
    """Return the reason without the objects that urllib3 puts into its messages."""
    cause = error.__cause__ if error.__cause__ is not None else error
    if isinstance(cause, OSError) and cause.strerror:
        return f"{cause.filename}: {cause.strerror}" if cause.filename else cause.strerror
    return str(error).rpartition(": ")[2] or type(error).__name__
