"""Sends a command to the active pipeline. Imports no Spark: the command takes less than a second then."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError

from frazil.config import Config
from frazil.config.values import local_url
from frazil.errors import Stopped
from frazil.http_client import HttpClient
from frazil.pipeline.control.protocol import ALIVE_SECONDS, PATH, Address, Operation, error_of, read_address

Say = Callable[[str], None]
_CONNECT_SECONDS_MAX = 2.0
_SILENCE_SECONDS_MAX = 15 * ALIVE_SECONDS
_ERROR_BYTES_MAX = 1 << 16
_CHUNK_BYTES = 1 << 16


def in_pipeline(
    config: Config, operation: Operation, body: Mapping[str, Any], api_key: str | None, say: Say
) -> dict[str, Any] | None:
    """Runs the operation in the active pipeline. Returns its result, or None if no pipeline accepts it: none
    runs, all are standbys, or they refuse the key. Raises the errors of the operation.
    """
    pair = config.status.client_cert_file, config.status.client_key_file
    client = HttpClient(
        ca_file=config.status.ca_file,
        client_certificate=None if pair[0] is None else (pair[0], pair[1]),
        connect_seconds=_CONNECT_SECONDS_MAX,
    )
    try:
        for address in _addresses(config, api_key):
            response = _send(client, address, operation, body, say)
            if response is not None:
                return _result(response, say)
    finally:
        client.close()
    return None


def _addresses(config: Config, api_key: str | None) -> list[Address]:
    """Returns where to try: first the pipeline of this machine, then all that are configured."""
    local = read_address(config)
    found = [] if local is None else [local]
    if api_key is not None:
        urls = config.status.pipelines or (local_url(config.pipeline.listen, tls=False),)
        found += [Address(url, api_key) for url in urls]
    return found


def _send(
    client: HttpClient, address: Address, operation: Operation, body: Mapping[str, Any], say: Say
) -> BaseHTTPResponse | None:
    try:
        response = client.send(
            "POST",
            f"{address.url}{PATH}{operation}",
            read_seconds=_SILENCE_SECONDS_MAX,
            headers={"authorization": f"Bearer {address.token}", "content-type": "application/json"},
            body=json.dumps(body).encode(),
            repeatable=False,
        )
    except (HTTPError, OSError, ValueError):
        return None
    if response.status == 200:
        return response
    try:
        found = json.loads(response.read(_ERROR_BYTES_MAX))["error"]
    except (HTTPError, ValueError, KeyError, TypeError):
        return None
    finally:
        response.close()
    if response.status in (400, 429):
        raise error_of(found)
    say(f"the pipeline at {address.url} does not run the command: {found.get('message')}")
    return None


def _result(response: BaseHTTPResponse, say: Say) -> dict[str, Any]:
    try:
        for line in _lines(response):
            if "progress" in line:
                say(line["progress"])
            elif "error" in line:
                raise error_of(line["error"])
            elif "result" in line:
                found: dict[str, Any] = line["result"]
                return found
    except (HTTPError, OSError, ValueError) as error:
        raise _lost() from error
    finally:
        response.close()
    raise _lost()


def _lines(response: BaseHTTPResponse) -> Iterator[dict[str, Any]]:
    """Yields each line as soon as it has arrived."""
    rest = b""
    while chunk := response.read1(_CHUNK_BYTES):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from map(json.loads, whole)


def _lost() -> Stopped:
    return Stopped("the pipeline stopped before the command ended: run the command again, which is safe")
