"""A read-only Iceberg REST catalog, for engines on other machines.

With a warehouse on S3, engines read the files from S3, with their own credentials. Files of a local warehouse
are served by the API as S3 objects (`files`). Engines on the same machine can request the warehouse `local`,
and get plain paths.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

import orjson
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from starlette.exceptions import HTTPException

from frazil.config import Config
from frazil.errors import Forbidden, FrazilError, RequestInvalid, StoreUnavailable, Transient, Unauthenticated
from frazil.lake.catalog import catalog_errors
from frazil.query.cache import SizedCache
from frazil.serve.iceberg.files import (
    READ_ONLY,
    ErrorRoute,
    LakeFiles,
    ServedFiles,
    files_router,
    parse_metadata,
)
from frazil.serve.iceberg.sigv4 import Credential, Credentials, data_secret

LOCAL = "local"
"""The warehouse name, and the path prefix, for engines that read the local disk."""
_REGION = "us-east-1"
_LEVELS = "\x1f"
_ATTEMPTS_MAX = 3
_WRITES = ["POST", "PUT", "DELETE", "PATCH"]
_NAMESPACE = "/v1/{prefix}/namespaces/{namespace}"
_TABLE = f"{_NAMESPACE}/tables/{{table}}"
_ENDPOINTS = [
    "GET /v1/{prefix}/namespaces",
    f"GET {_NAMESPACE}",
    f"HEAD {_NAMESPACE}",
    f"GET {_NAMESPACE}/tables",
    f"GET {_TABLE}",
    f"HEAD {_TABLE}",
    f"POST {_TABLE}/metrics",
    f"GET {_NAMESPACE}/views",
    # Endpoints that refuse. Clients do not call an endpoint that is not listed: they would fail with a
    # message that does not say `read-only`, and Spark would leave the data files of the failed commit.
    "POST /v1/{prefix}/namespaces",
    f"DELETE {_NAMESPACE}",
    f"POST {_NAMESPACE}/properties",
    f"POST {_NAMESPACE}/tables",
    f"POST {_TABLE}",
    f"DELETE {_TABLE}",
    "POST /v1/{prefix}/tables/rename",
]


class _Named(Protocol):
    """The caller that `require_admin` returns."""

    @property
    def name(self) -> str: ...


class _NotFound(Exception):
    """A missing resource. `kind` is the exception type of the Iceberg specification."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def iceberg_router(
    config: Config,
    catalog: Callable[[], Catalog],
    require_admin: Callable[..., Any],
    clear_on_erasure: Callable[[SizedCache[Any, Any]], None] | None = None,
) -> APIRouter:
    """Create the router, which must be mounted under `/iceberg`: the addresses of files begin with that path.

    `require_admin` is a dependency that returns the caller, with the `name` of the API key, or refuses the
    request. `clear_on_erasure` registers a cache that must be cleared when rows are erased: manifests hold
    column bounds.
    """
    router = APIRouter(route_class=_IcebergRoute, tags=["iceberg"])
    served = _served_files(config)
    if served is not None and clear_on_erasure is not None:
        clear_on_erasure(served.files.cache)
    admin = [Depends(require_admin)]

    @router.get("/v1/config", dependencies=admin)
    def settings(warehouse: str = "") -> Response:
        """Return the configuration: the first request of every client."""
        if warehouse not in ("", LOCAL, config.lake.catalog.name):
            raise _NotFound(
                "NotFoundException",
                f"there is no warehouse {warehouse[:100]}: omit it, or use `{LOCAL}` on the server's machine",
            )
        overrides = {"prefix": LOCAL} if warehouse == LOCAL else {}
        return _json({"defaults": {}, "overrides": overrides, "endpoints": _ENDPOINTS})

    @router.post("/v1/oauth/tokens")
    def tokens() -> Response:
        """Refuse token exchange: API keys are used as bearer tokens."""
        text = "send the API key as a bearer token: set the property `token` instead of `credential`"
        return _json({"error": "unsupported_grant_type", "error_description": text}, 400)

    for prefix, lake in (
        ("/v1", _CatalogView(config, catalog, served)),
        (f"/v1/{LOCAL}", _CatalogView(config, catalog, None)),
    ):
        _add_reads(router, prefix, lake, require_admin)

    @router.api_route("/v1/{path:path}", methods=_WRITES, dependencies=admin, include_in_schema=False)
    def write(path: str) -> Response:
        raise Forbidden(READ_ONLY)

    @router.api_route("/v1/{path:path}", methods=["GET", "HEAD"], dependencies=admin, include_in_schema=False)
    def unknown(path: str) -> Response:
        raise _NotFound(
            "NotFoundException", "this catalog has no such endpoint: /v1/config lists all endpoints"
        )

    if served is not None:
        router.include_router(files_router(served))
    return router


