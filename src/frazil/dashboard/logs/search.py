"""What a person looks for among the logs, as the address has it and as the API wants it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

TRACE = "trace_id"
_REGEX = re.compile(r"/(.+)/(i?)", re.DOTALL)
_KEY_OF_A_CHIP = re.compile(r"[^=:]+")
_CHIP_CHARS_MAX = 400


@dataclass(frozen=True)
class LogSearch:
    text: str = ""
    """Words, or a regular expression between slashes: `/timeout after \\d+/`, with `i` behind in any case."""
    services: tuple[str, ...] = ()
    severity: str | None = None
    """The lowest."""
    chips: tuple[str, ...] = ()
    """`key=value` of attributes. `trace_id=…` is the record's trace, `trace_id:…` an attribute so called."""

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
    def marks(self) -> str | None:
        """A regular expression (RE2) for what to mark in a text that was found."""
        if self.regex is not None:
            return self.regex
        longest_first = sorted({re.escape(word.lower()) for word in self.words}, key=lambda w: (-len(w), w))
        return f"(?i){'|'.join(longest_first)}" if longest_first else None

    def parameters(self) -> dict[str, Any]:
        """For `/api/v1/logs` and `/api/v1/logs/counts`."""
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
    """An attribute as an entry of the filter; None where there is no way to write it."""
    if _KEY_OF_A_CHIP.fullmatch(key) is None or len(key) + len(value) > _CHIP_CHARS_MAX:
        return None
    return f"{key}:{value}" if key == TRACE else f"{key}={value}"


def with_chip(chips: list[str], added: str) -> list[str]:
    """`chips` and one more. A record has one trace: another takes its place."""
    if added.startswith(f"{TRACE}="):
        chips = [chip for chip in chips if not chip.startswith(f"{TRACE}=")]
    return [*(chip for chip in chips if chip != added), added]
