"""The status of all roles together, for the API, the dashboard and the terminal.

Each role reports on itself at /status (`frazil.role_status`). `poll` requests the reports, `stages` merges
them, `watcher` judges them and keeps history. Nothing here needs an API key or changes anything.
"""

from frazil.status.model import Status
from frazil.status.poll import Sampler, StatusPoller, failing_tables
from frazil.status.watcher import Watcher

__all__ = ["Sampler", "Status", "StatusPoller", "Watcher", "failing_tables"]
