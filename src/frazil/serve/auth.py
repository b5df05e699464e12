"""Who asks. The tenant comes from the API key alone."""

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

# Only for the OpenAPI page: the headers are read below, as the receiver reads them.
_bearer = HTTPBearer(auto_error=False, description="An API key with the role `read`: `Bearer fz_…`.")
_header = APIKeyHeader(name="X-Api-Key", auto_error=False, description="The same key in a header of its own.")


@dataclass(frozen=True)
class Caller:
    tenant: str
    name: str
    """The API key's name; empty while there are none."""
    roles: tuple[Role, ...]

    def must_be(self, role: Role) -> Caller:
        if role not in self.roles:
            raise Forbidden(
                f"the API key {self.name} may not do this: it needs the role `{role}` in auth.keys"
            )
        return self


class Authenticator:
    """Tells who comes, by `Authorization: Bearer` or `X-Api-Key`."""

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
        """Without keys, being on this machine is the only credential, and any web page open in a browser here
        is: it could ask by a name of its own that leads to 127.0.0.1, or post what needs no permission.
        """
        host = request.headers.get("host", "")
        if not _is_here(host):
            raise Forbidden(
                f"without API keys the API answers only to localhost and 127.0.0.1, not to {host[:100]}; "
                "make a key with `frazil keys new`"
            )
        origin = request.headers.get("origin")
        if origin is None or "*" in self._origins or origin in self._origins:
            return
        if urlsplit(origin).netloc != host:
            raise Forbidden(f"web pages of {origin[:100]} may not ask; serve.cors_origins can name them")


def _is_here(host: str) -> bool:
    try:
        return is_loopback(host if host.rpartition(":")[2].isdigit() and ":" in host else f"{host}:0")
    except ValueError:
        return False


def door(request: Request) -> Authenticator:
    return request.app.state.door  # type: ignore[no-any-return]


def reader(request: Request, _b: object = Security(_bearer), _h: object = Security(_header)) -> Caller:
    """Who may ask for data."""
    if request.app.state.life.stopping:
        raise StoreUnavailable("the API is shutting down")
    return door(request).caller(request).must_be("read")


def require_admin(request: Request, _b: object = Security(_bearer), _h: object = Security(_header)) -> Caller:
    """Who may see every tenant's files."""
    return door(request).caller(request).must_be("admin")


Reader = Annotated[Caller, Depends(reader)]
