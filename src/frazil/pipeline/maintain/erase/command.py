"""`frazil erase`: asks where it must, says what it does, and leaves a report."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from frazil.config import Config
from frazil.errors import Refused
from frazil.pipeline.maintain.command import opened, our_turn
from frazil.pipeline.maintain.erase.erase import EverythingMatches, Request, erase
from frazil.pipeline.maintain.erase.report import Erasure


@dataclass(frozen=True)
class EraseOptions:
    tenant: str
    where: str
    tables: tuple[str, ...] = ()
    drop_tags: bool = False
    drop_set_aside: bool = False
    delete_kafka_records: bool = False
    yes: bool = False
    dry_run: bool = False
    report: Path | None = None
    json_output: bool = False

    @property
    def request(self) -> Request:
        return Request(
            tenant=self.tenant,
            where=self.where,
            tables=self.tables,
            drop_tags=self.drop_tags,
            drop_set_aside=self.drop_set_aside,
            delete_kafka_records=self.delete_kafka_records,
            yes=self.yes,
            dry_run=self.dry_run,
        )


def run(config: Config, options: EraseOptions) -> int:
    """1 if it could not be proven that nothing is left."""
    console = Console(stderr=True, highlight=False)
    if options.report is not None and not options.report.absolute().parent.is_dir():
        raise Refused(f"the report cannot be written: {options.report.absolute().parent} is not there")
    try:
        erasure = _erased(config, options.request, console)
    except EverythingMatches as error:
        if not console.is_terminal or not _agreed(console, error):
            raise
        erasure = _erased(config, dataclasses.replace(options.request, yes=True), console)
    as_json = json.dumps(erasure.as_dict(), indent=2)
    if options.report is not None:
        options.report.write_text(as_json + "\n")
        console.print(f"the report is in {options.report}")
    print(as_json if options.json_output else erasure.text())
    return 0 if erasure.is_proven or erasure.dry_run else 1


def _agreed(console: Console, error: EverythingMatches) -> bool:
    console.print(str(error))
    return console.input("Erase all of it? Type yes: ").strip() == "yes"


def _erased(config: Config, request: Request, console: Console) -> Erasure:
    with opened(config) as (catalog, runner), our_turn(config, console):
        if not console.is_terminal:
            return erase(config, catalog, request, runner)
        with console.status("looking") as status:
            return erase(config, catalog, request, runner, say=status.update)
