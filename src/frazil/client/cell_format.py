"""Values as one line of text for people."""

from __future__ import annotations

import datetime as dt
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

NULL = "NULL"


class _Escapes(dict[int, int | str]):
    """What each character is shown as, worked out when it is first met.

    Telemetry is written by strangers: an escape sequence in a log line must not reach the terminal, and text
    must not run backwards.
    """

    # Control, formatting and direction, half characters, line ends.
    _UNSAFE = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
    # Join letters of some scripts, and emoji.
    _JOINERS = frozenset((0x200C, 0x200D))

    def __missing__(self, code: int) -> int | str:
        shown: int | str = code
        if unicodedata.category(chr(code)) in self._UNSAFE and code not in self._JOINERS:
            shown = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
        self[code] = shown
        return shown


_ONE_LINE = _Escapes({0x0A: "↵", 0x0D: "", 0x09: " "})
_LINES = _Escapes({0x0A: 0x0A, 0x0D: 0x0D, 0x09: 0x09})


def one_line(text: str) -> str:
    """Text without anything that a terminal would act on."""
    return text if text.isprintable() else text.translate(_ONE_LINE)


def terminal_safe(text: str) -> str:
    """Several lines without anything else that a terminal would act on."""
    return text if text.isprintable() else text.translate(_LINES)


def cell_text(value: Any) -> str | None:
    """A value as a cell shows it; None for NULL."""
    return None if value is None else _text(value)


def _text(value: Any) -> str:
    if value is None:
        return NULL
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(key)}: {_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, dt.datetime):
        return value.isoformat(" ")
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_text, value)) + "]"
    return one_line(str(value))
