"""The commands `frazil tag create`, `frazil erase` and `frazil backfill`: in the active pipeline, or on a
Spark of their own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from frazil.config import Config
from frazil.errors import Refused
from frazil.pipeline.control.client import Say, in_pipeline
from frazil.pipeline.control.protocol import Operation
from frazil.pipeline.derive.request import BackfillRequest
from frazil.pipeline.maintain.erase.request import EraseRequest, EverythingMatches
from frazil.pipeline.maintain.show import output, print_tags


def tag_create(config: Config, name: str, *, api_key: str | None, json_output: bool) -> int:
    tagged = _run(config, "tag", {"name": name}, api_key)
    if json_output:
        print(json.dumps(tagged))
        return 0
    print_tags([tagged])
    output().print(f"\nquery it:  frazil query --as-of tag:{name} …")
    return 0


def erase(
    config: Config, request: EraseRequest, *, api_key: str | None, report: Path | None, json_output: bool
) -> int:
    """Erases, prints the result and writes the report. Returns 1 if the erasure is not proven, or if it would
    be refused without --dry-run.
    """
    console = Console(stderr=True, highlight=False)
    if report is not None and not report.absolute().parent.is_dir():
        raise Refused(f"the report cannot be written: the folder {report.absolute().parent} does not exist")
    try:
        found = _run(config, "erase", dataclasses.asdict(request), api_key)
    except EverythingMatches as error:
        if not console.is_terminal or not _agreed(console, error):
            raise
        found = _run(config, "erase", dataclasses.asdict(request) | {"yes": True}, api_key)
    as_json = json.dumps(found["report"], indent=2)
    if report is not None:
        report.write_text(as_json + "\n")
        console.print(f"report written to {report}")
    print(as_json if json_output else found["text"])
    return 0 if found["ok"] else 1


def backfill(config: Config, request: BackfillRequest, *, api_key: str | None, json_output: bool) -> int:
    """Derives past days again and prints the result. Returns 1 if it would be refused without --dry-run."""
    found = _run(config, "backfill", dataclasses.asdict(request), api_key)
    print(json.dumps(found["report"]) if json_output else found["text"])
    return 0 if found["ok"] else 1


def _agreed(console: Console, error: EverythingMatches) -> bool:
    console.print(str(error))
    return console.input("Erase all of it? Type yes: ").strip() == "yes"


def _run(
    config: Config, operation: Operation, body: Mapping[str, Any], api_key: str | None
) -> dict[str, Any]:
    with _progress() as say:
        found = in_pipeline(config, operation, body, api_key, say)
        if found is not None:
            return found
        say("no active pipeline found; starting Spark")
        from frazil.pipeline.control.operations import Workplace, perform
        from frazil.pipeline.maintain.command import opened
        from frazil.pipeline.metrics import Metrics

        with opened(config) as (catalog, runner):
            return perform(operation, body, Workplace(config, catalog, runner, Metrics()), say)


@contextlib.contextmanager
def _progress() -> Iterator[Say]:
    """Prints a line with the elapsed seconds for each step of the work."""
    console, begin = Console(stderr=True, highlight=False), time.monotonic()
    yield lambda text: console.print(f"{time.monotonic() - begin:5.1f} s  {text}", style="dim", markup=False)
