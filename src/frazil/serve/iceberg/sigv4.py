"""Credentials for the lake's files, and AWS Signature Version 4 with them, as every client of S3 signs.

A credential is made for an API key and carries its end. Nothing is stored of it: its secret follows from a
secret of the data folder, so every process of this server knows it, and it dies with the API key.
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
"""Whose credential it is while no keys are configured."""
_ID = re.compile(r"FZ-([0-9a-f]{16}|anyone)-(\d{1,12})")
_AUTHORIZATION = re.compile(
    rf"{_ALGORITHM} Credential=([^/,\s]+)/(\d{{8}})/([^/,\s]+)/s3/aws4_request, ?"
    r"SignedHeaders=([a-z0-9;_-]+), ?Signature=([0-9a-f]{64})"
)
_DATE = re.compile(r"\d{8}T\d{6}Z")
_PAYLOAD = re.compile(r"[0-9a-f]{64}|UNSIGNED-PAYLOAD|STREAMING-[A-Z0-9-]+")


class SignatureRefused(Forbidden):
    """`code` is S3's own word for it."""

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
    """What a signature is of. `raw_path` is as sent, `path` is decoded."""

    method: str
    path: str
    raw_path: str
    query: Sequence[tuple[str, str]]
    headers: Mapping[str, str]
    """By name in lower case."""


def data_secret(file: Path) -> bytes:
    """The secret that credentials follow from. Made by whoever asks first; all later ones get the same."""
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
        raise ConfigError(
            f"{file} is damaged; delete it, and it is made anew: engines load their tables again"
        )
    return secret


class Credentials:
    """Makes credentials for API keys, and knows them again. Only keys with the role admin get any."""

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
        """For the API key of this name; empty while no keys are configured."""
        expires = int(self._now()) + LIFETIME_SECONDS
        owner = self._owners.get(key_name)
        if owner is None:
            raise Forbidden("files are read with an API key that has the role `admin`")
        access_key_id = f"FZ-{owner}-{expires}"
        return Credential(
            access_key_id=access_key_id,
            secret_access_key=self._derive("secret", access_key_id, self._hashes[owner]),
            # Nothing follows from it here, but Trino takes no vended credential without one.
            session_token=self._derive("session", access_key_id, self._hashes[owner]),
            expires_unix=expires,
        )

    def check(self, request: SignedRequest) -> None:
        """Raises SignatureRefused unless the request is signed with a living credential, now."""
        match = _AUTHORIZATION.fullmatch(request.headers.get("authorization", ""))
        if match is None:
            raise SignatureRefused(
                "AccessDenied",
                "the request is not signed with AWS Signature Version 4; use the credentials that come "
                "with the table",
            )
        access_key_id, day, region, signed, signature = match.groups()
        secret = self._secret_of(access_key_id)
        moment = request.headers.get("x-amz-date", "")
        self._check_time(moment, day)
        names = signed.split(";")
        _check_names(names, request)
        key = _signing_key(secret, day, region)
        scope = f"{day}/{region}/s3/aws4_request"
        good = False
        # S3 signs the path as it encodes it itself; some clients as they have sent it.
        for path in {quote(request.path, safe="/-_.~"), request.raw_path}:
            digest = hashlib.sha256(_canonical(request, path, names).encode()).hexdigest()
            expected = _hmac(key, f"{_ALGORITHM}\n{moment}\n{scope}\n{digest}").hex()
            good |= hmac.compare_digest(expected, signature)
        if not good:
            raise SignatureRefused(
                "SignatureDoesNotMatch",
                "the signature is not of this request and credential; if a proxy is between, it must leave "
                "Host and path as they are",
            )

    def _secret_of(self, access_key_id: str) -> str:
        match = _ID.fullmatch(access_key_id)
        owner = self._hashes.get(match[1]) if match else None
        if match is None or owner is None:
            raise SignatureRefused("InvalidAccessKeyId", "the credential is not known; load the table again")
        if int(match[2]) < self._now():
            raise SignatureRefused("ExpiredToken", "the credential has expired; load the table again")
        return self._derive("secret", access_key_id, owner)

    def _check_time(self, moment: str, day: str) -> None:
        if not _DATE.fullmatch(moment) or not moment.startswith(day):
            raise SignatureRefused(
                "AccessDenied", "the request has no x-amz-date, or not that of its signature"
            )
        try:
            signed = datetime.strptime(moment, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        except ValueError:
            raise SignatureRefused("AccessDenied", "x-amz-date is no time") from None
        if abs(signed - self._now()) > SKEW_SECONDS_MAX:
            raise SignatureRefused(
                "RequestTimeTooSkewed",
                "the request was signed at another time; check the clocks of both machines",
            )

    def _derive(self, what: str, access_key_id: str, key_hash: str) -> str:
        made = _hmac(self._secret, f"{what}\n{access_key_id}\n{key_hash}")
        return base64.urlsafe_b64encode(made).decode().rstrip("=")


def _check_names(names: Sequence[str], request: SignedRequest) -> None:
    """What decides must be signed, and once: else a signature could be carried over to another request."""
    loose = {name for name in request.headers if name.startswith("x-amz-")} - set(names)
    if "host" not in names or loose or list(names) != sorted(set(names)):
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
