"""A declaration of a derived table that cannot be kept is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from frazil.tables import landed_spec
from frazil.tables.derived.span_metrics import SPAN_METRICS

KEY = SPAN_METRICS.sort_by


def with_resolution(**change: Any) -> dict[str, Any]:
    return {
        "columns": tuple(
            replace(column, **change) if column.name == "resolution" else column
            for column in SPAN_METRICS.columns
        )
    }


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sort_by": KEY[1:]}, "must be sorted by its key"),
        ({"merged_as": "time_ordered"}, "must be sorted by its key"),
        ({"sort_by": (*KEY[1:], KEY[0])}, "must be sorted by resolution first"),
        (with_resolution(tier="warm"), "must be sorted by resolution first, a required and hot column"),
        (with_resolution(required=False), "must be sorted by resolution first, a required and hot column"),
    ],
)
def test_files_of_a_derived_table_must_have_equal_keys_next_to_each_other(
    change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(SPAN_METRICS, **change)


def test_files_of_tables_with_several_resolutions_are_split() -> None:
    assert SPAN_METRICS.is_split_by_resolution
    assert not landed_spec("spans").is_split_by_resolution
    assert SPAN_METRICS.derived is not None
    hourly = replace(SPAN_METRICS, derived=replace(SPAN_METRICS.derived, resolutions=(3600,)))
    assert not hourly.is_split_by_resolution
