"""One screen of a terminal: what is red on it."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from frazil.client.status_screen import render_status
from tests.unit.status.test_watcher import Story, pipeline

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
