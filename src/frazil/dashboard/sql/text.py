"""Where in a question something is wrong, and how a question is named in a list."""

from __future__ import annotations

import re

_EXCERPT_CHARACTERS = 100
_SHARED_CHARACTERS_MAX = 6_000
"""Longer addresses are cut off by browsers, proxies and chats."""


def excerpt(sql: str, position: int) -> str:
    """The line of `position` with a mark below it, for a fixed-width font."""
    position = max(0, min(position, len(sql)))
    before = sql[:position]
    line_number = before.count("\n") + 1
    begin = before.rfind("\n") + 1
    end = sql.find("\n", position)
    line = sql[begin : len(sql) if end < 0 else end]
    column = position - begin
    shift = max(0, column - _EXCERPT_CHARACTERS // 2)
    shown = line[shift : shift + _EXCERPT_CHARACTERS].replace("\t", " ")
    head = f"{line_number} | "
    lead, tail = ("…" if shift else ""), ("…" if shift + _EXCERPT_CHARACTERS < len(line) else "")
    return f"{head}{lead}{shown}{tail}\n{' ' * (len(head) + len(lead) + column - shift)}^"


def browser_offset(sql: str, position: int) -> int:
    """A browser counts UTF-16 units, the API characters."""
    return len(sql[:position].encode("utf-16-le", "surrogatepass")) // 2


def title(sql: str, characters: int = 80) -> str:
    """One line that tells it from others."""
    line = re.sub(r"\s+", " ", re.sub(r"--[^\n]*", "", sql)).strip()
    return line if len(line) <= characters else line[: characters - 1] + "…"


def can_be_shared(sql: str) -> bool:
    """Whether an address has room for it."""
    return len(sql) <= _SHARED_CHARACTERS_MAX