def _served_files(config: Config) -> ServedFiles | None:
    """Return the files to serve; None for a warehouse on S3, which engines read directly."""
    if config.warehouse.startswith("s3://"):
        return None
    secret = data_secret(config.data_dir / "iceberg.secret")
    colder = config.tier_location
    if colder is not None and colder.startswith("s3://"):
        colder = None
    if colder is not None:  # serve only the folder of the tables
        colder = "/".join((colder, *config.lake.namespace.split(".")))
    files = LakeFiles(config.warehouse, hidden=[config.wal_dir], colder=colder)
    return ServedFiles(files, Credentials(secret, config.auth.keys))


def _add_reads(router: APIRouter, prefix: str, lake: _CatalogView, require_admin: Callable[..., Any]) -> None:
    """Add the read endpoints. Lists are not paged: the first page has all items."""
    caller_dependency = Depends(require_admin)
    admin = [caller_dependency]
    namespace_path = f"{prefix}/namespaces/{{namespace}}"
    table_path = f"{namespace_path}/tables/{{table}}"

    @router.get(f"{prefix}/namespaces", dependencies=admin)
    def namespaces(parent: str = "") -> Response:
        return _json({"namespaces": lake.namespaces(_levels(parent) if parent else ())})

    @router.get(namespace_path, dependencies=admin)
    def namespace_properties(namespace: str) -> Response:
        levels = _levels(namespace)
        return _json({"namespace": levels, "properties": lake.properties(levels)})

    @router.head(namespace_path, dependencies=admin)
    def namespace_exists(namespace: str) -> Response:
        lake.properties(_levels(namespace))
        return Response(status_code=204)

    @router.get(f"{namespace_path}/tables", dependencies=admin)
    def tables(namespace: str) -> Response:
        return _json({"identifiers": lake.tables(_levels(namespace))})

    @router.get(f"{namespace_path}/views", dependencies=admin)
    def views(namespace: str) -> Response:
        lake.properties(_levels(namespace))
        return _json({"identifiers": []})

    @router.get(table_path)
    def table(
        request: Request,
        namespace: str,
        table: str,
        caller: _Named = caller_dependency,
        snapshots: Annotated[Literal["all", "refs"], Query()] = "all",
    ) -> Response:
        found = lake.table((*_levels(namespace), table), _origin(request), caller.name)
        if snapshots == "refs":
            found["metadata"] = _referenced(found["metadata"])
        return _json(found)

    @router.head(table_path, dependencies=admin)
    def table_exists(namespace: str, table: str) -> Response:
        lake.must_have((*_levels(namespace), table))
        return Response(status_code=204)

    @router.post(f"{table_path}/metrics", dependencies=admin)
    def report(namespace: str, table: str) -> Response:
        """Accept and ignore scan reports of engines."""
        return Response(status_code=204)


