"""A broken table or file: all others are maintained as usual, and the problem is logged once."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from frazil.errors import CatalogUnavailable, JobFailed, StoreUnavailable
from frazil.lake.catalog import open_catalog
from frazil.lake.tables import open_table
from frazil.ledger import balance
from frazil.pipeline.maintain import background, command, compact
from frazil.pipeline.maintain.background import MaintainStep
from frazil.pipeline.maintain.maintainer import Maintainer
from frazil.pipeline.maintain.merge.merge import Merged
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.maintain.report import TaskReport
from frazil.pipeline.metrics import Metrics
from frazil.pipeline.steps import StepThread
from frazil.position import LandingPosition
from frazil.storage.local import LocalStore
from frazil.tables import landed_spec
from tests.support.known_lake import DAY, KnownLake
from tests.support.local_runner import LocalRunner

HOUR = 3600


class Keeper:
    """A maintainer with a clock that is set, and its metrics."""

    def __init__(self, lake: KnownLake, now: float | None = None, runner: LocalRunner | None = None) -> None:
        self.now = lake.now if now is None else now
        self.registry = CollectorRegistry()
        self.maintainer = Maintainer(
            lake.config,
            lake.catalog,
            runner or LocalRunner(),
            MaintainMetrics(self.registry),
            clock=lambda: self.now,
        )

    def round(self) -> set[tuple[str, str]]:
        return {(report.task, report.table) for report in self.maintainer.round()}

    def compact(self) -> TaskReport:
        return self.maintainer.run("compact", "logs")

    def failed(self, table: str) -> float:
        samples = [each for metric in self.registry.collect() for each in metric.samples]
        return sum(
            each.value
            for each in samples
            if each.name == "frazil_maintain_runs_total"
            and (each.labels["table"], each.labels["outcome"]) == (table, "failed")
        )


def _no_spark() -> Any:
    raise AssertionError("tasks run here")


@contextlib.contextmanager
def kept(folder: Path, **maintain: Any) -> Iterator[KnownLake]:
    lake = KnownLake(folder, maintain={"compact": {"fan_in": 2}, **maintain})
    with contextlib.closing(lake):
        yield lake


def with_spans(lake: KnownLake) -> None:
    """Which come after logs."""
    lake.fill([("acme", "a", 9, 0.0)], [("acme", "b", 9, 0.0)])
    open_table(lake.catalog, lake.config.lake.namespace, landed_spec("spans"), LandingPosition().to_text())


def torn_manifest(lake: KnownLake) -> None:
    table = lake.table()
    path = Path(table.current_snapshot().manifests(table.io)[0].manifest_path)
    path.write_bytes(path.read_bytes()[:200])


def torn_metadata(lake: KnownLake) -> None:
    Path(lake.table().metadata_location.removeprefix("file://")).write_bytes(b"{")
    reopen(lake)


def lost_metadata(lake: KnownLake) -> None:
    Path(lake.table().metadata_location.removeprefix("file://")).unlink()
    reopen(lake)


def reopen(lake: KnownLake) -> None:
    """As a process that starts now: one that has read the file before goes on without it."""
    lake.catalog.close()
    lake.catalog = open_catalog(lake.config)


@pytest.mark.parametrize("breaks", [torn_manifest, torn_metadata, lost_metadata])
def test_a_broken_table_does_not_stop_maintenance_of_the_others(
    tmp_path: Path, breaks: Callable[[KnownLake], None]
) -> None:
    with kept(tmp_path) as lake:
        with_spans(lake)
        breaks(lake)
        keeper = Keeper(lake)
        with capture_logs() as lines:
            done = keeper.round()
        assert {task for task, table in done if table == "spans"} == {
            "retention",
            "compact",
            "manifests",
            "expire",
            "orphans",
        }
        warned = [line for line in lines if line["log_level"] in ("warning", "error")]
        assert {line["table"] for line in warned} == {"logs"}
        assert all(line["reason"] and "\n" not in line["reason"] for line in warned)
        assert not any("exc_info" in line for line in warned)
        assert (
            keeper.failed("logs") == len({line["task"] for line in warned if line["task"] != "measure"}) > 0
        )


def test_a_broken_table_is_tried_less_and_less_often(tmp_path: Path) -> None:
    with kept(tmp_path, expire={"enabled": False}, orphans={"enabled": False}) as lake:
        lake.fill([("acme", "a", 9, 0.0)])
        torn_metadata(lake)
        keeper, tried = Keeper(lake), list[int]()
        with capture_logs() as lines:
            for minute in range(4 * 60):
                before = len(lines)
                keeper.round()
                if any(line["task"] == "compact" for line in lines[before:]):
                    tried.append(minute)
                keeper.now += 60
        assert tried == [0, 2, 6, 14, 30, 62, 122, 182]
        keeper.maintainer._state.failures["compact", "logs"] = 5000
        assert keeper.maintainer._pause("compact", "logs", 60.0) == HOUR


def test_the_state_outlives_a_catalog_that_was_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each failure would be retried at once."""
    made: list[Maintainer] = []

    class Failing(Maintainer):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            made.append(self)

        def tables(self) -> list[str]:
            raise CatalogUnavailable("it is away")

    monkeypatch.setattr(background, "Maintainer", Failing)
    with kept(tmp_path, compact={"interval_seconds": 0.01}) as lake:
        step = MaintainStep(lake.config, lambda *_: LocalRunner(), MaintainMetrics(CollectorRegistry()))
        thread = StepThread(step, Metrics())
        assert [thread.turn() for _ in range(3)] == [1, 2, 4]
    assert len(made) == 3
    assert len({id(each._state) for each in made}) == 1


