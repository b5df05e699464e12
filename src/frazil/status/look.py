"""Looking at all roles, from wherever there is a network."""

from __future__ import annotations

import time

from frazil.config import Config
from frazil.status.ask import Asker
from frazil.status.model import Status
from frazil.status.places import places
from frazil.status.watcher import Watcher

APART_SECONDS = 1.0
"""Rates need two looks."""


class Looker:
    """A watcher and its eyes, for who has no event loop and keeps no history."""

    def __init__(self, config: Config) -> None:
        self._asker = Asker(config.status)
        self._places = places(config)
        self._watcher = Watcher(config)
        self._looks = 0

    def look(self) -> Status:
        """The first takes a second longer, unless nothing runs."""
        found = self._once()
        if self._looks == 1 and found.state != "down":
            time.sleep(APART_SECONDS)
            found = self._once()
        return found

    def close(self) -> None:
        self._asker.close()

    def _once(self) -> Status:
        self._watcher.take(time.monotonic(), self._asker.ask_all(self._places))
        found = self._watcher.status(history=False)
        self._watcher.sample()
        self._looks += 1
        return found


def direct(config: Config) -> Status:
    """The picture, without the API: the roles themselves are asked."""
    looker = Looker(config)
    try:
        return looker.look()
    finally:
        looker.close()
