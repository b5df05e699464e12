"""What a merge holds in memory follows the size of a row group, however many files it reads."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from bench.payloads import MAKERS

from frazil.tables import SIGNALS, Signal
from tests.components.memory import memory_folder
from tests.components.process import dies_with_parent
from tests.unit.pipeline.maintain.test_merge import NOON, landed, layout_of, rows_of

FILES, ROWS = 240, 300
ROW_GROUPS = 10
ROW_GROUPS_HELD = 10
"""Arrow's own peak, as a multiple of a row group as Parquet counts its bytes. Measured: 5 to 7, and over 90
with all files open. Decoded rows take two to three times as much, and are held beside their copy in order.
"""

_CHILD = """
import json, pickle, sys
import pyarrow as pa
from frazil.pipeline.maintain.merge import sorted_runs
from frazil.pipeline.maintain.merge.merge import Merge, MergeSettings, merge

layout, files, day, row_group_bytes, open_max = pickle.load(open(sys.argv[1], "rb"))
sorted_runs._OPEN_MAX = open_max or sorted_runs._OPEN_MAX
result = merge(layout, Merge(tuple(files), "acme", day), MergeSettings(2**30, row_group_bytes, 3, False))
peak = pa.default_memory_pool().max_memory()
print(json.dumps({"peak": peak, "rss": result.rss_bytes, "rows": result.rows}))
"""


def merged_apart(folder: Path, *job: Any) -> dict[str, int]:
    """In a process that has done nothing else."""
    (folder / "job").write_bytes(pickle.dumps(job))
    command = dies_with_parent([sys.executable, "-c", _CHILD, str(folder / "job")])
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("signal", SIGNALS)
def test_hundreds_of_inputs_take_a_few_row_groups_of_memory(signal: Signal) -> None:
    rng = np.random.default_rng(1)
    with memory_folder() as folder:
        layout = layout_of(folder, signal)
        bodies = [MAKERS[signal](number, ROWS) for number in range(4)]
        files = [
            landed(
                layout,
                rows_of(layout, bodies[number % 4], f"s/{number}", NOON + rng.integers(0, 10**7, ROWS)),
            )
            for number in range(FILES)
        ]
        size = sum(pq.read_metadata(file.file_path).row_group(0).total_byte_size for file in files)
        row_group = size // ROW_GROUPS
        day = files[0].partition[1]
        found = merged_apart(folder, layout, files, day, row_group, 0)
        assert found["rows"] == sum(file.record_count for file in files)
        assert found["peak"] < ROW_GROUPS_HELD * row_group, f"{found['peak'] / row_group:.1f} row groups"
        if layout.spec.merged_as == "sorted":  # the test sees it if all are open at once
            at_once = merged_apart(folder, layout, files, day, row_group, FILES)
            assert at_once["peak"] > ROW_GROUPS_HELD * row_group
