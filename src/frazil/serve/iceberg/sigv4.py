"""Credentials for files of the lake, and verification of AWS Signature Version 4, which S3 clients use.

A credential belongs to an API key, and contains its expiry time. It is not stored: its secret is derived from
a secret in the data folder and from the API key. So every process of this server can verify it, and it ends
with the API key.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from frazil.config import ApiKey
from frazil.errors import ConfigError, Forbidden
from frazil.storage.durable import DurableFolders, fsync_folder, write_synced

SKEW_SECONDS_MAX = 15 * 60
LIFETIME_SECONDS = 24 * 3600
_ALGORITHM = "AWS4-HMAC-SHA256"
_SECRET_BYTES = 32
_ANYONE = "anyone"
"""The owner of credentials if no keys are configured."""
_ID = re.compile(r"FZ-([0-9a-f]{16}|anyone)-(\d{1,12})")
_AUTHORIZATION = re.compile(
    rf"{_ALGORITHM} Credential=([^/,\s]+)/(\d{{8}})/([^/,\s]+)/s3/aws4_request, ?"
    r"SignedHeaders=([a-z0-9;_-]+), ?Signature=([0-9a-f]{64})"
)
_DATE = re.compile(r"\d{8}T\d{6}Z")
_PAYLOAD = re.compile(r"[0-9a-f]{64}|UNSIGNED-PAYLOAD|STREAMING-[A-Z0-9-]+")


class SignatureRefused(Forbidden):
    """A request whose signature is refused. `code` is S3's error code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Credential:
    access_key_id: str
    secret_access_key: str
    session_token: str
    expires_unix: int


@dataclass(frozen=True)
class SignedRequest:
    """The signed parts of a request. `raw_path` is as sent, `path` is decoded."""

    method: str
    path: str
    raw_path: str
    query: Sequence[tuple[str, str]]
    headers: Mapping[str, str]
    """Headers by lower-case name."""


def data_secret(file: Path) -> bytes:
    """Return the secret that credentials are derived from. The first of several processes creates it."""
    if not file.exists():
        DurableFolders().make(file.parent)
        draft = file.with_name(f"{file.name}.{secrets.token_hex(8)}.tmp")
        try:
            write_synced(draft, secrets.token_bytes(_SECRET_BYTES), 0o600)
            with contextlib.suppress(FileExistsError):
                os.link(draft, file)
        finally:
            draft.unlink(missing_ok=True)
        fsync_folder(file.parent)
    secret = file.read_bytes()
    if len(secret) != _SECRET_BYTES:
        raise ConfigError(f"{file} is damaged: delete the file. Engines must then load their tables again")
    return secret


