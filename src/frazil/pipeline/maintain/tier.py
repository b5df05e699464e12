"""Moves data files of old days to colder storage: Spark copies them byte for byte, reads the copies back, and
one commit replaces the originals. Copies get new names: snapshots refer to files by name.
"""

from __future__ import annotations

import hashlib
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from frazil.config import CompactConfig, TierConfig
from frazil.errors import Refused, StoreUnavailable, reason_of
from frazil.lake.commits.commit import Committer
from frazil.lake.files import LakeFileIO
from frazil.lake.live_files import FileFacts, all_facts, live_files
from frazil.lake.pyiceberg_compat import at_path
from frazil.lake.upkeep.tier import choose_tier, record_folder, tier_folder
from frazil.pipeline.datafile import partition_folders
from frazil.pipeline.maintain.compact import BadFiles, Progress
from frazil.pipeline.maintain.report import TaskReport, Totals, bytes_of
from frazil.pipeline.maintain.rewrite import Rewrite, Swap
from frazil.pipeline.runner import Runner
from frazil.tables import TableSpec
from frazil.tables.promoted import file_suffix, fingerprint_of

_CHUNK_BYTES = 16 << 20
_STORE_FAILURES_MAX = 8
"""After this many unreadable files in a row, the store is considered unavailable."""

log = structlog.get_logger("frazil.maintain")


@dataclass(frozen=True)
class Move:
    file: DataFile
    path: str
    """The path of the copy."""


@dataclass(frozen=True)
class Moved:
    """The result of copying a file. If there was a `problem`, nothing is at `path`."""

    path: str
    problem: str | None
    cpu_seconds: float
    began: float
    """When the copy began, in seconds since 1970."""
    is_store_error: bool = False
    """The problem may concern other files too."""


class Tiering:
    """Moves files of one table to `location`. Skips the files in `bad`, and adds files that cannot be
    moved.
    """

    def __init__(
        self,
        table: Table,
        location: str,
        tier: TierConfig,
        compact: CompactConfig,
        catalog: Catalog,
        committer: Committer,
        runner: Runner,
        bad: BadFiles,
        spec: TableSpec,
    ) -> None:
        self._table = table
        self._location = location
        self._files = LakeFileIO(table.io.properties)
        self._folder = tier_folder(table, location)
        self._tier = tier
        self._compact = compact
        self._catalog = catalog
        self._runner = runner
        self._bad = bad
        self._spec = spec
        self._totals = Totals()
        self._rewrite = Rewrite(table, committer, self._totals, "files moved to colder storage")
        self._not_moved = 0

    def run(self, now_seconds: float, *, dry_run: bool, progress: Progress | None = None) -> TaskReport:
        begin = time.monotonic()
        live = {each.file.file_path: each for each in live_files(self._table)}
        excluded = self._bad.excluded(self._table.name()[-1], live, now_seconds)
        facts = all_facts([each for path, each in live.items() if path not in excluded], self._table)
        chosen = choose_tier(facts, self._folder, self._tier, self._compact, now_seconds, self._spec)
        moves = [Move(live[each.path].file, _target(self._folder, each)) for each in chosen]
        if dry_run:
            files = [move.file for move in moves]
            self._totals.count(files, files, 0)
            return self._report(begin, dry_run=True)
        if moves:
            self._refuse_missing()
            record_folder(self._catalog, self._table, self._folder)
            self._move(moves, now_seconds, progress)
        unbounded = self._tier.model_copy(update={"round_bytes_max": sys.maxsize})
        all_due = choose_tier(facts, self._folder, unbounded, self._compact, now_seconds, self._spec)
        is_unfinished = len(all_due) > len(chosen) and self._totals.files_in > 0
        return replace(self._report(begin, dry_run=False), is_unfinished=is_unfinished)

    def _refuse_missing(self) -> None:
        """Raises Refused if the folder is missing: it would be created on the wrong disk if its own is not
        mounted.
        """
        if "://" not in self._location and not Path(self._location).is_dir():
            raise Refused(
                f"the folder {self._location} of maintain.tier does not exist: mount its disk, or create it"
            )

    def _move(self, moves: Sequence[Move], now_seconds: float, progress: Progress | None) -> None:
        by_path = {move.path: move for move in moves}
        bytes_all, bytes_done = bytes_of([move.file for move in moves]), 0
        store_failures = 0
        work = partial(copy, dict(self._table.io.properties), self._tier.storage_class)
        with self._rewrite.batches() as add:
            for moved in self._runner.results(work, moves):
                move = by_path[moved.path]
                bytes_done += move.file.file_size_in_bytes
                if progress is not None:
                    progress(bytes_done, bytes_all)
                self._totals.cpu_seconds += moved.cpu_seconds
                if moved.problem is not None:
                    self._bad.note(self._table.name()[-1], move.file.file_path, moved.problem, now_seconds)
                problem = moved.problem or self._check_copy(move)
                if problem is not None:
                    self._not_moved += 1
                    log.warning(
                        "data file not moved to the tier location", path=move.file.file_path, reason=problem
                    )
                    store_failures += moved.is_store_error
                    if store_failures == _STORE_FAILURES_MAX:
                        raise StoreUnavailable(
                            f"{store_failures} files in a row could not be moved; the last is "
                            f"{move.file.file_path}: {problem}"
                        )
                    continue
                store_failures = 0
                add(Swap([move.file], [at_path(move.file, move.path)], moved.began))

    def _check_copy(self, move: Move) -> str | None:
        """Returns the problem if this machine does not see the copy: a worker on another machine may have its
        own folder of that name.
        """
        try:
            size = len(self._files.new_input(move.path))
        except FileNotFoundError:
            size = 0
        if size == move.file.file_size_in_bytes:
            return None
        return (
            f"the driver sees {size} bytes of its copy {move.path}; check that all machines share that folder"
        )

    def _report(self, begin: float, *, dry_run: bool) -> TaskReport:
        return self._totals.report(
            "tier",
            self._table.name()[-1],
            begin,
            dry_run=dry_run,
            detail={"conflicts": self._rewrite.conflicts, "left_alone": self._not_moved},
        )


