"""API keys: made here, kept hashed in the configuration, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable

from frazil.config import ApiKey, tenant_id
from frazil.errors import Unauthenticated

PREFIX = "fz_"
# Nothing longer is a key; it is not worth hashing.
_TOKEN_CHARS_MAX = 512


def new_key(tenant: str) -> tuple[str, str]:
    """A new key of `tenant` and its hash. ValueError when `tenant` cannot be a tenant's id.

    The key is 256 random bits, so a plain SHA-256 of it cannot be searched for.
    """
    tenant_id(tenant)
    key = PREFIX + secrets.token_urlsafe(32)
    return key, hash_key(key)


def hash_key(key: str) -> str:
    """What the configuration keeps of a key."""
    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def given_key(authorization: str | None, api_key: str | None) -> str | None:
    """Returns the key in a request's headers `Authorization: Bearer` or, without that, `X-Api-Key`."""
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else api_key


class KeyRing:
    """The configured keys."""

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._keys = tuple(keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def identify(self, token: str | None) -> ApiKey:
        """The key that `token` is, or Unauthenticated. Every configured key is compared, right or wrong."""
        if not token:
            raise Unauthenticated("no API key: send `Authorization: Bearer fz_…`")
        if len(token) > _TOKEN_CHARS_MAX:
            raise Unauthenticated("the API key is not valid: it is too long to be one")
        given = hash_key(token).encode()
        found: ApiKey | None = None
        for key in self._keys:
            if hmac.compare_digest(given, key.hash.encode()):
                found = key
        if found is None:
            raise Unauthenticated("the API key is not valid: `frazil keys new` makes one")
        return found
