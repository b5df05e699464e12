"""Who wins when several commit at once, and when answers are lost."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from frazil.config import Config
from frazil.errors import CatalogUnavailable, Conflict, Fenced
from frazil.lake.catalog import open_catalog
from frazil.lake.commits.commit import Committed, Committer, read_checkpoint
from frazil.lake.live_files import live_files
from tests.support.lake.commit_faults import (
    IDENTIFIER,
    Commit,
    applied_and_lost,
    data_file,
    first,
    inject,
    lost_on_the_way,
    sources,
    then,
)
from tests.support.lake.replacing import CHANGES, assert_totals, erase, files_of, land, less, table_rows


@pytest.mark.parametrize("what", CHANGES)
def test_a_landing_in_between_is_waited_out(
    catalog: Catalog,
    other: Catalog,
    committer: Committer,
    landed: Table,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    change, left, position = CHANGES[what]
    made = inject(catalog, monkeypatch, first(lambda: land(other, "d")), first(lambda: land(other, "e")))
    done = change(catalog, committer, landed)
    assert len(made) == done.attempts == 3
    assert sources(catalog) == sorted([*left, "d", "e"])
    assert read_checkpoint(other, IDENTIFIER).position == position.replace("+1", "+1+1+1")
    assert_totals(catalog.load_table(IDENTIFIER))


@pytest.mark.parametrize("what", CHANGES)
def test_further_attempts_write_no_more_than_a_list_of_manifests(
    catalog: Catalog,
    other: Catalog,
    committer: Committer,
    landed: Table,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    """And what they take over counts as of the attempt that is committed."""
    folder = Path(landed.location(), "metadata")
    before = set(folder.iterdir())
    landing: set[Path] = set()

    def overtake() -> None:
        already = set(folder.iterdir())
        land(other, "d")
        landing.update(set(folder.iterdir()) - already)

    inject(catalog, monkeypatch, first(overtake), first(overtake))
    done = CHANGES[what][0](catalog, committer, landed)
    written = [path.name for path in set(folder.iterdir()) - before - landing]
    assert sum(name.startswith("snap-") for name in written) == 3
    assert sum("-m" in name for name in written) == (2 if what == "replace" else 1)
    table = catalog.load_table(IDENTIFIER)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    own = [m for m in snapshot.manifests(table.io) if m.added_snapshot_id == done.snapshot_id]
    assert {manifest.sequence_number for manifest in own} == {snapshot.sequence_number}


def test_a_landing_that_an_overwrite_overtakes_is_fenced_and_lands_nothing_twice(
    catalog: Catalog, other: Catalog, committer: Committer, landed: Table
) -> None:
    """It carries a position that does not count what went."""
    on_its_way = read_checkpoint(other, IDENTIFIER)
    file = data_file(on_its_way, "d")
    erase(catalog, committer, landed)
    with pytest.raises(Fenced):
        Committer(other, deadline_seconds=60).append(on_its_way, [file], "at 9")
    assert sources(catalog) == ["a", "c", "zero"]
    again = read_checkpoint(other, IDENTIFIER)
    Committer(other, deadline_seconds=60).append(again, [data_file(again, "d")], again.position + "+1")
    assert sources(catalog) == ["a", "c", "d", "zero"]
    assert read_checkpoint(catalog, IDENTIFIER).position == "at 1+2+1-1+1"


def test_a_landing_that_an_overwrite_overtakes_between_its_attempts_is_fenced(
    catalog: Catalog, other: Catalog, committer: Committer, landed: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    inject(
        catalog,
        monkeypatch,
        then(lost_on_the_way, lambda: erase(other, Committer(other, deadline_seconds=60), landed)),
    )
    now = read_checkpoint(other, IDENTIFIER)
    with pytest.raises(Fenced):
        committer.append(now, [data_file(now, "d")], "at 9")
    assert sources(catalog) == ["a", "c", "zero"]


@pytest.mark.parametrize("rival", CHANGES)
@pytest.mark.parametrize("what", CHANGES)
def test_of_two_who_replace_the_same_files_one_wins_and_the_other_is_told(
    catalog: Catalog, other: Catalog, landed: Table, monkeypatch: pytest.MonkeyPatch, what: str, rival: str
) -> None:
    gone = files_of(catalog, "a", "b")
    both, one = data_file(read_checkpoint(catalog, IDENTIFIER), "a", "b"), files_of(catalog, "c")

    def change(connection: Catalog, how: str) -> Committed:
        mine = Committer(connection, deadline_seconds=60, sleep=lambda seconds: None)
        if how == "replace":
            return mine.replace(landed, gone, [both])
        return mine.overwrite(landed, [*gone, *one], [], less)

    made = inject(catalog, monkeypatch, first(lambda: change(other, rival)))
    with pytest.raises(Conflict, match=r"of [23] files .* no longer part of the table"):
        change(catalog, what)
    assert len(made) == 1
    assert sources(catalog) == (["a", "b", "c", "zero"] if rival == "replace" else ["zero"])
    assert read_checkpoint(other, IDENTIFIER).position == "at 1+2+1" + ("" if rival == "replace" else "-1")
    with pytest.raises(Conflict):
        change(other, what)


def test_of_many_who_replace_the_same_files_at_once_one_wins(
    config: Config, catalog: Catalog, landed: Table
) -> None:
    outcomes: list[str] = []
    ready = threading.Barrier(4)
    gone = files_of(catalog, "a", "c")

    def maintain(number: int) -> None:
        with closing(open_catalog(config)) as mine:
            merged = data_file(read_checkpoint(mine, IDENTIFIER), "a", "c")
            committer = Committer(mine, deadline_seconds=60)
            ready.wait(30)
            try:
                if number % 2:
                    committer.replace(landed, gone, [merged])
                else:
                    committer.overwrite(landed, gone, [], less)
                outcomes.append("won")
            except Conflict:
                outcomes.append("told")

    threads = [threading.Thread(target=maintain, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == ["told", "told", "told", "won"]
    replaced = read_checkpoint(catalog, IDENTIFIER).position == "at 1+2+1"
    assert sources(catalog) == (["a", "b", "c", "zero"] if replaced else ["b", "zero"])
    assert_totals(catalog.load_table(IDENTIFIER))


def test_two_who_replace_different_files_of_one_manifest_both_win(
    catalog: Catalog, other: Catalog, committer: Committer, landed: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = files_of(catalog, "a"), files_of(catalog, "b")
    now = read_checkpoint(other, IDENTIFIER)
    rival = Committer(other, deadline_seconds=60)
    inject(catalog, monkeypatch, first(lambda: rival.replace(landed, a, [data_file(now, "a")])))
    assert committer.replace(landed, b, [data_file(now, "b")]).attempts == 2
    assert sources(catalog) == ["a", "b", "c", "zero"]
    assert_totals(catalog.load_table(IDENTIFIER))


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("answer", [applied_and_lost, lost_on_the_way])
@pytest.mark.parametrize("meanwhile", ["nothing", "a landing"])
def test_a_lost_answer_is_settled_by_looking(
    catalog: Catalog,
    other: Catalog,
    committer: Committer,
    landed: Table,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    answer: Any,
    meanwhile: str,
) -> None:
    change, left, position = CHANGES[what]
    lands = meanwhile == "a landing"
    made = inject(catalog, monkeypatch, then(answer, lambda: land(other, "d") if lands else None))
    done = change(catalog, committer, landed)
    assert len(made) == done.attempts == (1 if answer is applied_and_lost else 2)
    now = read_checkpoint(other, IDENTIFIER)
    assert sources(catalog) == sorted([*left, *(["d"] if lands else [])])
    assert sorted(now.position.removeprefix("at 1")) == sorted(
        position.removeprefix("at 1") + ("+1" if lands else "")
    )
    assert now.table.metadata.snapshot_by_id(done.snapshot_id) is not None
    assert_totals(now.table)


@pytest.mark.parametrize("what", CHANGES)
def test_an_own_attempt_that_arrives_late_is_refused(
    catalog: Catalog,
    other: Catalog,
    committer: Committer,
    landed: Table,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    stuck: list[tuple[Any, ...]] = []

    def get_stuck(real: Commit, args: tuple[Any, ...]) -> Any:
        stuck.append(args)
        raise TimeoutError

    change, left, position = CHANGES[what]
    inject(catalog, monkeypatch, get_stuck)
    assert change(catalog, committer, landed).attempts == 2
    _, requirements, updates = stuck[0]
    with pytest.raises(Exception, match="main"):
        other.commit_table(other.load_table(IDENTIFIER), requirements, updates)
    assert sources(catalog) == left
    assert read_checkpoint(other, IDENTIFIER).position == position


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("answer", [applied_and_lost, lost_on_the_way])
def test_what_cannot_be_settled_in_time_is_unknown_and_the_files_tell_later(
    catalog: Catalog,
    other: Catalog,
    committer: Committer,
    landed: Table,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    answer: Any,
) -> None:
    change, left, _ = CHANGES[what]
    real_load, down = catalog.load_table, threading.Event()

    def load(*args: Any) -> Table:
        if down.is_set():
            raise ConnectionError("down")
        return real_load(*args)

    def goes_down(real: Commit, args: tuple[Any, ...]) -> Any:
        down.set()
        return answer(other.commit_table, args)

    monkeypatch.setattr(catalog, "load_table", load)
    inject(catalog, monkeypatch, goes_down)
    with pytest.raises(CatalogUnavailable):
        change(catalog, committer, landed)
    down.clear()
    if answer is applied_and_lost:
        with pytest.raises((Conflict, ValueError)):
            committer.overwrite(landed, files_of_snapshot(landed, what), [], less)
        assert sources(catalog) == left
    else:
        assert sources(catalog) == ["a", "b", "c", "zero"]
        change(catalog, committer, landed)
        assert sources(catalog) == left


def files_of_snapshot(table: Table, what: str) -> list[DataFile]:
    """What the change wanted to be rid of, as it was before."""
    wanted = {"replace": {"a", "c"}, "overwrite": {"b"}}[what]
    return [each.file for each in live_files(table) if set(table_rows(table, each.file)) & wanted]
