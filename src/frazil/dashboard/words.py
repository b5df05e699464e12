"""Numbers and times as people read them. Pure: pages and their logic share it."""

from __future__ import annotations

import datetime as dt
import re

_MARKDOWN = re.compile(r"[\\`*_\[\](){}$:<>#~|!&^+=-]")


def duration(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "–"
    if milliseconds < 1:
        return f"{milliseconds * 1000:.0f} µs"
    if milliseconds < 1000:
        return f"{milliseconds:.1f} ms" if milliseconds < 100 else f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    return f"{seconds:.2f} s" if seconds < 60 else ago(seconds)


def ago(seconds: float | None) -> str:
    """A length of time in its two largest units at most."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"
    if seconds < 86400:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:02.0f} min"
    return f"{seconds // 86400:.0f} d {seconds % 86400 // 3600:.0f} h"


def count(number: float | None) -> str:
    if number is None:
        return "–"
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= size:
            return f"{number / (1e3 if unit == 'k' else size):.3g} {unit}"
    return f"{number:,.0f}" if float(number).is_integer() or abs(number) >= 100 else f"{number:.2g}"


def size(count_bytes: float | None) -> str:
    if count_bytes is None:
        return "–"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count_bytes) < 1000 or unit == "TB":
            return f"{count_bytes:.0f} {unit}" if unit == "B" else f"{count_bytes:.3g} {unit}"
        count_bytes /= 1000
    raise AssertionError


def clock(time: dt.datetime) -> str:
    """With milliseconds, in UTC, as everywhere."""
    return time.astimezone(dt.UTC).strftime("%H:%M:%S.%f")[:-3]


def plain(text: str) -> str:
    """Text from elsewhere, to stand within markdown as it is."""
    return _MARKDOWN.sub(r"\\\g<0>", " ".join(text.split()))
