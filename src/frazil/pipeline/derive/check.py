"""Checks the configuration of derived tables. Imports neither Spark nor Iceberg, so that `frazil config
--check` is fast.
"""

from __future__ import annotations

import difflib

from frazil.config import Config
from frazil.tables import derived_specs


def check_tables(config: Config) -> list[str]:
    """Returns the problems of the section `derive`, with a remedy."""
    known = [spec.name for spec in derived_specs()]
    return [
        f"derive.disabled_tables: there is no derived table {name}; {_hint(name, known)}"
        for name in config.derive.disabled_tables
        if name not in known
    ]


def _hint(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(known)}"
