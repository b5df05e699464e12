"""Types of configuration values: sizes, durations, addresses, names.

Every parser raises `bad_value`, which says what is wrong and gives a valid example.
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

from frazil.times import duration_nanos

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_SIZE_UNITS = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)},
}
_DURATION_UNITS = ("ms", "s", "m", "h", "d")
_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*\Z")
_TENANT = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_COLUMN = re.compile(r"[a-z_][a-z0-9_]{0,127}\Z")
_KEY_HASH = re.compile(r"sha256:[0-9a-f]{64}\Z")
_HOST_NAME = re.compile(r"[A-Za-z0-9_.-]+\Z")


class Section(BaseModel):
    """Base class of all configuration sections."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)


def bad_value(what: str, hint: str, key: str | None = None) -> PydanticCustomError:
    """Return an error that says `what` is wrong and, as `hint`, what to write instead.

    `key` is relative to the section that is validated.
    """
    return PydanticCustomError("frazil", "{what}", {"what": what, "hint": hint, "key": key})


def require_section(parent: Section, type: str, path: str, hints: dict[str, str]) -> None:
    """Check that `parent` has the section for its `type`. `hints` says for each type what to write."""
    if type in hints and getattr(parent, type) is None:
        raise bad_value(f"is {type}, but there is no section {path}.{type}", hints[type], "type")


def parse_bytes(value: Any) -> Any:
    """Convert `8388608` or `'8MiB'` to a number of bytes."""
    hint = "for example 8388608, 8MiB or 1GiB (MB and GB are powers of 1000)"
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _NUMBER_AND_UNIT.match(value) if isinstance(value, str) else None
    if match is None or match[2].lower() not in _SIZE_UNITS:
        raise bad_value("must be a size", hint)
    size = float(match[1]) * _SIZE_UNITS[match[2].lower()]
    if not size.is_integer():
        raise bad_value("must be a whole number of bytes", hint)
    return int(size)


def format_bytes(size: int) -> str:
    """Return the shortest exact text that `parse_bytes` accepts, such as `'8MiB'`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _SIZE_UNITS[unit.lower()] == 0:
            return f"{size // _SIZE_UNITS[unit.lower()]}{unit}"
    return str(size)


def format_value(name: str, value: Any) -> str:
    """Return a value as YAML on one line. The key's `name` tells sizes from other numbers."""
    if isinstance(value, int) and not isinstance(value, bool) and "bytes" in name:
        return format_bytes(value)
    if isinstance(value, Path):
        # Path("./frazil-data") drops the leading dot, which shows that it is relative.
        return str(value) if value.is_absolute() else f"./{value}"
    if isinstance(value, str) and value.startswith("@"):
        return json.dumps(value)  # YAML reserves @
    if isinstance(value, str | float):
        return str(value)
    return json.dumps(sorted(value) if isinstance(value, frozenset) else value)


def parse_seconds(value: Any) -> Any:
    """Convert `0.05`, `'50ms'`, `'2s'`, `'5m'` or `'1h'` to seconds."""
    hint = "for example 0.05, 50ms, 2s, 5m or 1h"
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    else:
        nanos = duration_nanos(value, _DURATION_UNITS, "s") if isinstance(value, str) else None
        if nanos is None:
            raise bad_value("must be a duration", hint)
        seconds = nanos / 1e9
    if not math.isfinite(seconds):
        raise bad_value("must be a finite duration", hint)
    return seconds


def _no_bool(value: Any) -> Any:
    # pydantic accepts true as 1, which hides a mistake.
    if isinstance(value, bool):
        raise bad_value("must be a number", "true and false are not numbers")
    return value


def split_listen(text: str) -> tuple[str, int]:
    """Split `'127.0.0.1:4318'` or `'[::1]:4318'` into (host, port).

    Raises ValueError for any other form.
    """
    hint = "for example 127.0.0.1:4318, [::1]:4318, or 0.0.0.0:4318 for every IPv4 interface"
    host, colon, port_text = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port_text) or int(port_text) > 65535:
        raise bad_value("must be host:port", hint)
    if bracketed or ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise bad_value("must be host:port with a valid IPv6 address in brackets", hint) from None
        if not bracketed:
            raise bad_value("must have the IPv6 address in brackets", f"write [{host}]:{port_text}")
    elif not _HOST_NAME.match(host):
        raise bad_value("must be host:port with a host name or an IP address", hint)
    return host, int(port_text)


def is_loopback(listen: str) -> bool:
    """Return True if only this machine can reach the address."""
    host, _ = split_listen(listen)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def tenant_id(text: str) -> str:
    """Return `text` if it is a valid tenant id (safe as part of a path); raise ValueError if not."""
    if not _TENANT.match(text) or text in (".", ".."):
        raise bad_value(
            "must be a tenant id: 1 to 64 characters of A-Z a-z 0-9 _ . - (but not . or ..)",
            "for example team-a",
        )
    return text


def _listen(text: str) -> str:
    split_listen(text)
    return text


def _url_path(text: str) -> str:
    if not re.fullmatch(r"/[A-Za-z0-9_.~/-]*[A-Za-z0-9_.~-]", text):
        raise bad_value("must be a URL path that starts with / and has no query", "for example /v1/logs")
    return text


def _origin(text: str) -> str:
    if text == "*":
        return text
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.netloc or text != f"{url.scheme}://{url.netloc}":
        raise bad_value(
            "must be * or an origin", "for example https://app.example.com (without a path or trailing /)"
        )
    return text


def _key_hash(text: str) -> str:
    if not _KEY_HASH.match(text):
        raise bad_value(
            "must be sha256: followed by 64 lower-case hexadecimal digits",
            "run `frazil keys new --tenant NAME`, which prints the configuration lines",
        )
    return text


def column_name(text: str) -> str:
    """Return `text` if it is a valid column name; raise ValueError if not."""
    if not _COLUMN.match(text):
        raise bad_value(
            "must be a column name: a-z 0-9 _, not starting with a digit", "for example http_route"
        )
    return text


def attribute_names(value: Any) -> Any:
    """Convert `'http.route'`, or a list of names in order of preference, to a tuple."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or not all(isinstance(n, str) and n for n in names):
        raise bad_value(
            "must be an attribute name or a list of names",
            "for example http.route, or [http.request.method, http.method]",
        )
    if len(set(names)) < len(names):
        raise bad_value("contains an attribute twice", "remove the duplicate")
    return tuple(names)


def column_for(attribute: str) -> str:
    """Return the column name for an attribute: `http_route` for `http.route`."""
    name = re.sub(r"[^a-z0-9_]", "_", attribute.lower())
    return f"_{name}" if name[:1].isdigit() else name


AttributeNames = Annotated[tuple[str, ...], BeforeValidator(attribute_names)]
Bytes = Annotated[int, BeforeValidator(parse_bytes)]
Seconds = Annotated[float, BeforeValidator(parse_seconds)]
Count = Annotated[int, BeforeValidator(_no_bool)]
Rate = Annotated[float, BeforeValidator(_no_bool)]
Listen = Annotated[str, AfterValidator(_listen)]
UrlPath = Annotated[str, AfterValidator(_url_path)]
Origin = Annotated[str, AfterValidator(_origin)]
TenantId = Annotated[str, AfterValidator(tenant_id)]
KeyHash = Annotated[str, AfterValidator(_key_hash)]
ColumnName = Annotated[str, AfterValidator(column_name)]


def local_url(listen: str, *, tls: bool) -> str:
    """Return the URL at which clients on this machine reach a listener."""
    host, port = split_listen(listen)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
