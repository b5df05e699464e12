"""Files of old days to another place: copied on Spark as they are, read back, and put in the place of what
they were. Under a new name: what a snapshot needs is told by names.
"""

from __future__ import annotations

import contextlib
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
from frazil.pipeline.maintain.compact import Progress
from frazil.pipeline.maintain.quarantine import BadFiles
from frazil.pipeline.maintain.report import TaskReport, Totals, bytes_of
from frazil.pipeline.maintain.rewrite import Rewrite, Swap
from frazil.pipeline.runner import Runner
from frazil.tables.promoted import file_suffix, fingerprint_of

_CHUNK_BYTES = 16 << 20
_STORE_FAILURES_MAX = 8
"""Files in a row that cannot be read: then it is the store that fails, and not a file."""

log = structlog.get_logger("frazil.maintain")


@dataclass(frozen=True)
class Move:
    file: DataFile
    path: str
    """Where it goes."""


@dataclass(frozen=True)
class Moved:
    """`problem` says why it was left where it is; nothing is at `path` then."""

    path: str
    problem: str | None
    cpu_seconds: float
    began: float
    """When its writing did, by the time of day."""
    is_of_the_store: bool = False
    """Whether the problem may be with more than this file."""


class Tiering:
    """One table's, to `location`. What is in `bad` stays; what cannot be moved is added to it."""

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
        self._totals = Totals()
        self._rewrite = Rewrite(table, committer, self._totals, "moved to another place")
        self._left_alone = 0

    def run(self, now_seconds: float, *, dry_run: bool, progress: Progress | None = None) -> TaskReport:
        begin = time.monotonic()
        live = {each.file.file_path: each for each in live_files(self._table)}
        left_out = self._bad.left_out(self._table.name()[-1], live, now_seconds)
        facts = all_facts([each for path, each in live.items() if path not in left_out], self._table)
        chosen = choose_tier(facts, self._folder, self._tier, self._compact, now_seconds)
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
        wanted = choose_tier(facts, self._folder, unbounded, self._compact, now_seconds)
        is_unfinished = len(wanted) > len(chosen) and self._totals.files_in > 0
        return replace(self._report(begin, dry_run=False), is_unfinished=is_unfinished)

    def _refuse_missing(self) -> None:
        """Of a disk that is not mounted, all folders would be made anew on another one."""
        if "://" not in self._location and not Path(self._location).is_dir():
            raise Refused(
                f"there is no folder {self._location}, or its disk is not mounted; make it, for maintain.tier"
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
                problem = moved.problem or self._not_here(move)
                if problem is not None:
                    self._left_alone += 1
                    log.warning("file is not moved", path=move.file.file_path, reason=problem)
                    store_failures += moved.is_of_the_store
                    if store_failures == _STORE_FAILURES_MAX:
                        raise StoreUnavailable(
                            f"{store_failures} files in a row cannot be moved; the last is "
                            f"{move.file.file_path}: {problem}"
                        )
                    continue
                store_failures = 0
                add(Swap([move.file], [at_path(move.file, move.path)], moved.began))

    def _not_here(self, move: Move) -> str | None:
        """A worker on another machine may have a folder of that name of its own."""
        try:
            size = len(self._files.new_input(move.path))
        except FileNotFoundError:
            size = 0
        if size == move.file.file_size_in_bytes:
            return None
        return f"of its copy {move.path}, {size} bytes are seen from here; do all machines see that folder?"

    def _report(self, begin: float, *, dry_run: bool) -> TaskReport:
        return self._totals.report(
            "tier",
            self._table.name()[-1],
            begin,
            dry_run=dry_run,
            detail={"conflicts": self._rewrite.conflicts, "left_alone": self._left_alone},
        )


def copy(io_properties: Mapping[str, str], storage_class: str | None, move: Move) -> Moved:
    """Runs in Spark's workers. Durable, and read back, when it returns without a problem."""
    began, begin = time.time(), time.process_time()
    files = LakeFileIO(dict(io_properties))
    with _failures(move):
        temporary = files.temporary(move.path)
        try:
            digest = _fetch(files, move.file, temporary)
            files.publish(move.path, temporary, storage_class)
        except _Unfit as unfit:
            seconds = time.process_time() - begin
            return Moved(move.path, unfit.problem, seconds, began, unfit.is_of_the_store)
        finally:
            temporary.unlink(missing_ok=True)
        if _digest_of(files, move.path) != digest:
            files.delete(move.path)
            raise StoreUnavailable(f"{move.path} does not read back as it was written")
    return Moved(move.path, None, time.process_time() - begin, began)


class _Unfit(Exception):
    """A file that is not to be moved. None of the place that it was to go to."""

    def __init__(self, problem: str, *, is_of_the_store: bool = False) -> None:
        super().__init__(problem)
        self.problem = problem
        self.is_of_the_store = is_of_the_store


def _fetch(files: LakeFileIO, file: DataFile, into: Path) -> bytes:
    """The digest of what was read. Raises _Unfit."""
    digest, size = hashlib.sha256(), 0
    with into.open("wb") as target:
        for chunk in _source(files, file.file_path):
            digest.update(chunk)
            size += target.write(chunk)
    if size != file.file_size_in_bytes:
        raise _Unfit(f"it has {size} bytes, and the table says {file.file_size_in_bytes}")
    try:
        rows = pq.read_metadata(into).num_rows
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the disk that it was copied to
            raise
        raise _Unfit(f"it cannot be read: {reason_of(error)}") from None
    if rows != file.record_count:
        raise _Unfit(f"it has {rows} rows, and the table says {file.record_count}")
    return digest.digest()


def _source(files: LakeFileIO, path: str) -> Iterator[bytes]:
    """As `_chunks`. What fails where they are written does not fail in here."""
    try:
        yield from _chunks(files, path)
    except FileNotFoundError:
        raise _Unfit("it is gone") from None
    except (OSError, StoreUnavailable) as error:
        raise _Unfit(f"it cannot be read: {reason_of(error)}", is_of_the_store=True) from error


def _digest_of(files: LakeFileIO, path: str) -> bytes:
    digest = hashlib.sha256()
    for chunk in _chunks(files, path):
        digest.update(chunk)
    return digest.digest()


def _chunks(files: LakeFileIO, path: str) -> Iterator[bytes]:
    with files.new_input(path).open() as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            yield chunk


@contextlib.contextmanager
def _failures(move: Move) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(
            f"{move.file.file_path} cannot be copied to {move.path}: {error.strerror or error}"
        ) from error


def _target(folder: str, file: FileFacts) -> str:
    name = uuid.uuid4().hex + file_suffix(fingerprint_of(file.path))
    return "/".join([folder, *partition_folders(file.tenant, file.day), name])
