"""Steps of time for charts: widths that people read easily."""

from __future__ import annotations

_WIDTHS_SECONDS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800,
    3600, 2 * 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400, 7 * 86400,
)  # fmt: skip


def width_seconds(length_seconds: float, buckets_max: int = 60) -> int:
    """The narrowest that has no more than `buckets_max` within the length."""
    for width in _WIDTHS_SECONDS:
        if length_seconds / width <= buckets_max:
            return width
    return _WIDTHS_SECONDS[-1]
