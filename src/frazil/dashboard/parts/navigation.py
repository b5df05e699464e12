"""Components without content: the Back button, and the scroll position of the Traces page."""

from __future__ import annotations

from frazil.dashboard.parts.component import component

_history = component("history", "<span></span>")
_scroll = component("scroll", "<span></span>")


def one_history_entry_per_action() -> None:
    """Makes each action of the user one step of the Back button, however many parameters it changes."""
    _history(key="unseen_history")


def keep_scroll_position(trace: str) -> None:
    """Shows a trace from its top, and the list (no `trace`) where the user left it. Call it before the page
    draws anything else.
    """
    _scroll(key="unseen_scroll", data={"trace": trace})