def test_the_lease_is_taken_only_for_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a catalog that holds the leases, each time is two commits."""
    with kept(tmp_path) as lake:
        step = MaintainStep(lake.config, lambda *_: LocalRunner(), MaintainMetrics(CollectorRegistry()))
        taken: list[bool] = []
        acquire = step._lease.acquire
        monkeypatch.setattr(step._lease, "acquire", lambda: taken.append(acquire()) or taken[-1])
        step.run()
        assert taken == []
        lake.write([("acme", "u1", 9, 0.0)])
        lake.land()
        step.run()
        assert taken == [True]
        step.run()
        assert taken == [True]
        step.reset()


def lose(path: Path) -> None:
    path.unlink()


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:300])


def spoil(path: Path) -> None:
    """Its footer is whole."""
    data = bytearray(path.read_bytes())
    data[4 : len(data) // 3] = bytes(len(data) // 3 - 4)
    path.write_bytes(data)


def block(path: Path) -> None:
    """As a disk that fails where it is."""
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("harm", [lose, tear, spoil, block])
def test_a_bad_file_is_named_once_and_the_others_of_its_day_are_merged(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    with kept(tmp_path) as lake:
        for number in range(4):
            lake.fill([("acme", f"u{number}", 9, 10.0)])
        bad = sorted(lake.data_files())[1]
        whole = Path(bad).read_bytes()
        harm(Path(bad))
        keeper = Keeper(lake)
        with capture_logs() as lines:
            report = keeper.compact()
            assert (report.files_in, report.files_out, report.detail["bad_files"]) == (3, 1, 1)
            assert len(lake.data_files()) == 2
            assert bad in lake.data_files()
            for _ in range(3):
                keeper.now += 60
                assert keeper.compact().is_nothing
        assert [line["path"] for line in lines if line["log_level"] == "error"] == [bad]
        if Path(bad).is_dir():
            Path(bad).rmdir()
        Path(bad).write_bytes(whole)  # from a backup
        keeper.now += DAY
        assert keeper.compact().files_in == 2
        assert lake.bodies().total() == 4
        assert balance(lake.config).problems == []


def test_a_file_that_stays_bad_is_tried_less_and_less_often(tmp_path: Path) -> None:
    with kept(tmp_path) as lake:
        for number in range(3):
            lake.fill([("acme", f"u{number}", 9, 10.0)])
        lose(Path(sorted(lake.data_files())[1]))
        keeper = Keeper(lake)
        assert keeper.compact().detail["bad_files"] == 1
        tried = 0
        for _ in range(24):
            keeper.now += 3 * HOUR
            with contextlib.suppress(JobFailed):
                assert keeper.compact().is_nothing
                continue
            tried += 1
        assert 3 <= tried <= 5


def test_all_bad_files_are_found_in_one_run(tmp_path: Path) -> None:
    """The command keeps no state for its next run."""
    with kept(tmp_path) as lake:
        for number in range(7):
            lake.fill([("acme", f"u{number}", 9, 10.0)])
        for number, path in enumerate(sorted(lake.data_files())[:5]):
            (lose if number % 2 else tear)(Path(path))
        report = Keeper(lake).compact()
        assert (report.files_in, report.files_out, report.detail["bad_files"]) == (2, 1, 5)


def test_an_unavailable_store_is_not_tried_for_every_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def away(_: LocalStore, path: str) -> Any:
        opened.append(path)
        raise StoreUnavailable("it is away")

    with kept(tmp_path) as lake:
        for number in range(8):
            lake.fill([("acme", f"u{number}", 9, 10.0)])
        keeper = Keeper(lake)
        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "local", away)
            with pytest.raises(JobFailed, match="it is away"):
                keeper.compact()
        assert len(opened) == 6
        assert keeper.compact().files_in == 2, "the others need not wait"


def test_files_that_others_have_replaced_meanwhile_are_not_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = compact.merge
    with kept(tmp_path) as lake:
        for number in range(4):
            lake.fill([("acme", f"u{number}", 9, 10.0)])

        def overtaken(*given: Any) -> Merged:
            monkeypatch.setattr(compact, "merge", real)
            before = lake.data_files()
            assert Keeper(lake).compact().files_in == 4
            for path in before:
                os.unlink(path)  # as expiry does
            return real(*given)

        monkeypatch.setattr(compact, "merge", overtaken)
        keeper = Keeper(lake)
        report = keeper.compact()
        assert (report.detail["vanished"], report.detail["bad_files"], report.detail["failed"]) == (1, 0, 0)
        assert keeper.maintainer._state.bad.excluded("logs", lake.data_files(), keeper.now) == set()
        assert lake.bodies().total() == 4


def test_a_day_with_a_bad_file_moves_to_the_other_place_without_it(tmp_path: Path) -> None:
    (tmp_path / "cold").mkdir()
    tier = {"location": str(tmp_path / "cold"), "after_seconds": "30d"}
    with kept(tmp_path / "data", tier=tier) as lake:
        for number in range(4):
            lake.fill([("acme", f"u{number}", 9, 40.0)])
        bad = sorted(lake.data_files())[1]
        lose(Path(bad))
        keeper = Keeper(lake, lake.now + DAY)
        assert keeper.maintainer.run("tier", "logs").is_nothing, "there is something to merge"
        keeper.compact()
        assert keeper.maintainer.run("tier", "logs").files_in == 1
        assert lake.data_files() - {bad} == {
            path for path in lake.data_files() if path.startswith(f"{tmp_path}/cold/")
        }


def test_the_command_tries_all_tasks_and_prints_the_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = [{"after_seconds": "7d", "where": "severity_numbr < 9"}]
    with kept(tmp_path, retention={"rules": rules}) as lake:
        for number in range(4):
            lake.fill([("acme", f"u{number}", 9, 0.0)])

        @contextlib.contextmanager
        def opened(_: Any) -> Iterator[Any]:
            yield lake.catalog, LocalRunner()

        monkeypatch.setattr(command, "opened", opened)
        for dry_run in (True, False):
            capsys.readouterr()
            with capture_logs():
                assert command.maintain(lake.config, None, (), dry_run=dry_run, json_output=True) == 1
            said = capsys.readouterr()
            done = {report["task"]: report for report in json.loads(said.out)}
            assert set(done) == {"compact", "manifests", "expire", "orphans"}
            assert done["compact"]["files_in"] == 4
            (line,) = said.err.strip().splitlines()
            assert line.startswith("retention logs: ")
            assert "severity_numbr" in line
        assert len(lake.data_files()) == 1
        assert command.maintain(lake.config, "compact", (), dry_run=False, json_output=False) == 0
        assert "nothing to do" in capsys.readouterr().out
