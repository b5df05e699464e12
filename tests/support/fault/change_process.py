"""Changes of a table in processes that can be killed; `ChangeProcess` controls them. It lands too."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import structlog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from frazil.config import Config
from frazil.lake.catalog import open_catalog
from frazil.lake.commits.commit import Committer
from frazil.lake.commits.manifests import rewrite_manifests
from frazil.lake.live_files import live_files
from frazil.lake.state.recover import recover_tables
from frazil.pipeline.datafile import Layout, write_part
from frazil.pipeline.partition_sort import Part
from frazil.position import Removed, landing_position
from frazil.tables import landed_spec
from tests.support.fault import land_process
from tests.support.fault.forks import say_facts, serve
from tests.support.fault.land_process import LandProcess, Outcome
from tests.support.fault.land_wal import STREAMS

ERASED = STREAMS[0]
"""All rows of this stream go."""


class ChangeProcess(LandProcess):
    module = "tests.support.fault.change_process"

    def change(self, data_dir: Path, what: str) -> Outcome:
        """One of `CHANGES`, done whether or not it was done before."""
        return self._run(what, data_dir, {})


def _replace(committer: Committer, table: Table) -> None:
    """Each partition becomes one file."""
    parts: dict[tuple[Any, ...], list[DataFile]] = {}
    for each in live_files(table):
        parts.setdefault((each.file.partition[0], each.file.partition[1]), []).append(each.file)
    removed = [file for files in parts.values() for file in files]
    added = [
        _written(table, files[0], pa.concat_tables(_rows(table, file) for file in files))
        for files in parts.values()
    ]
    committer.replace(table, removed, added)


def erase(
    committer: Committer, table: Table, prefix: str, *, count: Callable[[Removed], Removed] = dict
) -> None:
    """Files with rows from such sources are written anew without them. `count` says what is counted of it."""
    removed, added, gone = [], [], Counter[str]()
    for each in live_files(table):
        rows = _rows(table, each.file)
        mask = pc.starts_with(rows["_segment"], prefix)
        if not pc.any(mask).as_py():
            continue
        removed.append(each.file)
        gone.update(rows.filter(mask)["_segment"].to_pylist())
        kept = rows.filter(pc.invert(mask))
        if kept.num_rows:
            added.append(_written(table, each.file, kept))
    if removed:
        committer.overwrite(
            table, removed, added, lambda text: landing_position(text).with_removed(count(gone)).to_text()
        )


def _rows(table: Table, file: DataFile) -> pa.Table:
    with table.io.new_input(file.file_path).open() as stream:
        return pq.ParquetFile(stream).read().cast(landed_spec("logs").arrow_schema)


def _written(table: Table, like: DataFile, rows: pa.Table) -> DataFile:
    layout = Layout.of(table, landed_spec("logs"), 1)
    return write_part(layout, Part(like.partition[0], like.partition[1], rows), layout.batch)


CHANGES: dict[str, Callable[[Committer, Table], object]] = {
    "replace": _replace,
    "overwrite": lambda committer, table: erase(committer, table, ERASED),
    "rewrite manifests": lambda committer, table: rewrite_manifests(committer, table, 1),
}


def _work(what: str, data_dir: str, settings: dict[str, Any]) -> None:
    if what not in CHANGES:
        land_process._work(what, data_dir, settings)
        return
    config = Config.model_validate({"data_dir": data_dir})
    try:
        with contextlib.closing(open_catalog(config)) as catalog:
            recover_tables(catalog)
            committer = Committer(catalog, deadline_seconds=20)
            CHANGES[what](committer, catalog.load_table("otel.logs"))
    except Exception as error:
        say_facts(error=repr(error))
        raise
    say_facts(steps=[])


def main() -> None:
    # Once, here, and not in every child.
    import pyiceberg.avro.decoder_fast  # noqa: F401
    import sqlalchemy.dialects.sqlite  # noqa: F401

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    serve(_work)


if __name__ == "__main__":
    main()
