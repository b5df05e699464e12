"""Colours: one for each service everywhere, and different ones within a chart."""

from __future__ import annotations

import datetime as dt
import math
import re
from itertools import combinations, product
from operator import mul
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from frazil.dashboard import run, theme
from frazil.dashboard.pages import metrics
from frazil.dashboard.sql import chart as sql_chart
from frazil.dashboard.sql import quick_chart
from frazil.query.reads.metric_series import OTHERS, MetricRequest, MetricSeries
from frazil.query.reads.metrics import Metric
from frazil.query.reads.time_range import TimeRange

PALETTE = len(theme.SERVICE_COLOURS)
DISTANCE_MIN = 0.1
"""In OKLab. Two shades of one colour name are about 0.06 apart."""
BEGIN = dt.datetime(2026, 11, 15, 10, tzinfo=dt.UTC)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The services that any page has shown, as in a dashboard that has just started."""
    found: set[str] = set()
    monkeypatch.setattr(theme, "_known", found)
    return found


def range_of_metric(names: list[str], by: str | None) -> list[str]:
    metric = Metric("m", "gauge", "1", "", (), False, True, 1)
    range = TimeRange.between(BEGIN, BEGIN + dt.timedelta(hours=1))
    drawn = [MetricSeries(name, ((BEGIN, 1.0),)) for name in names]
    spec = metrics._chart(drawn, MetricRequest(metric, "mean", range), "", by).to_dict()
    colours: list[str] = spec["layer"][0]["encoding"]["color"]["scale"]["range"]
    return colours


def range_of_sql(names: list[str], column: str) -> list[str]:
    table = pa.table({"x": [1.0] * len(names), "y": [2.0] * len(names), column: names})
    choice = quick_chart.Choice("points", "x", "y", column)
    spec = sql_chart._chart(table, choice, quick_chart.columns(table)).to_dict()
    colours: list[str] = spec["encoding"]["color"]["scale"]["range"]
    return colours


def services(count: int) -> list[str]:
    return [f"service-{number}" for number in range(count)]


def test_all_services_of_a_legend_differ_while_there_are_enough_colours() -> None:
    """Whatever else is known: hundreds of services share the colours."""
    assert sorted(theme.service_colours(services(PALETTE)).values()) == sorted(theme.SERVICE_COLOURS)
    theme.service_colours(services(300))
    random = Random(7)
    for count in range(1, PALETTE + 1):
        for _ in range(20):
            shown = random.sample(services(300), count)
            assert len(set(theme.service_colours(shown).values())) == count


def test_the_order_in_which_services_are_seen_does_not_change_their_colours(known: set[str]) -> None:
    """Each start of the dashboard sees its pages in another order, and each page other services."""
    random, found = Random(7), []
    for _ in range(20):
        known.clear()
        names = random.sample(services(PALETTE), PALETTE)
        while names:
            size = random.randint(1, 5)
            theme.service_colours(names[:size])
            names = names[size:]
        found.append(theme.service_colours(services(PALETTE)))
    assert all(colours == found[0] for colours in found)


def test_a_service_has_its_colour_whichever_services_are_shown_with_it() -> None:
    whole = theme.service_colours(services(PALETTE))
    random = Random(7)
    for _ in range(50):
        shown = random.sample(services(PALETTE), random.randint(1, PALETTE))
        assert theme.service_colours(shown) == {name: whole[name] for name in shown}


def test_a_new_service_changes_no_colour_but_where_two_were_the_same_by_name(known: set[str]) -> None:
    """At most the colours of services that did not have that of their name, and one that loses it."""
    by_name = {name: theme.series_colours([name])[name] for name in services(PALETTE)}
    for count in range(1, PALETTE):
        known.clear()
        before, after = theme.service_colours(services(count)), theme.service_colours(services(count + 1))
        had_own = [name for name in before if before[name] == by_name[name]]
        assert sum(after[name] != before[name] for name in had_own) <= 1


def test_a_service_has_the_same_colour_on_all_pages() -> None:
    names = services(8)
    known = [theme.service_colours(names)[name] for name in names]
    assert range_of_metric(names, "service") == known
    assert range_of_sql(names, "service_name") == known
    assert theme.colour_scale(names).to_dict()["range"] == known


def test_only_services_are_remembered(known: set[str]) -> None:
    names = [f"/path/{number}" for number in range(8)]
    for drawn in (range_of_metric(names, "http.route"), range_of_sql(names, "route")):
        assert len(set(drawn)) == len(names), "two lines of a chart have one colour"
        assert set(drawn) <= set(theme.SERVICE_COLOURS)
    range_of_metric(["shop.orders"], None)
    assert range_of_metric([OTHERS], "service") == [theme.QUIET]
    assert known == set()


def test_a_series_alone_has_the_colour_of_its_name() -> None:
    assert range_of_metric(["/a"], "http.route") == range_of_sql(["/a"], "route")


def test_values_of_a_group_differ_to_the_eye() -> None:
    for names in (["eu", "us"], ["a", "b", "c"], ["GET", "POST"], ["true", "false"]):
        drawn = range_of_metric(names, "region")
        assert min(distance(*pair) for pair in combinations(drawn, 2)) >= DISTANCE_MIN


def test_more_services_than_are_remembered_have_colours_too(
    known: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(theme, "_KNOWN_MAX", 3)
    first = theme.service_colours(services(40))
    assert known == set()
    assert set(first.values()) == set(theme.SERVICE_COLOURS)
    assert theme.service_colours(first) == first


def test_colours_are_legible_on_both_backgrounds_and_differ_to_the_eye() -> None:
    for colour in theme.SERVICE_COLOURS:
        for ground in (run._LIGHT["backgroundColor"], run._DARK["backgroundColor"]):
            assert contrast(colour, ground) >= 3, "the contrast that WCAG requires of graphics"
    reserved = [theme.BAD, theme.CAUTION]
    pairs = [*combinations(theme.SERVICE_COLOURS, 2), *product(theme.SERVICE_COLOURS, reserved)]
    assert min(distance(*pair) for pair in pairs) >= DISTANCE_MIN


def test_coloured_text_of_logs_can_be_read_on_both_backgrounds() -> None:
    """The names of services and levels, which are small: colours are mixed with the colour of the text."""
    style = (Path(theme.__file__).parent / "parts" / "records.css").read_text()
    for name, colours in (("service", theme.SERVICE_COLOURS), ("level", theme.SEVERITY_COLOURS.values())):
        rule = rf"\.{name} \{{[^}}]*color: color-mix\(in srgb, var\(--tint\) (\d+)%, var\(--st-text-color\)\)"
        found = re.search(rule, style)
        assert found is not None, name
        for colour, look in product(colours, (run._LIGHT, run._DARK)):
            text = mixed(colour, look["textColor"], int(found[1]) / 100)
            for ground in (look["backgroundColor"], look["secondaryBackgroundColor"]):
                assert contrast(text, ground) >= 4.5, f"{name} {colour}: less than WCAG requires of text"


def mixed(one: str, other: str, share: float) -> str:
    parts = ((int(colour[at : at + 2], 16) for colour in (one, other)) for at in (1, 3, 5))
    return "#" + "".join(f"{round(first * share + second * (1 - share)):02x}" for first, second in parts)


def linear(colour: str) -> list[float]:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def contrast(one: str, other: str) -> float:
    light = [sum(map(mul, (0.2126, 0.7152, 0.0722), linear(colour))) + 0.05 for colour in (one, other)]
    return max(light) / min(light)


def distance(one: str, other: str) -> float:
    return math.dist(oklab(one), oklab(other))


def oklab(colour: str) -> list[float]:
    to_cones = (
        (0.4122214708, 0.5363325363, 0.0514459929),
        (0.2119034982, 0.6806995451, 0.1073969566),
        (0.0883024619, 0.2817188376, 0.6299787005),
    )
    to_lab = (
        (0.2104542553, 0.7936177850, -0.0040720468),
        (1.9779984951, -2.4285922050, 0.4505937099),
        (0.0259040371, 0.7827717662, -0.8086757660),
    )
    cones = [sum(map(mul, row, linear(colour))) ** (1 / 3) for row in to_cones]
    return [sum(map(mul, row, cones)) for row in to_lab]
