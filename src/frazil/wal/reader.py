"""Reading the WAL back: streams, their contiguous segments, and what has to be set aside."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from frazil.errors import SegmentCorrupt, SegmentUnknown
from frazil.tables import Signal, TableSpec
from frazil.wal.names import SegmentName
from frazil.wal.segment import Facts, read_facts, read_rows
from frazil.wal.store import Store

_SET_ASIDE = "set-aside"


@dataclass(frozen=True)
class Segment:
    name: SegmentName
    size: int


@dataclass(frozen=True)
class SetAside:
    """A segment that could not be read: its bytes are kept under `path`, with the reason beside them."""

    name: SegmentName
    path: str
    reason: str


class WalReader:
    """Stateless: every call looks at the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def segments(self, signal: Signal) -> Iterator[Segment]:
        """All segments of a signal, by stream and sequence."""
        for entry in self._store.list(f"{signal}/"):
            name = SegmentName.parse(entry.path)
            if name is not None:
                yield Segment(name, entry.size)

    def pending(self, signal: Signal, position: Mapping[str, int] | None = None) -> Iterator[Segment]:
        """The contiguous segments of each stream from its position on.

        A sequence that is not there yet ends its stream: what lies behind it waits. A stream that the
        position does not name begins at 0.
        """
        position = position or {}
        due: dict[str, int] = {}
        for segment in self.segments(signal):
            stream = segment.name.stream
            wanted = due.get(stream, position.get(stream, 0))
            if segment.name.sequence == wanted:
                due[stream] = wanted + 1
                yield segment

    def facts(self, name: SegmentName) -> Facts:
        """Checks every byte. FileNotFoundError means that it was cleaned up, not that it is corrupt."""
        return read_facts(name, self._store.read(name.path))

    def rows(self, name: SegmentName, spec: TableSpec) -> tuple[Facts, pa.Table]:
        return read_rows(name, self._store.read(name.path), spec)

    def set_aside(self, name: SegmentName, error: SegmentCorrupt | SegmentUnknown) -> SetAside:
        """Keeps a copy with the reason beside it, where landing does not look. The original stays until
        clean-up.
        """
        path = f"{_SET_ASIDE}/{name.path}"
        reason = str(error)
        for target, data in (
            (path, self._store.read(name.path)),
            (f"{path}.json", json.dumps({"segment": name.path, "reason": reason}).encode()),
        ):
            try:
                self._store.create(target, data)
            except FileExistsError:
                continue  # set aside before
        return SetAside(name, path, reason)

    def set_aside_segments(self) -> Iterator[SetAside]:
        for entry in self._store.list(f"{_SET_ASIDE}/"):
            if not entry.path.endswith(".json"):
                continue
            facts = json.loads(self._store.read(entry.path))
            name = SegmentName.parse(facts["segment"])
            if name is not None:
                yield SetAside(name, entry.path.removesuffix(".json"), facts["reason"])
