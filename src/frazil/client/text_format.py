"""Formats values, sizes and durations as text for people."""

from __future__ import annotations

import datetime as dt
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

NULL = "NULL"


class _Escapes(dict[int, int | str]):
    """A lazy `str.translate` table that escapes characters which could control a terminal.

    Telemetry is untrusted: escape sequences and text direction marks must not reach the terminal.
    """

    # Control, formatting and direction characters, surrogates, line separators.
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
    """Return the text on one line, without characters that control a terminal."""
    return text if text.isprintable() else text.translate(_ONE_LINE)


def terminal_safe(text: str) -> str:
    """Return the text without characters that control a terminal. Line breaks and tabs are kept."""
    return text if text.isprintable() else text.translate(_LINES)


def cell_text(value: Any) -> str | None:
    """Return a value as text for a table cell, None for NULL."""
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


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def bytes_text(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def seconds_text(seconds: float) -> str:
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds) // 60} min {int(seconds) % 60} s"
