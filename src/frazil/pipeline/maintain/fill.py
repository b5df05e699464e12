"""Files whose promoted columns are missing, or were filled from other attributes, written again with them."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.manifest import DataFile

from frazil.lake.choose import Group
from frazil.lake.facts import all_facts
from frazil.lake.live import LiveFile
from frazil.pipeline.datafile import Layout
from frazil.pipeline.maintain.compact import Compaction
from frazil.pipeline.maintain.report import Task
from frazil.tables.promoted import fingerprint_of


class Filling(Compaction):
    """Rewrites each such file alone, with the reading, writing and commits of compaction; those of the newest
    days first, because most queries read them. What is committed is not done again: a run that was stopped
    goes on with the next.
    """

    task: Task = "fill"
    event = "promoted columns filled"

    def _groups(self, files: Sequence[LiveFile], now_seconds: float) -> list[Group]:
        unfilled = [each for each in files if is_unfilled(each.file, self._layout)]
        groups = [
            Group(facts.tenant, facts.day, (facts,), gain=1.0, closed=True)
            for facts in all_facts(unfilled, self._table)
        ]
        return sorted(groups, key=lambda group: (-(group.day or 0), group.files[0].path))


def is_unfilled(file: DataFile, layout: Layout) -> bool:
    """Whether some promoted column has its values only in the map."""
    if layout.fill.unfilled(fingerprint_of(file.file_path)):
        return True
    there = {*(file.value_counts or ()), *(file.column_sizes or ())}
    wanted = {field.field_id for field in layout.schema.fields if field.name in layout.fill.promoted}
    return bool(there) and not wanted <= there
