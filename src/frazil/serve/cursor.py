"""The cursor of a page of records: where the next page begins, and the search that it belongs to."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import Any

import orjson

from frazil.errors import RequestInvalid
from frazil.query.reads.records import Key, PageEnd
from frazil.query.reads.time_range import TimeRange, is_time

_VERSION = 2
_CHARS_MAX = 1_000
_INT64 = 2**63


@dataclass(frozen=True)
class Cursor:
    range: TimeRange
    """The time range of the first page: `-15m` must not advance between pages."""
    search: str
    """A digest of the search: a cursor is valid only for the search that it came from."""
    after: PageEnd

    def text(self) -> str:
        parts = [self.range.begin, self.range.end, self.search, self.after.key, self.after.seen]
        return urlsafe_b64encode(orjson.dumps([_VERSION, *parts])).rstrip(b"=").decode()

    @classmethod
    def parse(cls, text: str, search: str) -> Cursor:
        """Raises RequestInvalid unless the text is a cursor of this search."""
        try:
            version, begin, end, digest, key, seen = orjson.loads(_decoded(text))
            cursor = cls(TimeRange(begin, end), digest, PageEnd(_checked(key), seen))
        except (ValueError, TypeError):
            raise RequestInvalid(
                "the cursor is invalid: send `next` of the previous page unchanged, or start without a cursor"
            ) from None
        numbers = (begin, end, seen, cursor.after.key[0])
        if version != _VERSION or not all(_is_int(number) for number in numbers) or seen < 1:
            raise RequestInvalid("the cursor is from another release: start without a cursor")
        if not all(is_time(micros) for micros in (begin, end, cursor.after.key[0])):
            raise RequestInvalid("the cursor is invalid: its time is out of range; start without a cursor")
        if digest != search:
            raise RequestInvalid(
                "the cursor belongs to another search: repeat all parameters of the first page"
            )
        return cursor


def _decoded(text: str) -> bytes:
    if len(text) > _CHARS_MAX:
        raise ValueError
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _checked(key: Any) -> Key:
    time, nanos, trace, span, hashed = key
    numbers = _is_int(time) and _is_int(nanos) and type(hashed) is int and 0 <= hashed < 2 * _INT64
    if not numbers or not isinstance(trace, str) or not isinstance(span, str):
        raise ValueError
    return time, nanos, trace, span, hashed


def _is_int(value: Any) -> bool:
    return type(value) is int and -_INT64 <= value < _INT64
