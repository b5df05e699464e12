"""The status of all roles together, for the API, the dashboard and the terminal.

Each role answers /status about itself (`frazil.role_status`). This package merges the answers (`stages`) and
judges them (`watcher`). It reads what every role shows without an API key, and changes nothing.
"""

from frazil.status.model import Status
from frazil.status.sampler import Looker, Sampler
from frazil.status.watcher import Watcher

__all__ = ["Looker", "Sampler", "Status", "Watcher"]
