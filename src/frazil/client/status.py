"""`frazil status`: shows the overall status, from the API or, if the API is down, from the roles."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from time import sleep as pause
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.live import Live

from frazil.client.http_transport import HttpTransport, is_listening, key_from_text
from frazil.client.status_screen import render_all_down, render_status
from frazil.config import load_config
from frazil.errors import FrazilError

if TYPE_CHECKING:
    from frazil.status import StatusPoller

EXIT_OK, EXIT_NOT_OK = 0, 1
WATCH_SECONDS = 2.0
_API_SECONDS_MAX = 15.0


@dataclass(frozen=True)
class StatusOptions:
    json_output: bool = False
    watch: bool = False
    url: str | None = None
    api_key: str | None = None
    ca_file: Path | None = None
    config: Path | None = None


def run(options: StatusOptions, console: Console | None = None) -> int:
    """Print the status. Returns the exit code: 0 if all roles are ok, 1 if any is degraded or down."""
    console = Console() if console is None else console
    source = _Source(options)
    try:
        if options.watch:
            return _watch(source, console, as_json=options.json_output)
        status = source.read()
        _print(console, status, as_json=options.json_output)
        return _exit_code(status)
    finally:
        source.close()


class _Source:
    """Reads the status. It keeps one `StatusPoller`, which computes rates from successive polls."""

    def __init__(self, options: StatusOptions) -> None:
        self._config = load_config(options.config)
        client = self._config.client
        url = options.url or client.url
        self._is_explicit_url = url is not None
        self._api = HttpTransport(
            url or self._config.serve.url,
            api_key=key_from_text(options.api_key, client),
            ca_file=options.ca_file or client.ca_file,
        )
        self._poller: StatusPoller | None = None

    def read(self) -> Mapping[str, Any]:
        """Return the status in the API's format. If the API failed, `note` says why."""
        if not self._is_explicit_url and not is_listening(self._api.address):
            return self._poll_roles(None)
        try:
            status: Mapping[str, Any] = self._api.status(_API_SECONDS_MAX)
        except FrazilError as error:
            if self._is_explicit_url:
                raise
            return self._poll_roles(str(error))
        return status

    def _poll_roles(self, why: str | None) -> Mapping[str, Any]:
        from frazil.status import StatusPoller

        if self._poller is None:
            self._poller = StatusPoller(self._config)
        status = asdict(self._poller.poll())
        return status if why is None else {**status, "note": why}

    def close(self) -> None:
        self._api.close()
        if self._poller is not None:
            self._poller.close()


def _watch(source: _Source, console: Console, *, as_json: bool) -> int:
    """Refresh until Ctrl-C. On a terminal, the last status stays on the screen."""
    status: Mapping[str, Any] = {}
    try:
        if as_json or not console.is_terminal:
            while True:
                status = source.read()
                _print(console, status, as_json=as_json, indent=None)
                pause(WATCH_SECONDS)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                status = source.read()
                live.update(_render(status), refresh=True)
                pause(WATCH_SECONDS)
    except KeyboardInterrupt:
        if status and not as_json and console.is_terminal:
            _print(console, status, as_json=False)
    return _exit_code(status)


def _print(console: Console, status: Mapping[str, Any], *, as_json: bool, indent: int | None = 2) -> None:
    if as_json:
        console.file.write(json.dumps(status, indent=indent) + "\n")
        console.file.flush()
    else:
        console.print(_render(status))


def _render(status: Mapping[str, Any]) -> RenderableType:
    roles = status.get("roles") or []
    all_down = bool(roles) and all(role.get("state") == "down" for role in roles)
    render: Callable[[Mapping[str, Any]], RenderableType] = render_all_down if all_down else render_status
    return render(status)


def _exit_code(status: Mapping[str, Any]) -> int:
    return EXIT_OK if status.get("state") == "ok" else EXIT_NOT_OK
