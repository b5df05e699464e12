"""The command `frazil erase`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from rich.console import Console

from frazil.config import Config
from frazil.errors import Refused
from frazil.pipeline.maintain.command import maintenance_lease, opened
from frazil.pipeline.maintain.erase.erase import EraseRequest, EverythingMatches, erase
from frazil.pipeline.maintain.erase.report import Erasure


def run(config: Config, request: EraseRequest, *, report: Path | None, json_output: bool) -> int:
    """Erases, prints the result and writes the report. Returns 1 if the erasure is not proven."""
    console = Console(stderr=True, highlight=False)
    if report is not None and not report.absolute().parent.is_dir():
        raise Refused(f"the report cannot be written: the folder {report.absolute().parent} does not exist")
    try:
        erasure = _erased(config, request, console)
    except EverythingMatches as error:
        if not console.is_terminal or not _agreed(console, error):
            raise
        erasure = _erased(config, dataclasses.replace(request, yes=True), console)
    as_json = json.dumps(erasure.as_dict(), indent=2)
    if report is not None:
        report.write_text(as_json + "\n")
        console.print(f"report written to {report}")
    print(as_json if json_output else erasure.text())
    return 0 if erasure.is_proven or erasure.dry_run else 1


def _agreed(console: Console, error: EverythingMatches) -> bool:
    console.print(str(error))
    return console.input("Erase all of it? Type yes: ").strip() == "yes"


def _erased(config: Config, request: EraseRequest, console: Console) -> Erasure:
    with opened(config) as (catalog, runner), maintenance_lease(config, console):
        if not console.is_terminal:
            return erase(config, catalog, request, runner)
        with console.status("starting") as status:
            return erase(config, catalog, request, runner, say=status.update)
