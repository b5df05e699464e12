"""From facts to attributes, and what of them must not leave the process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from frazil.errors import Transient

_SECRET = re.compile(r"(^|_)(authorization|credentials?|keys?|passwords?|secrets?|tokens?|cookies?)$", re.I)
_NEVER = frozenset({"params", "parameters"})
_SQL = frozenset({"sql"})
HIDDEN = "[hidden]"


def attributes(facts: Mapping[str, Any], *, sql_text: bool) -> dict[str, str | int | float | bool]:
    """A name with a dot is used as it is, others are `frazil.` and the name. Absent facts are left out."""
    found: dict[str, str | int | float | bool] = {}
    for name, value in facts.items():
        if value is None or name in _NEVER or (name in _SQL and not sql_text):
            continue
        key = name if "." in name else f"frazil.{name}"
        if _SECRET.search(name):
            found[key] = HIDDEN
        else:
            found[key] = value if isinstance(value, str | int | float | bool) else str(value)
    return found


def message_of(error: BaseException) -> str | None:
    """The text of an error, where it cannot quote what somebody sent or asked."""
    return str(error) if isinstance(error, Transient | OSError) else None
