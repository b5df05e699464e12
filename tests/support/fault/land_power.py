"""Power losses, on paper: what a process did to its files, and what of it a disk would still have.

`recorded` keeps every operation of Python's `os` below a folder. `Disk` goes through them again and knows, at
every point, what has been synced. The catalog's SQLite file syncs itself: it is kept as it was after each
of its commits.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Event = tuple[Any, ...]
Loss = Literal["all that was not synced", "all but names", "all but deletions"]
LOSSES: tuple[Loss, ...] = ("all that was not synced", "all but names", "all but deletions")


@contextlib.contextmanager
def recorded(root: Path, catalog_file: Path, into: Path) -> Iterator[None]:
    """Writes the events of this process to the file `into` when the block ends."""
    events: list[Event] = []
    known = catalog_file.read_bytes() if catalog_file.exists() else None
    descriptors: dict[int, str] = {}
    originals = {
        name: getattr(os, name)
        for name in ("open", "close", "write", "fsync", "link", "replace", "rename", "unlink", "mkdir")
    } | {"rmdir": os.rmdir, "sync": os.sync}

    def look_at_catalog() -> None:
        nonlocal known
        now = catalog_file.read_bytes() if catalog_file.exists() else None
        if now != known:
            known = now
            events.append(("catalog", now))

    def note(*event: Any) -> None:
        look_at_catalog()
        events.append(event)

    def below(path: Any) -> str | None:
        place = os.path.realpath(os.path.dirname(os.fspath(path)))
        full = os.path.join(place, os.path.basename(os.fspath(path)))
        return os.path.relpath(full, root) if full == str(root) or full.startswith(f"{root}/") else None

    def opening(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        descriptor = originals["open"](path, flags, *rest, **more)
        if (name := below(path)) is not None:
            if flags & os.O_CREAT:
                note("create", name)
            descriptors[descriptor] = name
        return int(descriptor)

    def closing(descriptor: int) -> None:
        descriptors.pop(descriptor, None)
        originals["close"](descriptor)

    def writing(descriptor: int, data: Any) -> int:
        count = int(originals["write"](descriptor, data))
        if descriptor in descriptors:
            note("write", descriptors[descriptor], bytes(memoryview(data).cast("B")[:count]))
        return count

    def syncing(descriptor: int) -> None:
        originals["fsync"](descriptor)
        if descriptor in descriptors:
            note("fsync", descriptors[descriptor])

    def changing(name: str) -> Callable[..., None]:
        def change(*paths: Any, **more: Any) -> None:
            originals[name](*paths, **more)
            found = [below(path) for path in paths if isinstance(path, str | os.PathLike)]
            if any(found):
                note("rename" if name == "replace" else name, *found)

        return change

    def sync() -> None:
        note("sync")  # which the model believes; the machine is spared

    os.open, os.close, os.write, os.fsync, os.sync = opening, closing, writing, syncing, sync  # type: ignore
    for name in ("link", "replace", "rename", "unlink", "mkdir", "rmdir"):
        setattr(os, name, changing(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(os, name, original)
        look_at_catalog()
        into.write_bytes(pickle.dumps(events))


@dataclass
class _File:
    data: bytes = b""
    synced: bytes | None = None


@dataclass
class _Folder:
    names: dict[str, _File | _Folder] = field(default_factory=dict)
    synced: dict[str, _File | _Folder] = field(default_factory=dict)

    def sync(self) -> None:
        self.synced = dict(self.names)


class Disk:
    """Begins as the folder is now, all of it synced but the catalog, which is kept apart."""

    def __init__(self, root: Path, catalog_file: Path) -> None:
        self._catalog_name = os.path.relpath(catalog_file, root)
        self.catalog = catalog_file.read_bytes() if catalog_file.exists() else None
        self._root = self._read(root)

    def _read(self, folder: Path) -> _Folder:
        made = _Folder()
        for child in folder.iterdir():
            if child.name.startswith(Path(self._catalog_name).name):
                continue
            data = b"" if child.is_dir() else child.read_bytes()
            made.names[child.name] = self._read(child) if child.is_dir() else _File(data, data)
        made.sync()
        return made

    def apply(self, event: Event) -> None:
        kind, *rest = event
        match kind:
            case "catalog":
                self.catalog = rest[0]
            case "sync":
                self._sync_all(self._root)
            case "create":
                folder, name = self._place(rest[0])
                folder.names.setdefault(name, _File())
            case "write":
                self._file(rest[0]).data += rest[1]
            case "fsync":
                found = self._find(rest[0])
                if isinstance(found, _Folder):
                    found.sync()
                else:
                    found.synced = found.data
            case "link" | "rename":
                source, target = (self._place(path) for path in rest)
                target[0].names[target[1]] = source[0].names[source[1]]
                if kind == "rename":
                    del source[0].names[source[1]]
            case "unlink" | "rmdir":
                folder, name = self._place(rest[0])
                folder.names.pop(name, None)
            case "mkdir":
                folder, name = self._place(rest[0])
                folder.names[name] = _Folder()
            case _:
                raise AssertionError(event)

    def _sync_all(self, folder: _Folder) -> None:
        folder.sync()
        for child in folder.names.values():
            if isinstance(child, _Folder):
                self._sync_all(child)
            else:
                child.synced = child.data

    def _find(self, path: str) -> _File | _Folder:
        found: _File | _Folder = self._root
        for part in () if path == "." else Path(path).parts:
            assert isinstance(found, _Folder)
            found = found.names[part]
        return found

    def _file(self, path: str) -> _File:
        found = self._find(path)
        assert isinstance(found, _File)
        return found

    def _place(self, path: str) -> tuple[_Folder, str]:
        folder = self._find(os.path.dirname(path) or ".")
        assert isinstance(folder, _Folder)
        return folder, os.path.basename(path)

    def left(self, loss: Loss | None) -> dict[str, bytes | None]:
        """Paths and what they hold after a power loss, or, without one, now. None for a folder."""
        found: dict[str, bytes | None] = {}
        self._left(self._root, "", loss, found)
        if self.catalog is not None:
            found[self._catalog_name] = self.catalog
        return found

    def _left(self, folder: _Folder, path: str, loss: Loss | None, into: dict[str, bytes | None]) -> None:
        names = folder.synced
        if loss is None or loss == "all but names":
            names = folder.names
        elif loss == "all but deletions":
            names = {name: child for name, child in folder.synced.items() if name in folder.names}
        for name, child in names.items():
            if isinstance(child, _Folder):
                into[f"{path}{name}"] = None
                self._left(child, f"{path}{name}/", loss, into)
            else:
                into[f"{path}{name}"] = child.data if loss is None else (child.synced or b"")


def states(disk: Disk, events: list[Event]) -> Iterator[tuple[str, dict[str, bytes | None]]]:
    """What a power loss at any point would leave, each state once, with the point at which it comes first."""
    seen: set[bytes] = set()
    for number, event in enumerate(itertools.chain([("start",)], events)):
        if number:
            disk.apply(event)
        for loss in LOSSES:
            state = disk.left(loss)
            digest = hashlib.sha256(pickle.dumps(sorted(state.items(), key=lambda item: item[0]))).digest()
            if digest not in seen:
                seen.add(digest)
                yield f"{loss} after {number}: {event[:2]}", state


def make(root: Path, state: dict[str, bytes | None]) -> None:
    """The folder as the disk has it."""
    shutil.rmtree(root)
    root.mkdir()
    for path, data in sorted(state.items()):
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if data is None:
            target.mkdir(exist_ok=True)
        else:
            target.write_bytes(data)
