"""Settings of the workers' DuckDB: resource limits, and access to a lake on S3."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3

from frazil.config import Config
from frazil.lake.files import secret_text


def sandbox_settings(config: Config, spill: Path) -> dict[str, Any]:
    """Return the arguments of `frazil.sql.sandbox.Settings`. Credentials for S3 are current ones."""
    query = config.query
    return {
        "threads": query.threads or os.cpu_count() or 1,
        "memory_bytes": query.memory_bytes_max,
        "temp_bytes": query.temp_bytes_max,
        "temp_dir": str(spill),
        "namespace": config.lake.namespace,
        "s3": s3_options(config),
    }


def s3_options(config: Config) -> dict[str, Any] | None:
    """Return options of a DuckDB secret, and the path of the extension that reads S3; None for a local lake.

    The extension is an installed Python package: nothing is downloaded when a query runs.
    """
    s3 = config.lake.s3
    is_chosen_by_catalog = config.lake.catalog.type == "rest" and config.lake.warehouse is None
    if not config.warehouse.startswith("s3://") and not is_chosen_by_catalog:
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
    """Return boto's credentials, which renew themselves."""
    return boto3.Session().get_credentials()


@functools.cache
def _extension() -> Path:
    import duckdb_extension_httpfs

    return next(Path(duckdb_extension_httpfs.__path__[0]).rglob("httpfs.duckdb_extension"))
