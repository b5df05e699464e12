"""`frazil status`: how the whole does. The API knows most; while it is down, the roles are asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from time import sleep as pause
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.live import Live

from frazil.client.command import key_from_text
from frazil.client.http_transport import HttpTransport, answers
from frazil.client.status_screen import nothing_runs, screen
from frazil.config import load_config
from frazil.errors import FrazilError

if TYPE_CHECKING:
    from frazil.status import StatusPoller

WELL, UNWELL = 0, 1
WATCH_SECONDS = 2.0
_API_SECONDS_MAX = 15.0


@dataclass(frozen=True)
class StatusOptions:
    """The options of the verb, as given."""

    json_output: bool = False
    watch: bool = False
    url: str | None = None
    api_key: str | None = None
    ca_file: Path | None = None
    config: Path | None = None


def run(options: StatusOptions, console: Console | None = None) -> int:
    """The exit code: 0 if all is well, 1 if anything is degraded or down."""
    console = Console() if console is None else console
    source = _Source(options)
    try:
        if options.watch:
            return _watch(source, console, as_json=options.json_output)
        found = source.read()
        _print(console, found, as_json=options.json_output)
        return _code(found)
    finally:
        source.close()


class _Source:
    """Where the picture comes from. The roles are polled by one poller, which computes rates."""

    def __init__(self, options: StatusOptions) -> None:
        self._config = load_config(options.config)
        self._is_told_where = options.url is not None
        url = options.url or self._config.serve.url
        self._api = HttpTransport(url, api_key=key_from_text(options.api_key), ca_file=options.ca_file)
        self._poller: StatusPoller | None = None

    def read(self) -> Mapping[str, Any]:
        """The status as the API has it; `note` says why the API was not the one to answer."""
        if not self._is_told_where and not answers(self._api.place):
            return self._ask_roles(None)
        try:
            found: Mapping[str, Any] = self._api.status(_API_SECONDS_MAX)
        except FrazilError as error:
            if self._is_told_where:
                raise
            return self._ask_roles(str(error))
        return found

    def _ask_roles(self, why: str | None) -> Mapping[str, Any]:
        from frazil.status import StatusPoller

        if self._poller is None:
            self._poller = StatusPoller(self._config)
        found = asdict(self._poller.poll())
        return found if why is None else {**found, "note": why}

    def close(self) -> None:
        self._api.close()
        if self._poller is not None:
            self._poller.close()


def _watch(source: _Source, console: Console, *, as_json: bool) -> int:
    """Until Ctrl-C. On a terminal the picture stays in its place, and the last one is left behind."""
    found: Mapping[str, Any] = {}
    try:
        if as_json or not console.is_terminal:
            while True:
                found = source.read()
                _print(console, found, as_json=as_json, indent=None)
                pause(WATCH_SECONDS)
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                found = source.read()
                live.update(_picture(found), refresh=True)
                pause(WATCH_SECONDS)
    except KeyboardInterrupt:
        if found and not as_json and console.is_terminal:
            _print(console, found, as_json=False)
    return _code(found)


def _print(console: Console, found: Mapping[str, Any], *, as_json: bool, indent: int | None = 2) -> None:
    if as_json:
        console.file.write(json.dumps(found, indent=indent) + "\n")
        console.file.flush()
    else:
        console.print(_picture(found))


def _picture(found: Mapping[str, Any]) -> RenderableType:
    roles = found.get("roles") or []
    is_nothing = bool(roles) and all(role.get("state") == "down" for role in roles)
    draw: Callable[[Mapping[str, Any]], RenderableType] = nothing_runs if is_nothing else screen
    return draw(found)


def _code(found: Mapping[str, Any]) -> int:
    return WELL if found.get("state") == "ok" else UNWELL
