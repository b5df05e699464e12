"""How each task of maintenance ended when it last ran, on each table."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from frazil.status.model import MaintainStage
from frazil.status.samples import Samples


class LastRuns:
    """Roles only count. Which outcome was counted last shows whether a failure is still one: a task may run
    every minute or once a day, so no span of time would tell.
    """

    def __init__(self) -> None:
        self._failing: set[tuple[str, str]] = set()

    def take(self, grown: Samples) -> None:
        """What was counted since the last look. A task that both failed and went well within it is well."""
        outcomes: dict[tuple[str, str], set[str]] = defaultdict(set)
        for labels, number in grown.get("frazil_maintain_runs_total", {}).items():
            said = dict(labels)
            if number > 0 and {"task", "table", "outcome"} <= said.keys():
                outcomes[said["task"], said["table"]].add(said["outcome"])
        for run, ended in outcomes.items():
            if ended == {"failed"}:
                self._failing.add(run)
            else:
                self._failing.discard(run)

    def of(self, stage: MaintainStage) -> MaintainStage:
        """The stage, with what its tasks fail on."""
        tasks = {
            name: replace(task, failing=sorted(table for failing, table in self._failing if failing == name))
            for name, task in stage.tasks.items()
        }
        return replace(stage, tasks=tasks)