def copy(io_properties: Mapping[str, str], storage_class: str | None, move: Move) -> Moved:
    """Copies one file, in a Spark worker. The copy is durable and verified unless the result has a
    problem.
    """
    began, begin = time.time(), time.process_time()
    files = LakeFileIO(dict(io_properties))
    try:
        temporary = files.temporary(move.path)
        try:
            digest = _fetch(files, move.file, temporary)
            files.publish(move.path, temporary, storage_class)
        except _CannotMove as error:
            seconds = time.process_time() - begin
            return Moved(move.path, error.problem, seconds, began, error.is_store_error)
        finally:
            temporary.unlink(missing_ok=True)
        if _digest_of(files, move.path) != digest:
            files.delete(move.path)
            raise StoreUnavailable(f"{move.path} has other bytes than were written; check the store")
    except OSError as error:
        reason = error.strerror or error
        raise StoreUnavailable(f"cannot copy {move.file.file_path} to {move.path}: {reason}") from error
    return Moved(move.path, None, time.process_time() - begin, began)


class _CannotMove(Exception):
    """The source file cannot be copied. Errors of the target are other exceptions."""

    def __init__(self, problem: str, *, is_store_error: bool = False) -> None:
        super().__init__(problem)
        self.problem = problem
        self.is_store_error = is_store_error


def _fetch(files: LakeFileIO, file: DataFile, into: Path) -> bytes:
    """Copies the file to a local path. Returns its digest. Raises _CannotMove."""
    digest, size = hashlib.sha256(), 0
    with into.open("wb") as target:
        for chunk in _source(files, file.file_path):
            digest.update(chunk)
            size += target.write(chunk)
    if size != file.file_size_in_bytes:
        raise _CannotMove(
            f"the file has {size} bytes, but the table's metadata says {file.file_size_in_bytes}"
        )
    try:
        rows = pq.read_metadata(into).num_rows
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # an error of the local disk
            raise
        raise _CannotMove(f"the file cannot be read: {reason_of(error)}") from None
    if rows != file.record_count:
        raise _CannotMove(f"the file has {rows} rows, but the table's metadata says {file.record_count}")
    return digest.digest()


def _source(files: LakeFileIO, path: str) -> Iterator[bytes]:
    """Yields chunks like `_chunks`, but raises _CannotMove for read errors only, not for errors of the
    consumer.
    """
    try:
        yield from _chunks(files, path)
    except FileNotFoundError:
        raise _CannotMove("the file does not exist") from None
    except (OSError, StoreUnavailable) as error:
        raise _CannotMove(f"the file cannot be read: {reason_of(error)}", is_store_error=True) from error


def _digest_of(files: LakeFileIO, path: str) -> bytes:
    digest = hashlib.sha256()
    for chunk in _chunks(files, path):
        digest.update(chunk)
    return digest.digest()


def _chunks(files: LakeFileIO, path: str) -> Iterator[bytes]:
    with files.new_input(path).open() as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            yield chunk


def _target(folder: str, file: FileFacts) -> str:
    name = uuid.uuid4().hex + file_suffix(fingerprint_of(file.path))
    return "/".join([folder, *partition_folders(file.tenant, file.day), name])
