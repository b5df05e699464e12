"""How the whole of frazil does, as its roles say over HTTP: one picture for the API, the dashboard and the
terminal. It only reads what every role shows without a key; it changes nothing.
"""

from frazil.status.look import Looker, direct
from frazil.status.model import Status
from frazil.status.sampler import Sampler
from frazil.status.watcher import Watcher

__all__ = ["Looker", "Sampler", "Status", "Watcher", "direct"]
