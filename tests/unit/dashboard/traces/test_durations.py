"""The chart of durations: one rectangle per cell of the API's response."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from frazil.dashboard.time_range import parse_range
from frazil.dashboard.traces.durations import _ticks, cells, chart
from frazil.query.reads.trace_durations import BINS_MS
from frazil.serve.parameters import duration

BEGIN = dt.datetime(2026, 11, 15, 10, 0, 20, tzinfo=dt.UTC)
END = BEGIN + dt.timedelta(minutes=3)


def response(*found: dict[str, Any]) -> dict[str, Any]:
    return {
        "from": BEGIN.isoformat(),
        "to": END.isoformat(),
        "first_bucket": "2026-11-15T10:00:00.000000Z",
        "bucket_seconds": 60,
        "bins_ms": list(BINS_MS),
        "cells": [
            {"bucket": 1, "bin": 31, "traces": 4, "errors": 0, "longest_ms": 120.0} | cell for cell in found
        ],
        "total": 4,
    }


def test_a_cell_is_as_wide_as_its_bucket_and_as_high_as_its_bin() -> None:
    (cell,) = cells(response({})).to_dict("records")
    assert (cell["start"], cell["end"]) == (
        BEGIN.replace(minute=1, second=0),
        BEGIN.replace(minute=2, second=0),
    )
    assert (cell["low"], cell["high"]) == (100, 150)
    assert (cell["duration"], cell["longest"]) == ("100 ms to 150 ms", "120 ms")


def test_the_first_and_the_last_bucket_end_with_the_range() -> None:
    first, last = cells(response({"bucket": 0}, {"bucket": 3})).to_dict("records")
    assert (first["start"], last["end"]) == (BEGIN, END)


def test_every_bin_has_a_height_on_a_logarithmic_axis() -> None:
    found = cells(response(*({"bin": bin, "longest_ms": BINS_MS[bin]} for bin in range(len(BINS_MS)))))
    assert (found["low"] > 0).all()
    assert (found["high"] > found["low"]).all()


def test_the_red_part_of_a_cell_is_the_share_of_its_errors() -> None:
    none, some, all_ = cells(response({}, {"errors": 1}, {"errors": 4})).to_dict("records")
    assert none["failed_end"] == none["start"]
    assert some["failed_end"] - some["start"] == dt.timedelta(seconds=15)
    assert all_["failed_end"] == all_["end"]


def test_a_cell_names_its_time_range_and_shortest_duration_as_the_controls_read_them() -> None:
    (cell,) = cells(response({})).to_dict("records")
    assert parse_range(cell["range"]).bounds() == (cell["start"], cell["end"])
    assert cell["at_least"] == "100ms"
    typed = cells(response(*({"bin": bin} for bin in range(len(BINS_MS)))))["at_least"].tolist()
    assert typed[0] == ""
    assert [duration("duration_min", text) for text in typed[1:]] == [round(ms * 1e6) for ms in BINS_MS[1:]]


def test_the_axis_is_the_whole_range_though_only_a_part_has_traces() -> None:
    layer = chart(response({})).to_dict()["layer"][0]
    days = layer["encoding"]["x"]["scale"]["domain"]
    assert [(day["minutes"], day["seconds"]) for day in days] == [(0, 20), (3, 20)]


@pytest.mark.parametrize(
    ("lowest", "highest", "ticks"),
    [
        (60, 300, [100, 200]),
        (9, 120, [10, 20, 50, 100]),
        (3, 15_000, [10, 100, 1000, 10_000]),
        (0.0003, 2_000_000, [10.0**power for power in range(-3, 7)]),
    ],
)
def test_ticks_are_round_durations(lowest: float, highest: float, ticks: list[float]) -> None:
    assert _ticks(lowest, highest) == pytest.approx(ticks)
