"""How DuckDB reaches the lake on S3."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3

from frazil.config import Config
from frazil.lake.files import secret_text


def s3_options(config: Config) -> dict[str, Any] | None:
    """Options of a DuckDB secret, with the path of the extension that reads S3; None for a local lake.

    The extension comes from the package index: nothing is downloaded when a question is asked.
    """
    s3 = config.lake.s3
    elsewhere = config.lake.catalog.type == "rest" and config.lake.warehouse is None
    if not config.warehouse.startswith("s3://") and not elsewhere:
        return None
    options: dict[str, Any] = {"extension": str(_extension()), "REGION": s3.region}
    if s3.endpoint is not None:
        parts = urlsplit(s3.endpoint)
        options["ENDPOINT"] = parts.netloc + parts.path.rstrip("/")
        options["USE_SSL"] = str(parts.scheme == "https").lower()
    options["URL_STYLE"] = "path" if s3.uses_path_style else "vhost"
    return options | _keys(config)


def _keys(config: Config) -> dict[str, str]:
    s3 = config.lake.s3
    if s3.access_key_id is not None:
        return {"KEY_ID": s3.access_key_id, "SECRET": secret_text(s3.secret_access_key) or ""}
    found = _found_credentials()
    if found is None:
        return {}
    frozen = found.get_frozen_credentials()
    keys = {"KEY_ID": frozen.access_key, "SECRET": frozen.secret_key, "SESSION_TOKEN": frozen.token}
    return {key: value for key, value in keys.items() if value}


@functools.cache
def _found_credentials() -> Any:
    """They renew themselves."""
    return boto3.Session().get_credentials()


@functools.cache
def _extension() -> Path:
    import duckdb_extension_httpfs

    return next(Path(duckdb_extension_httpfs.__path__[0]).rglob("httpfs.duckdb_extension"))
