"""Leases that machines share which have nothing in common but the lake: Kafka holds none."""

from __future__ import annotations

import contextlib
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from frazil.config import Config
from frazil.errors import StoreUnavailable
from frazil.lake.catalog import LEASES, open_catalog
from frazil.lease import Lease, open_lease
from frazil.lease.epochs import EpochLease
from frazil.lease.local import LocalLease
from frazil.lease.table import TableEpochs
from frazil.query.lake import Lake
from tests.components.iceberg_rest import RestCatalogServer
from tests.components.postgres import PostgresServer
from tests.support.wal_stores import HandClock

KAFKA = {"type": "kafka", "kafka": {"brokers": ["127.0.0.1:9092"]}}


class Machines:
    """Each has a data folder and a clock of its own; they share the catalog and the warehouse."""

    def __init__(self, folder: Path, lake: dict[str, Any]) -> None:
        self._folder = folder
        self._lake = lake | {"namespace": f"n{uuid.uuid4().hex}"}
        self.clocks: list[HandClock] = []

    def config(self) -> Config:
        data_dir = self._folder / uuid.uuid4().hex
        return Config.model_validate({"data_dir": data_dir, "wal": KAFKA, "lake": self._lake})

    def lease(self, name: str = "pipeline") -> EpochLease:
        config, clock = self.config(), HandClock(1000.0 * len(self.clocks))
        self.clocks.append(clock)
        return EpochLease(TableEpochs(config, name), 12, clock, f"machine:{len(self.clocks)}")

    def pass_seconds(self, seconds: float) -> None:
        for clock in self.clocks:
            clock.seconds += seconds


@pytest.fixture(params=["postgres", "rest"])
def machines(request: pytest.FixtureRequest, tmp_path: Path) -> Machines:
    catalog: dict[str, Any] = {"type": request.param}
    lake: dict[str, Any] = {"catalog": catalog}
    if request.param == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres_server")
        catalog["postgres"] = {"uri": postgres.make_database(f"lease-{uuid.uuid4().hex}")}
        lake["warehouse"] = str(tmp_path / "warehouse")
    else:
        rest: RestCatalogServer = request.getfixturevalue("rest_catalog")
        catalog["rest"] = {"uri": rest.uri}
    return Machines(tmp_path, lake)


def test_with_kafka_one_of_two_machines_leads_and_the_other_takes_over(machines: Machines) -> None:
    first, second = (open_lease(machines.config()) for _ in range(2))
    assert first.acquire()
    assert not second.acquire()
    assert first.renew()
    first.release()
    assert second.acquire()
    assert not first.acquire()
    second.release()


def test_a_machine_that_falls_silent_is_followed_after_the_lease_and_learns_that_it_has_lost(
    machines: Machines,
) -> None:
    first, second = machines.lease(), machines.lease()
    assert first.acquire()
    first.applications = ("app-1",)
    for _ in range(3):
        machines.pass_seconds(5)
        assert first.renew()
        assert not second.acquire()
    machines.pass_seconds(11.9)
    assert not second.acquire()
    machines.pass_seconds(0.2)
    assert second.acquire()
    assert second.applications == ("app-1",)
    assert not first.renew()
    assert first.lost == "another process has taken it"


def test_of_many_machines_at_once_exactly_one_wins_each_time(machines: Machines) -> None:
    leases: list[Lease] = [machines.lease() for _ in range(4)]
    together = threading.Barrier(len(leases))

    def contend(lease: Lease) -> bool:
        together.wait()
        try:
            return lease.acquire()
        except StoreUnavailable:  # the others were faster all the time
            return False

    with ThreadPoolExecutor(len(leases)) as pool:
        for _ in range(2):
            won = list(pool.map(contend, leases))
            assert won.count(True) == 1
            assert [lease.renew() for lease in leases] == won
            leases[won.index(True)].release()
            machines.pass_seconds(13)


def test_leases_of_different_names_do_not_disturb_each_other_and_leave_little_behind(
    machines: Machines,
) -> None:
    landing, maintenance = machines.lease(), machines.lease("maintain")
    assert landing.acquire()
    assert maintenance.acquire()
    for _ in range(12):
        machines.pass_seconds(5)
        assert landing.renew()
        assert maintenance.renew()
    config = machines.config()
    with contextlib.closing(open_catalog(config)) as catalog:
        table = catalog.load_table((config.lake.namespace, LEASES))
    assert sorted(table.metadata.refs) == ["main", "maintain", "pipeline"]
    assert len(table.metadata.snapshots) == 3
    assert len(table.metadata.metadata_log) <= 20
    assert table.scan().to_arrow().num_rows == 0
    for snapshot in table.metadata.snapshots:
        assert snapshot.manifests(table.io) == []


def test_a_catalog_that_is_away_is_a_store_that_does_not_answer(tmp_path: Path) -> None:
    lake = {"catalog": {"type": "rest", "rest": {"uri": "http://127.0.0.1:1"}}}
    config = Config.model_validate({"data_dir": tmp_path, "wal": KAFKA, "lake": lake})
    with pytest.raises(StoreUnavailable, match="lease table is unusable: the catalog is unavailable"):
        open_lease(config).acquire()


def test_with_kafka_and_a_catalog_on_this_machine_the_lease_is_on_this_machine_too(tmp_path: Path) -> None:
    config = Config.model_validate({"data_dir": tmp_path, "wal": KAFKA})
    assert isinstance(open_lease(config), LocalLease)


def test_the_table_of_leases_is_not_read_ahead_as_if_it_held_telemetry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config.model_validate({"data_dir": tmp_path})
    assert TableEpochs(config, "pipeline").add(0, b"{}")
    lake = Lake(config)
    lake.warm()
    lake.close()
    assert "not prefetched" not in capsys.readouterr().out
