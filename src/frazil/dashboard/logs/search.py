"""The log search of the page: its filters, and the parameters of the API."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

TRACE = "trace_id"
_REGEX = re.compile(r"/(.+)/(i?)", re.DOTALL)
_CHIP_KEY = re.compile(r"[^=:]+")
_CHIP_CHARS_MAX = 400


@dataclass(frozen=True)
class LogSearch:
    text: str = ""
    """Words, or a regular expression between slashes: `/timeout after \\d+/`, with `i` at the end to ignore
    case.
    """
    services: tuple[str, ...] = ()
    severity: str | None = None
    """The lowest severity to show."""
    chips: tuple[str, ...] = ()
    """Attributes as `key=value`. `trace_id=…` is the record's trace, `trace_id:…` an attribute of that name.
    """

    @property
    def is_empty(self) -> bool:
        return not (self.text.strip() or self.services or self.severity or self.chips)

    @property
    def regex(self) -> str | None:
        match = _REGEX.fullmatch(self.text.strip())
        if match is None:
            return None
        return f"(?i){match[1]}" if match[2] else match[1]

    @property
    def words(self) -> list[str]:
        return [] if self.regex is not None else self.text.split()

    @property
    def highlight_pattern(self) -> str | None:
        """The regular expression (RE2) of the text to highlight in results."""
        if self.regex is not None:
            return self.regex
        longest_first = sorted({re.escape(word.lower()) for word in self.words}, key=lambda w: (-len(w), w))
        return f"(?i){'|'.join(longest_first)}" if longest_first else None

    def parameters(self) -> dict[str, Any]:
        """Returns the parameters of `/api/v1/logs` and `/api/v1/logs/counts`."""
        traces = [chip for chip in self.chips if chip.startswith(f"{TRACE}=")]
        return {
            "q": " ".join(self.words),
            "regex": self.regex,
            "service": list(self.services),
            "severity": self.severity,
            TRACE: [chip.partition("=")[2].strip() for chip in traces],
            "attr": [chip for chip in self.chips if chip not in traces],
        }


def chip(key: str, value: str) -> str | None:
    """Returns the filter entry of an attribute, or None if it cannot be written as one."""
    if _CHIP_KEY.fullmatch(key) is None or len(key) + len(value) > _CHIP_CHARS_MAX:
        return None
    return f"{key}:{value}" if key == TRACE else f"{key}={value}"


def with_chip(chips: list[str], added: str) -> list[str]:
    """Adds a filter entry. A record has one trace, so a new trace replaces the old one."""
    if added.startswith(f"{TRACE}="):
        chips = [chip for chip in chips if not chip.startswith(f"{TRACE}=")]
    return [*(chip for chip in chips if chip != added), added]
