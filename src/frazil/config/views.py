"""Configuration of views: derived tables that users declare in SQL."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from frazil.config.maintain import DAY_SECONDS
from frazil.config.values import Seconds, Section, bad_value

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}\Z")


def _view_name(text: str) -> str:
    if not _NAME.match(text):
        raise bad_value(
            "must be the name of a view: 1 to 63 characters of a-z 0-9 _, starting with a letter",
            "for example checkout_by_region",
        )
    return text


ViewName = Annotated[str, AfterValidator(_view_name)]


class ViewConfig(Section):
    sql: Path = Field(
        description="File with the view's SELECT, relative to the configuration file.",
        examples=["views/checkout_by_region.sql"],
    )
    kept: Seconds = Field(
        90 * DAY_SECONDS,
        ge=DAY_SECONDS,
        description="How long rows are kept, in whole days.",
        examples=["90d"],
    )

    @property
    def kept_days(self) -> int:
        return math.ceil(self.kept / DAY_SECONDS)
