"""Settings for a WAL in a bucket, seen through a proxy or not."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from tests.components.s3 import S3Server


def new_bucket(server: S3Server) -> str:
    return server.make_bucket(f"wal-{secrets.token_hex(6)}")


def s3_settings(server: S3Server, bucket: str, **wal: Any) -> Mapping[str, Any]:
    """For `running_receiver`; `wal` as in the section of that name, `s3` in it as in wal.s3."""
    return {
        "wal": {
            "type": "s3",
            **wal,
            "s3": {
                "bucket": bucket,
                "endpoint": server.endpoint,
                "allow_http": True,
                "access_key_id": server.access_key,
                "secret_access_key": server.secret_key,
                **wal.get("s3", {}),
            },
        }
    }
