"""The sign that a page shows older data, because the API does not answer."""

from __future__ import annotations

import datetime as dt

from frazil.dashboard.parts.component import component

_mount = component("freshness", '<div class="frame" role="status" data-testid="freshness" hidden></div>')


def show_freshness(updated_at: dt.datetime, reason: str, *, key: str) -> None:
    """Shows when the data was read, if there is a `reason` why it is not current, or while a request takes
    long.
    """
    updated_at = updated_at.astimezone(dt.UTC)
    _mount(
        key=key,
        data={
            "clock": f"{updated_at:%H:%M:%S}",
            "age_seconds": (dt.datetime.now(dt.UTC) - updated_at).total_seconds(),
            "reason": reason,
        },
        on_again_change=lambda: None,  # the click alone runs the fragment again
    )
