"""How every client of an object store is set up: the WAL's and the lake's. No client is opened here."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_REASON_CHARACTERS_MAX = 600
_NO_BUCKET = "the bucket does not exist; create it, or correct its name in the configuration"
# Differs at each attempt: with it, a log would take the same failure for a new one.
_DURATION = re.compile(r" in \d[\d.]*(?:ns|µs|ms|s)(?= - )")


def client_config(
    *, region: str, path_style: bool, endpoint: str | None, sse_kms_key_id: str | None
) -> dict[str, Any]:
    """For obstore's `config`. Conditional writes go by the ETag."""
    options: dict[str, Any] = {
        "region": region,
        "virtual_hosted_style_request": not path_style,
        "conditional_put": "etag",
    }
    if endpoint is not None:
        options["endpoint"] = endpoint.rstrip("/")
    if sse_kms_key_id is not None:
        options["server_side_encryption"] = "aws:kms"
        options["sse_kms_key_id"] = sse_kms_key_id
    return options


def credentials(
    access_key_id: str | None, secret_access_key: str | None, session_token: str | None = None
) -> Callable[[], Any] | None:
    """For obstore's `credential_provider`; None leaves it to the environment. Given ones come from a
    provider, because as options obstore would mix them with AWS_SESSION_TOKEN.
    """
    if access_key_id is None or secret_access_key is None:
        return None
    given = {
        "access_key_id": access_key_id,
        "secret_access_key": secret_access_key,
        "token": session_token,
        "expires_at": None,
    }
    return lambda: given


def is_missing_bucket(error: Exception) -> bool:
    """Returns True if the store says that the bucket itself is not there, not an object in it."""
    return "NoSuchBucket" in str(error)


def first_line(error: Exception) -> str:
    """Returns the reason that a store's client gives, in one line: the same for the same failure."""
    if is_missing_bucket(error):
        return _NO_BUCKET
    line = str(error).strip().split("\n")[0]
    return _DURATION.sub("", line)[:_REASON_CHARACTERS_MAX] or type(error).__name__
