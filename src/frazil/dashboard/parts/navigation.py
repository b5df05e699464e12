"""Components without content: the Back button, and the scroll position of pages that open what they list."""

from __future__ import annotations

from frazil.dashboard.parts.component import component

_history = component("history", "<span></span>")
_scroll = component("scroll", "<span></span>")


def one_history_entry_per_action() -> None:
    """Makes each action of the user one step of the Back button, however many parameters it changes."""
    _history(key="unseen_history")


def keep_scroll_position(parameter: str, opened: str) -> None:
    """Shows what is opened from its top, and the list (`opened` is empty) where the user left it. Call it
    before the page draws anything else. `parameter` is the one of the URL that says what is opened.
    """
    _scroll(key="unseen_scroll", data={"parameter": parameter, "opened": opened})
