"""Where a page ends, and so where the next one begins.

Records have no id of their own. They are in order by time, exact nanoseconds, trace, span and a hash of all
that was sent. Records that are equal in all of that are the same in every way: of those a cursor counts how
many were shown.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import orjson

from frazil.errors import RequestInvalid
from frazil.serve.parameters import is_time

_VERSION = 1
_CHARS_MAX = 1_000
_INT64 = 2**63

Key = tuple[int, int, str, str, int]
"""Time in microseconds, nanoseconds, trace id, span id, hash."""


@dataclass(frozen=True)
class Cursor:
    begin: int
    end: int
    """The time range, fixed by the first page: `-15m` must not move on while someone reads."""
    question: str
    """A digest of the filters: a cursor means nothing to another question."""
    key: Key
    seen: int
    """How many records with just this key were shown."""

    def text(self) -> str:
        return urlsafe_b64encode(orjson.dumps([_VERSION, *astuple(self)])).rstrip(b"=").decode()

    @classmethod
    def parse(cls, text: str, question: str) -> Cursor:
        """RequestInvalid unless it is a cursor of this question."""
        try:
            version, begin, end, digest, key, seen = orjson.loads(_decoded(text))
            cursor = cls(begin, end, digest, _checked(key), seen)
        except (ValueError, TypeError):
            raise RequestInvalid(
                "the cursor is broken: send `next` of the page before as it is, or begin without one"
            ) from None
        numbers = (begin, end, seen, cursor.key[0])
        if version != _VERSION or not all(_is_int(number) for number in numbers) or seen < 1:
            raise RequestInvalid("the cursor is of another release; begin without one")
        if not all(is_time(micros) for micros in (begin, end, cursor.key[0])):
            raise RequestInvalid("the cursor is broken: it is of no time; begin without one")
        if digest != question:
            raise RequestInvalid(
                "the cursor belongs to another question: repeat all parameters of the first page beside it"
            )
        return cursor


def page_end(begin: int, end: int, question: str, keys: Sequence[Key], previous: Cursor | None) -> Cursor:
    last = keys[-1]
    seen = 0
    for key in reversed(keys):
        if key != last:
            break
        seen += 1
    if previous is not None and seen == len(keys) and previous.key == last:
        seen += previous.seen
    return Cursor(begin, end, question, last, seen)


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
