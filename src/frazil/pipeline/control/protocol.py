"""What a command and the pipeline exchange: a POST with a JSON body, and a line of JSON per event.

{"progress": "searching logs"}
{}                                              the pipeline works: sent while there is nothing to report
{"result": {…}}                                 the last line, or
{"error": {"type": "Refused", "message": "…"}}
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from frazil import errors
from frazil.config import Config
from frazil.errors import FrazilError, Refused
from frazil.pipeline.derive.request import BackfillRequest
from frazil.pipeline.maintain.erase.request import EraseRequest, EverythingMatches
from frazil.storage.durable import write_synced

PATH = "/control/"
Operation = Literal["tag", "erase", "backfill"]
OPERATIONS: tuple[Operation, ...] = ("tag", "erase", "backfill")
ALIVE_SECONDS = 2.0
"""Between two lines of the pipeline at most."""
BODY_BYTES_MAX = 1 << 20

_Types = Mapping[str, type | tuple[type, ...]]
_Request = TypeVar("_Request", EraseRequest, BackfillRequest)
_ERRORS: Mapping[str, type[FrazilError]] = {
    cls.__name__: cls
    for cls in (
        *(Refused, EverythingMatches, errors.QueryInvalid, errors.QueryRefused),
        *(errors.CatalogUnavailable, errors.StoreUnavailable, errors.JobFailed, errors.Stopped),
    )
}


@dataclasses.dataclass(frozen=True)
class Address:
    """Where the active pipeline of this machine listens, and the token that it accepts."""

    url: str
    token: str


def write_address(config: Config, address: Address) -> None:
    """Writes the file from which commands of the same user read the token."""
    file = _file(config)
    draft = file.with_suffix(f".{secrets.token_hex(4)}")
    write_synced(draft, json.dumps(dataclasses.asdict(address)).encode(), 0o600)
    draft.replace(file)


def read_address(config: Config) -> Address | None:
    try:
        found = json.loads(_file(config).read_text(encoding="utf-8"))
        return Address(str(found["url"]), str(found["token"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remove_address(config: Config, address: Address) -> None:
    """Removes the file unless another pipeline has written it since."""
    if read_address(config) == address:
        _file(config).unlink(missing_ok=True)


def _file(config: Config) -> Path:
    return config.data_dir / "pipeline.control"


def erase_request(body: Mapping[str, Any]) -> EraseRequest:
    """Raises Refused if the body is not a valid request."""
    types: _Types = {"tenant": str, "where": str, "tables": (list, tuple)}
    request = _request(EraseRequest, "erase", types, body)
    return dataclasses.replace(request, tables=tuple(map(str, request.tables)))


def backfill_request(body: Mapping[str, Any]) -> BackfillRequest:
    """Raises Refused if the body is not a valid request."""
    types: _Types = {"table": str, "first": str, "last": (str, type(None))}
    return _request(BackfillRequest, "backfill", types, body)


def _request(cls: type[_Request], operation: Operation, types: _Types, body: Mapping[str, Any]) -> _Request:
    """Returns the request. Fields without a type in `types` are flags."""
    for field in dataclasses.fields(cls):
        if field.name in body and not isinstance(body[field.name], types.get(field.name, bool)):
            raise Refused(f"{field.name} has a wrong type in the request to {operation}")
    try:
        return cls(**body)
    except TypeError as error:
        raise Refused(f"the request to {operation} is not valid: {error}") from None


def error_line(error: BaseException) -> dict[str, Any]:
    name = next((cls.__name__ for cls in type(error).__mro__ if cls.__name__ in _ERRORS), "FrazilError")
    return {"error": {"type": name, "message": errors.reason_of(error)}}


def error_of(line: Mapping[str, Any]) -> FrazilError:
    return _ERRORS.get(str(line.get("type")), FrazilError)(str(line.get("message")))
