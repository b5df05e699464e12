"""What went wrong, in a line."""

from __future__ import annotations

from frazil.errors import FrazilError

_CHARACTERS_MAX = 600


def reason_of(error: BaseException) -> str:
    """Errors of other packages do not all say of themselves what they are, and some fill pages."""
    text = str(error) if isinstance(error, FrazilError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:_CHARACTERS_MAX]
