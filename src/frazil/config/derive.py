"""Configuration of derived tables, and of views: those that users declare in SQL."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from frazil.config.maintain import DAY_SECONDS
from frazil.config.values import MIB, Bytes, Seconds, Section, attribute_names, bad_value

_ATTRIBUTES_MAX = 20
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}\Z")


def _view_name(text: str) -> str:
    if not _NAME.match(text):
        raise bad_value(
            "must be the name of a view: 1 to 63 characters of a-z 0-9 _, starting with a letter",
            "for example checkout_by_region",
        )
    return text


ViewName = Annotated[str, AfterValidator(_view_name)]


def _few_attributes(value: Any) -> Any:
    names = () if value in ([], ()) else attribute_names(value)
    if len(names) > _ATTRIBUTES_MAX:
        raise bad_value(f"contains {len(names)} attributes", f"at most {_ATTRIBUTES_MAX} are counted")
    return names


FewAttributes = Annotated[tuple[str, ...], BeforeValidator(_few_attributes)]
CARDINALITY_TABLE = "metric_cardinality"
"""The derived table that exists to count the attributes in `derive.cardinality_attributes`."""


class DeriveConfig(Section):
    enabled: bool = Field(
        True,
        description="Derive rollups and summaries from logs, spans and metrics. Costs about as much CPU as "
        "landing.",
    )
    disabled_tables: tuple[str, ...] = Field(
        (),
        description="Derived tables that are not written. Their rows stay. When a table is enabled again, "
        "what it missed is derived in the background.",
        examples=[["log_rollups"]],
    )
    cardinality_attributes: FewAttributes = Field(
        (),
        description="Attributes of metrics (of points, or else of the resource) whose distinct values are "
        "counted by metric, hour and day in the table `metric_cardinality`. Without any it is not derived. "
        "Each costs a lookup per series and hour in each task, and at most 2,048 rows per metric and hour. "
        "One that is added is counted from then on; `frazil backfill metric_cardinality` counts past days.",
        examples=[["user.id", "k8s.pod.name"]],
    )
    interval_seconds: Seconds = Field(
        60,
        gt=0,
        description="Average time between two rounds of one source, at least. A round starts when data has "
        "landed. Each costs a Spark job (about half a second of CPU) and a commit per table.",
    )
    series_per_day_max: int = Field(
        1_000_000,
        ge=1,
        description="Maximum series of one tenant in the table `series` on one day (UTC). Others "
        "are not written there; their points stay in `metrics` and `metric_rollups`. Costs up to 100 "
        "bytes of memory per series in a task, while a tenant is near the maximum.",
    )
    view_groups_max: int = Field(
        100_000,
        ge=1,
        description="Maximum groups (rows of the result) of one view in one round. A view with more stops "
        "until the pipeline starts again or the view's SQL changes. A past day may have 24 times as many.",
    )
    unmatched_spans_per_day_max: int = Field(
        1_000_000,
        ge=0,
        description="Maximum spans of one tenant in `service_edges` on one day (UTC) that wait for the other "
        "side of their call. Others do not wait: those of clients are calls to a queue or host at once. "
        "Until a day is settled, a query that reads it takes 0.5 s of CPU per million.",
    )
    batch_bytes_max: Bytes = Field(
        512 * MIB,
        ge=1 * MIB,
        description="Maximum bytes of data files that one round reads. More takes several rounds.",
    )
    task_bytes_max: Bytes = Field(
        32 * MIB,
        ge=1 * MIB,
        description="Maximum bytes of data files that one Spark task reads. Landing waits for at most one "
        "task, about two seconds at the default.",
    )

    def is_off(self, table: str) -> bool:
        """Returns whether a derived table is not derived while others may be."""
        needs_attributes = table == CARDINALITY_TABLE and not self.cardinality_attributes
        return table in self.disabled_tables or needs_attributes


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
