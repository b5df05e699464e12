"""Authenticates callers. The tenant comes only from the API key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader, HTTPBearer

from frazil.config import Config, Role, is_loopback
from frazil.errors import Forbidden, StoreUnavailable
from frazil.keys import KeyRing, given_key

_ALL_ROLES: tuple[Role, ...] = ("read", "write", "admin")

# Only for the OpenAPI document: `Authenticator` reads the headers, as the receiver does.
_bearer = HTTPBearer(auto_error=False, description="An API key with the role `read`: `Bearer fz_…`.")
_header = APIKeyHeader(name="X-Api-Key", auto_error=False, description="The same API key, without `Bearer`.")


@dataclass(frozen=True)
class Caller:
    tenant: str
    name: str
    """The API key's name; empty if no keys are configured."""
    roles: tuple[Role, ...]

    def must_be(self, role: Role) -> Caller:
        if role not in self.roles:
            raise Forbidden(
                f"the API key {self.name} lacks the role `{role}`: add the role in auth.keys, or use another "
                "key"
            )
        return self


class Authenticator:
    """Identifies callers by `Authorization: Bearer` or `X-Api-Key`."""

    def __init__(self, config: Config) -> None:
        self._keys = KeyRing(config.auth.keys)
        self._origins = config.serve.cors_origins
        self._everyone = Caller(config.tenants.default, "", _ALL_ROLES)

    def caller(self, request: Request) -> Caller:
        if not self._keys:
            self._check_local(request)
            return self._everyone
        headers = request.headers
        key = self._keys.identify(given_key(headers.get("authorization"), headers.get("x-api-key")))
        return Caller(key.tenant, key.name, tuple(key.roles))

    def _check_local(self, request: Request) -> None:
        """Refuse requests from web pages. Without keys, any local client is trusted, and a web page open in a
        local browser could use DNS rebinding to 127.0.0.1, or send requests that need no CORS preflight.
        """
        host = request.headers.get("host", "")
        if not _is_here(host):
            raise Forbidden(
                "without API keys the API accepts requests only for localhost and 127.0.0.1, not for "
                f"{host[:100]}: create a key with `frazil keys new`"
            )
        origin = request.headers.get("origin")
        if origin is None or "*" in self._origins or origin in self._origins:
            return
        if urlsplit(origin).netloc != host:
            raise Forbidden(
                f"requests from web pages of {origin[:100]} are refused: add the origin to serve.cors_origins"
            )


def _is_here(host: str) -> bool:
    try:
        return is_loopback(host if host.rpartition(":")[2].isdigit() and ":" in host else f"{host}:0")
    except ValueError:
        return False


def require_read(request: Request, _b: object = Security(_bearer), _h: object = Security(_header)) -> Caller:
    """Return the caller, who may read the tenant's data."""
    if request.app.state.lifecycle.stopping:
        raise StoreUnavailable("the API is shutting down")
    return _caller(request).must_be("read")


def require_admin(request: Request, _b: object = Security(_bearer), _h: object = Security(_header)) -> Caller:
    """Return the caller, who may read every tenant's data."""
    return _caller(request).must_be("admin")


def _caller(request: Request) -> Caller:
    authenticator: Authenticator = request.app.state.authenticator
    return authenticator.caller(request)


Reader = Annotated[Caller, Depends(require_read)]
