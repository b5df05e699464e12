"""One screen of a terminal: what is red on it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from frazil.client.status_screen import render_status
from frazil.tables import derived_specs
from tests.unit.status.test_watcher import Said, Story, deriving, pipeline

RED = "\x1b[31m"


@pytest.mark.parametrize("is_red", [True, False])
def test_a_task_is_red_until_it_succeeds_again(is_red: bool) -> None:
    story = Story().look(pipeline()).look(pipeline(failing=1)).look(pipeline(failing=int(is_red)))
    out = io.StringIO()
    Console(file=out, width=160, force_terminal=True, color_system="standard").print(
        render_status(story.status)
    )
    (said,) = (line for line in out.getvalue().splitlines() if "compact" in line)
    assert "(1 failed" in said
    assert (f"{RED} (1 failed" in said) == is_red
    assert ("logs" in said) == is_red


def said_of_derivation(*roles: Said) -> str:
    out = io.StringIO()
    Console(file=out, width=160).print(render_status(Story().look(*roles).status))
    _, _, rest = out.getvalue().partition("\nderivation ")
    return " ".join(rest.partition("\nmaintenance")[0].split())


@pytest.mark.parametrize(
    ("role", "said"),
    [
        (deriving(), f"1 of {len(derived_specs())} tables up to date, lag 0"),
        (deriving(failing=1, problem="no such column"), "log_rollups failing: no such column"),
        (deriving(failing=1), "log_rollups failing: see the log"),
        (deriving(days=3), "log_rollups: 3 past days left"),
        (deriving(days=1), "log_rollups: 1 past day left"),
        (deriving(age=600), "log_rollups is 10 min 0 s behind"),
        (deriving(committed=0), "waiting for first data: log_rollups"),
        (deriving(off=1), "off: log_rollups"),
        (deriving("series", limited=2), "series: 2 tenants at the limit"),
        (
            deriving("service_edges", unmatched=999_999),
            "service_edges: a tenant has 99 % of derive.unmatched_spans_per_day_max today",
        ),
        (pipeline(), "–"),
    ],
)
def test_derivation_is_one_line_and_one_more_for_each_table_that_needs_it(role: Said, said: str) -> None:
    assert said in said_of_derivation(role)


def test_derivation_that_is_off_says_so() -> None:
    parts = [deriving(spec.name, off=1).text for spec in derived_specs()]
    assert said_of_derivation(Said("pipeline", "\n".join(parts))) == "off"
