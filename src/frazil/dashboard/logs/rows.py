"""Log records as rows of a list: their keys, and their text on one line."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from frazil.times import EPOCH, micros_of

Record = Mapping[str, Any]
RecordsByKey = dict[str, Record]
"""In the order of the list."""

_LINE_CHARS_MAX = 600
_MARK_BEGIN, _MARK_END = "\x02", "\x03"
_CONTROL = {ord(_MARK_BEGIN): None, ord(_MARK_END): None, ord("\n"): " ↵ ", ord("\r"): None, ord("\t"): " "}


def micros(record: Record) -> int:
    return micros_of(dt.datetime.fromisoformat(record["time"]))


def by_key(records: Iterable[Record]) -> RecordsByKey:
    """Returns the records by key. A key is the record's time and a hash of the record, so it is stable across
    responses. Further copies of an identical record get a number.
    """
    seen: Counter[str] = Counter()
    found: RecordsByKey = {}
    for record in records:
        digest = hashlib.blake2b(orjson.dumps(record, option=orjson.OPT_SORT_KEYS), digest_size=6).hexdigest()
        key = f"{micros(record)}-{digest}"
        seen[key] += 1
        found[key if seen[key] == 1 else f"{key}-{seen[key]}"] = record
    return found


def with_linked(records: RecordsByKey, linked: RecordsByKey) -> RecordsByKey:
    """Adds the linked records, ordered by time."""
    return dict(sorted((records | linked).items(), key=lambda item: str(item[1]["time"]), reverse=True))


def time_of_key(key: str) -> dt.datetime | None:
    """Returns the time of the record with this key, or None if the key is invalid."""
    try:
        return EPOCH + dt.timedelta(microseconds=int(key.split("-")[0]))
    except (ValueError, OverflowError):
        return None


def body_text(body: Any) -> str:
    """Returns a string as it is, and other values as JSON."""
    if isinstance(body, str):
        return body
    return "" if body is None else orjson.dumps(body).decode()


def compact(body: Any) -> str:
    """Returns the body on one line: for a map its message first, then the other entries."""
    if not isinstance(body, Mapping):
        return body_text(body)
    message = next((name for name in ("message", "msg") if isinstance(body.get(name), str)), None)
    pairs = [f"{key}={body_text(value)}" for key, value in body.items() if key != message]
    return "  ".join([body[message], *pairs] if message is not None else pairs)


def line(record: Record) -> str:
    """Returns the body on one line, else the event's name, else the attributes."""
    text = compact(record.get("body")) or record.get("event_name") or compact(record.get("attributes"))
    return str(text)[:_LINE_CHARS_MAX].translate(_CONTROL).strip()


def highlighted(lines: Sequence[str], pattern: str | None) -> list[list[str]]:
    """Splits each line into parts that alternately do not match and match. Uses RE2, like the API: its time
    is linear in the text for any pattern.
    """
    if not pattern or not lines:
        return [[text] for text in lines]
    try:
        found = pc.replace_substring_regex(
            pa.array(lines, pa.string()),
            pattern=f"({pattern})",
            replacement=f"{_MARK_BEGIN}\\1{_MARK_END}",
        ).to_pylist()
    except pa.ArrowInvalid:  # the API reports the error
        return [[text] for text in lines]
    return [text.replace(_MARK_END, _MARK_BEGIN).split(_MARK_BEGIN) for text in found]


def rows(records: RecordsByKey, pattern: str | None, *, with_date: bool = False) -> list[dict[str, Any]]:
    lines = highlighted([line(record) for record in records.values()], pattern)
    return [
        {
            "key": key,
            "time": _format_time(record["time"], with_date),
            "severity": record.get("severity_number"),
            "service": record.get("service_name") or "",
            "text": text,
        }
        for (key, record), text in zip(records.items(), lines, strict=True)
    ]


def _format_time(time: str, with_date: bool) -> str:
    return f"{time[5:10]} {time[11:23]}" if with_date else time[11:23]
