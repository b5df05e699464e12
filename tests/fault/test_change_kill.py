"""SIGKILL and I/O errors at every file operation of whoever replaces files, removes rows or merges manifests.

After each, the table holds exactly the rows of before or of after, position and ledger agree with it; and the
change is made again, after some of each kind, and comes to its end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from frazil.lake.catalog import open_catalog
from frazil.lake.commits.commit import checkpoint_of
from frazil.lake.live_files import live_files
from frazil.ledger import balance
from frazil.position import landing_position
from tests.components.fullness import FaultControl
from tests.fault.test_land_kill import Scene, said
from tests.support.fault.change_process import CHANGES, ERASED, ChangeProcess
from tests.support.fault.land_process import Outcome
from tests.support.fault.land_wal import STREAMS, Content, config_of, expected, table_content
from tests.support.fault.sweep import faulty_process

pytestmark = pytest.mark.timeout(3000)

_AGAIN, _LAST = 4, 8
"""After every so many points, and after the last ones, where the commit is, the change is made again."""


@pytest.fixture(scope="module")
def struck(
    tmp_path_factory: pytest.TempPathFactory, fault_shim: Path
) -> Iterator[tuple[Path, FaultControl, ChangeProcess]]:
    with faulty_process(ChangeProcess, tmp_path_factory, fault_shim) as started:
        yield started


@pytest.fixture
def scene(struck: tuple[Path, FaultControl, ChangeProcess]) -> Iterator[Scene]:
    """Three landings of two streams, of two tenants each."""
    scene = Scene(*struck)
    for stream, sequence in ((STREAMS[0], 0), (STREAMS[0], 1), (STREAMS[1], 0)):
        scene.write(stream, sequence)
        assert scene.process.land(scene.data_dir).returncode == 0
    scene.keep()
    yield scene
    scene.faults.clear()
    scene.remove()


def change_of(scene: Scene, what: str) -> Callable[[], Outcome]:
    process = scene.process
    assert isinstance(process, ChangeProcess)
    return lambda: process.change(scene.data_dir, what)


def after(scene: Scene, what: str) -> Content:
    if what != "overwrite":
        return scene.content
    return Content({row: count for row, count in scene.content.items() if not row[1].startswith(ERASED)})


def assert_whole(scene: Scene, *possible: Content, ledger: bool = True) -> None:
    """Readable, one of these to the row, and all that counts agrees."""
    content = table_content(scene.data_dir)
    assert content in possible
    with contextlib.closing(open_catalog(config_of(scene.data_dir))) as catalog:
        table = catalog.load_table("otel.logs")
    position = landing_position(checkpoint_of(table).position)
    assert position.rows - position.removed == content.total()
    assert position.rows == scene.content.total()
    assert sum(each.file.record_count for each in live_files(table)) == content.total()
    if ledger:  # which reads it all once more
        assert balance(config_of(scene.data_dir)).problems == []


def check(scene: Scene, what: str, run: Callable[[], Outcome], *, again: bool = True) -> None:
    """From whatever is there, the change comes to its end. Neighbouring points leave much the same behind, so
    not all of them need to show that.
    """
    done = after(scene, what)
    assert_whole(scene, scene.content, done, ledger=again)
    if again:
        assert run().returncode == 0
        assert_whole(scene, done)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "killed halfway"])
@pytest.mark.parametrize("what", CHANGES)
def test_a_change_that_is_killed_anywhere_is_made_or_not_and_can_be_made_again(
    what: str, how: str, scene: Scene
) -> None:
    run, last = change_of(scene, what), 0
    count = scene.operations(how, run)
    assert count > 10
    for n in range(1, count + 1):
        outcome, struck = scene.disturb(how, n, run)
        if not struck:
            break
        assert outcome.returncode == -9
        check(scene, what, run, again=n % _AGAIN == 0 or n > count - _LAST)
        last = n
    assert last > count - 3  # one more or less, as SQLite sees fit
    if how == "killed":  # and when all of it is done
        outcome, struck = scene.disturb("killed after", last, run)
        assert (outcome.returncode, struck) == (-9, True)
        check(scene, what, run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "how"), [("overwrite", "disk full"), *((what, "disk failing") for what in CHANGES)]
)
def test_a_change_that_meets_an_error_anywhere_says_so_or_is_made(what: str, how: str, scene: Scene) -> None:
    run = change_of(scene, what)
    step = 1 if what == "overwrite" else 2  # the others write, link and sync in the same way
    for n in range(1, scene.operations(how, run) + 1, step):
        outcome, struck = scene.disturb(how, n, run)
        if not struck:
            break
        assert outcome.returncode in (0, 1), (n, outcome)
        if outcome.returncode == 1:
            assert "No space left" in outcome.error or "nput/output error" in outcome.error or said(outcome)
        else:
            assert_whole(scene, after(scene, what), ledger=False)
        check(scene, what, run, again=n % _AGAIN == 1)


@pytest.mark.slow
@pytest.mark.parametrize("what", CHANGES)
def test_a_change_that_is_killed_is_made_or_not_and_landing_goes_on(what: str, scene: Scene) -> None:
    """A few points of the sweep above."""
    run = change_of(scene, what)
    count = scene.operations("killed", run)
    for n in (count // 3, count * 2 // 3, count - 4):
        outcome, struck = scene.disturb("killed", n, run)
        assert struck
        assert outcome.returncode == -9
        check(scene, what, run)
    scene.write(STREAMS[2], 0)
    assert scene.process.land(scene.data_dir).steps == ("landed", "idle")
    assert_whole(scene, after(scene, what))
    assert expected(STREAMS[2], 0) <= table_content(scene.data_dir)