class Credentials:
    """Creates and verifies credentials. Only API keys with the role admin get credentials."""

    def __init__(self, secret: bytes, keys: Iterable[ApiKey], now: Callable[[], float] = time.time) -> None:
        keys = tuple(keys)
        admins = {key.name: key.hash for key in keys if "admin" in key.roles}
        self._secret = secret
        self._owners = {name: _fingerprint(key_hash) for name, key_hash in admins.items()}
        self._hashes = {_fingerprint(key_hash): key_hash for key_hash in admins.values()}
        if not keys:
            self._owners, self._hashes = {"": _ANYONE}, {_ANYONE: ""}
        self._now = now

    def make(self, key_name: str) -> Credential:
        """Create a credential for the API key of this name, which is empty if no keys are configured."""
        expires = int(self._now()) + LIFETIME_SECONDS
        owner = self._owners.get(key_name)
        if owner is None:
            raise Forbidden("reading files needs an API key with the role `admin`")
        access_key_id = f"FZ-{owner}-{expires}"
        return Credential(
            access_key_id=access_key_id,
            secret_access_key=self._derive("secret", access_key_id, self._hashes[owner]),
            # Not checked, but Trino accepts no vended credential without a session token.
            session_token=self._derive("session", access_key_id, self._hashes[owner]),
            expires_unix=expires,
        )

    def check(self, request: SignedRequest) -> None:
        """Raises SignatureRefused unless the request was signed recently, with a valid credential."""
        match = _AUTHORIZATION.fullmatch(request.headers.get("authorization", ""))
        if match is None:
            raise SignatureRefused(
                "AccessDenied",
                "the request is not signed with AWS Signature Version 4: use the credentials that come with "
                "the table",
            )
        access_key_id, day, region, signed, signature = match.groups()
        secret = self._secret_of(access_key_id)
        timestamp = request.headers.get("x-amz-date", "")
        self._check_time(timestamp, day)
        names = signed.split(";")
        _check_names(names, request)
        key = _signing_key(secret, day, region)
        scope = f"{day}/{region}/s3/aws4_request"
        good = False
        # S3 clients sign the path in S3's encoding; some sign it as sent.
        for path in {quote(request.path, safe="/-_.~"), request.raw_path}:
            digest = hashlib.sha256(_canonical(request, path, names).encode()).hexdigest()
            expected = _hmac(key, f"{_ALGORITHM}\n{timestamp}\n{scope}\n{digest}").hex()
            good |= hmac.compare_digest(expected, signature)
        if not good:
            raise SignatureRefused(
                "SignatureDoesNotMatch",
                "the signature does not match the request and the credential: a proxy must not change Host "
                "and path",
            )

    def _secret_of(self, access_key_id: str) -> str:
        match = _ID.fullmatch(access_key_id)
        owner = self._hashes.get(match[1]) if match else None
        if match is None or owner is None:
            raise SignatureRefused("InvalidAccessKeyId", "the credential is unknown: load the table again")
        if int(match[2]) < self._now():
            raise SignatureRefused("ExpiredToken", "the credential has expired: load the table again")
        return self._derive("secret", access_key_id, owner)

    def _check_time(self, timestamp: str, day: str) -> None:
        if not _DATE.fullmatch(timestamp) or not timestamp.startswith(day):
            raise SignatureRefused(
                "AccessDenied", "x-amz-date is missing, or differs from the date of the signature"
            )
        try:
            signed = datetime.strptime(timestamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        except ValueError:
            raise SignatureRefused("AccessDenied", "x-amz-date is not a valid time") from None
        if abs(signed - self._now()) > SKEW_SECONDS_MAX:
            raise SignatureRefused(
                "RequestTimeTooSkewed",
                "the request was signed more than 15 minutes ago or ahead: check the clocks of both machines",
            )

    def _derive(self, what: str, access_key_id: str, key_hash: str) -> str:
        made = _hmac(self._secret, f"{what}\n{access_key_id}\n{key_hash}")
        return base64.urlsafe_b64encode(made).decode().rstrip("=")


def _check_names(names: Sequence[str], request: SignedRequest) -> None:
    """Require that all relevant headers are signed: otherwise a signature could be reused."""
    unsigned = {name for name in request.headers if name.startswith("x-amz-")} - set(names)
    if "host" not in names or unsigned or list(names) != sorted(set(names)):
        raise SignatureRefused("AccessDenied", "host and all x-amz- headers must be signed")
    if not _PAYLOAD.fullmatch(request.headers.get("x-amz-content-sha256", "")):
        raise SignatureRefused("AccessDenied", "x-amz-content-sha256 is missing")


def _canonical(request: SignedRequest, path: str, names: Sequence[str]) -> str:
    query = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in request.query)
    headers = [f"{name}:{' '.join(request.headers.get(name, '').split())}\n" for name in names]
    return "\n".join(
        [
            request.method,
            path,
            "&".join(f"{name}={value}" for name, value in query),
            "".join(headers),
            ";".join(names),
            request.headers["x-amz-content-sha256"],
        ]
    )


def _signing_key(secret: str, day: str, region: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = _hmac(key, part)
    return key


def _fingerprint(key_hash: str) -> str:
    return hashlib.sha256(key_hash.encode()).hexdigest()[:16]


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