@dataclass(frozen=True)
class _CatalogView:
    """The catalog as engines see it, with the addresses of served files, or unchanged."""

    config: Config
    catalog: Callable[[], Catalog]
    served: ServedFiles | None

    def namespaces(self, parent: tuple[str, ...]) -> list[tuple[str, ...]]:
        with catalog_errors():
            return sorted(self.catalog().list_namespaces(parent))

    def properties(self, namespace: tuple[str, ...]) -> dict[str, str]:
        with catalog_errors():
            found = self.catalog().load_namespace_properties(namespace)
        return dict(found) if self.served is None else self.served.files.properties(found)

    def tables(self, namespace: tuple[str, ...]) -> list[dict[str, Any]]:
        with catalog_errors():
            found = sorted(self.catalog().list_tables(namespace))
        return [{"namespace": levels, "name": name} for *levels, name in found]

    def must_have(self, table: tuple[str, ...]) -> None:
        with catalog_errors():
            if not self.catalog().table_exists(table):
                raise NoSuchTableError(f"Table does not exist: {'.'.join(table)}")

    def table(self, table: tuple[str, ...], origin: str, key_name: str) -> dict[str, Any]:
        """Return the LoadTableResult of the specification, with the metadata as in the file except for
        addresses and properties that refuse writes.
        """
        location, metadata = self._load(table)
        if location.startswith("s3"):
            return _result(location, metadata, self._s3_config())
        if self.served is None or self.served.files.address(location) == location:
            return _result(location, metadata, {})
        files = self.served.files
        config = _files_config(self.served.credentials.make(key_name), origin)
        return _result(files.address(location), files.metadata(metadata), config)

    def _load(self, table: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
        """Return location and metadata. Retries: the file may be deleted after the catalog was read."""
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            try:
                with catalog_errors():
                    found = self.catalog().load_table(table)
                with found.io.new_input(found.metadata_location).open() as file:
                    return found.metadata_location, parse_metadata(file.read())
            except FileNotFoundError as error:
                if attempt == _ATTEMPTS_MAX:
                    raise StoreUnavailable(
                        f"the metadata file of {'.'.join(table)} that the catalog names is missing: run "
                        "`frazil doctor` on the server"
                    ) from error
        raise AssertionError

    def _s3_config(self) -> dict[str, str]:
        """Return endpoint and region of the store, without the server's own credentials."""
        s3 = self.config.lake.s3
        found = {"client.region": s3.region, "s3.region": s3.region}
        if s3.endpoint is not None:
            found["s3.endpoint"] = s3.endpoint
        if s3.uses_path_style:
            found["s3.path-style-access"] = "true"
        return found


def _files_config(credential: Credential, origin: str) -> dict[str, str]:
    return {
        "s3.endpoint": origin,
        "s3.path-style-access": "true",
        "client.region": _REGION,
        "s3.region": _REGION,
        "s3.access-key-id": credential.access_key_id,
        "s3.secret-access-key": credential.secret_access_key,
        "s3.session-token": credential.session_token,
        "s3.session-token-expires-at-ms": str(credential.expires_unix * 1000),
    }


def _result(location: str, metadata: dict[str, Any], config: dict[str, str]) -> dict[str, Any]:
    return {"metadata-location": location, "metadata": metadata, "config": config}


def _referenced(metadata: dict[str, Any]) -> dict[str, Any]:
    """Drop snapshots that no branch or tag refers to."""
    kept = {ref["snapshot-id"] for ref in metadata.get("refs", {}).values()}
    kept.add(metadata.get("current-snapshot-id"))
    snapshots = [each for each in metadata.get("snapshots", []) if each["snapshot-id"] in kept]
    return {**metadata, "snapshots": snapshots}


def _levels(namespace: str) -> tuple[str, ...]:
    levels = tuple(namespace.split(_LEVELS))
    if not all(levels):
        raise RequestInvalid("the namespace has an empty level: separate levels by one %1F")
    return levels


def _origin(request: Request) -> str:
    """Return this server's URL as the client sees it. A proxy that ends TLS sets x-forwarded-proto."""
    forwarded = request.headers.get("x-forwarded-proto", "")
    scheme = forwarded if forwarded in ("http", "https") else request.url.scheme
    return f"{scheme}://{request.headers.get('host') or request.url.netloc}"


def _json(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


class _IcebergRoute(ErrorRoute):
    """Renders errors as the specification's ErrorModel."""

    def error_response(self, error: Exception) -> Response | None:
        match error:
            case Unauthenticated():
                status, kind = 401, "NotAuthorizedException"
            case Forbidden():
                status, kind = 403, "ForbiddenException"
            case Transient():
                status, kind = 503, "ServiceUnavailableException"
            case NoSuchNamespaceError():
                status, kind = 404, "NoSuchNamespaceException"
            case NoSuchTableError():
                status, kind = 404, "NoSuchTableException"
            case _NotFound():
                status, kind = 404, error.kind
            case RequestValidationError() | RequestInvalid():
                status, kind = 400, "BadRequestException"
            case HTTPException():
                status, kind = error.status_code, "RESTException"
            case FrazilError():
                status, kind = 500, "InternalServerError"
            case _:
                return None
        response = _json({"error": {"message": _text(error), "type": kind, "code": status}}, status)
        if isinstance(error, Transient):
            response.headers["retry-after"] = str(max(1, math.ceil(error.retry_after_seconds)))
        if status == 401:
            response.headers["www-authenticate"] = "Bearer"
        return response


def _text(error: Exception) -> str:
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        return f"{first['loc'][-1]}: {first['msg']}"
    return str(error.detail) if isinstance(error, HTTPException) else str(error)
