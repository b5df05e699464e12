"""API keys: created here, stored as hashes in the configuration, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable

from frazil.config import ApiKey, tenant_id
from frazil.errors import Unauthenticated

PREFIX = "fz_"
# A longer token cannot be a key and is not hashed.
_TOKEN_CHARS_MAX = 512


def new_key(tenant: str) -> tuple[str, str]:
    """Return a new key of `tenant`, and its hash. Raises ValueError if `tenant` is not a valid tenant id.

    The key has 256 random bits, so a plain SHA-256 hash cannot be reversed by guessing.
    """
    tenant_id(tenant)
    key = PREFIX + secrets.token_urlsafe(32)
    return key, hash_key(key)


def hash_key(key: str) -> str:
    """Return the form of a key that the configuration holds."""
    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def given_key(authorization: str | None, api_key: str | None) -> str | None:
    """Return the key in a request's headers `Authorization: Bearer` or, without that, `X-Api-Key`."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else api_key


class KeyRing:
    """The configured keys."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._keys = tuple(keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def identify(self, token: str | None) -> ApiKey:
        """Return the key of `token`, or raise Unauthenticated. Always compares every configured key."""
        if not token:
            raise Unauthenticated("no API key: send `Authorization: Bearer fz_…`")
        if len(token) > _TOKEN_CHARS_MAX:
            raise Unauthenticated("the API key is not valid: it is too long")
        given = hash_key(token).encode()
        found: ApiKey | None = None
        for key in self._keys:
            if hmac.compare_digest(given, key.hash.encode()):
                found = key
        if found is None:
            raise Unauthenticated("the API key is not valid: create one with `frazil keys new`")
        return found
