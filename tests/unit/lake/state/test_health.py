"""The health of tables, from facts of their files, and as Prometheus sees it."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from frazil.config import Config, MaintainConfig
from frazil.config.maintain import DAY_SECONDS
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.commits.metadata_commit import MAINTENANCE
from frazil.lake.live_files import all_facts, live_files
from frazil.lake.state.health import SIZES_MAX, TableGauges, TableState, health, measure, state_of
from frazil.lake.tables import open_table
from frazil.position import LandingPosition
from frazil.tables import SET_ASIDE, landed_spec
from tests.support.query.small_lake import LANDED_PER_DAY, fill
from tests.unit.lake.upkeep.test_choose import MIB, NOON, TODAY, file_of, files_of

CONFIG = MaintainConfig()
STATE = TableState(10, 4, 5000, 2_000_000_000, 3_000_000_000, {})


def test_no_files_are_no_trouble() -> None:
    found = health([], CONFIG, NOON)
    assert (found.files, found.bytes, found.rows, found.small_files) == (0, 0, 0, 0)
    assert (found.waiting_files, found.waiting_bytes, found.lag_seconds) == (0, 0, 0.0)
    assert (found.files_per_moment, found.oldest_micros, found.monthly_cost) == (None, None, 0.0)


def test_files_are_counted_by_their_size() -> None:
    sizes = [0, 64 * 1024, 64 * 1024 + 1, MIB, 512 * MIB, 512 * MIB + 1]
    found = health([file_of(at, size) for at, size in enumerate(sizes)], CONFIG, NOON)
    assert [each.bytes_max for each in found.sizes] == list(SIZES_MAX)
    assert [each.files for each in found.sizes] == [2, 2, 0, 0, 0, 1, 1]
    assert sum(each.bytes for each in found.sizes) == found.bytes == sum(sizes)
    assert found.small_files == 4
    assert found.rows == sum(size // 50 for size in sizes)


def test_files_that_follow_each_other_are_one_a_moment() -> None:
    assert health(files_of(20), CONFIG, NOON).files_per_moment == pytest.approx(1, abs=0.001)


def test_files_of_the_same_time_are_as_many_a_moment() -> None:
    same = [replace(file_of(0), path=f"{number}.parquet") for number in range(4)]
    assert health(same, CONFIG, NOON).files_per_moment == 4
    other_tenant = [replace(file, tenant="other") for file in same[:2]]
    assert health([*same, *other_tenant], CONFIG, NOON).files_per_moment == 3
    over_all = replace(same[0], path="all", last_micros=same[0].first_micros + 10 * 30_000_000 - 1)
    assert health([*files_of(10), over_all], CONFIG, NOON).files_per_moment == pytest.approx(2, abs=0.001)


def test_times_that_no_file_has_do_not_count() -> None:
    assert health([file_of(0), file_of(2000)], CONFIG, NOON).files_per_moment == 1


def test_what_is_due_waits_since_its_last_file_came() -> None:
    files = [replace(file, committed_seconds=NOON - 300 + at) for at, file in enumerate(files_of(32, 20_000))]
    found = health([*files, file_of(40, 400 * MIB)], CONFIG, NOON)
    assert (found.waiting_files, found.waiting_bytes) == (32, 640_000)
    assert found.lag_seconds == 300 - 31
    assert health(files[1:], CONFIG, NOON).lag_seconds == 0


def test_a_table_that_is_not_merged_waits_for_nothing() -> None:
    files = [replace(file, committed_seconds=NOON - 300) for file in files_of(40, 20_000)]
    assert health(files, CONFIG, NOON).waiting_files > 0
    found = health(files, CONFIG, NOON, spec=SET_ASIDE)
    assert (found.files, found.waiting_files, found.lag_seconds) == (40, 0, 0)


def test_what_waits_for_longer_than_is_known_waits_at_least_since_then() -> None:
    files = files_of(32, 20_000)
    assert health(files, CONFIG, NOON, known_since=NOON - 1800).lag_seconds == 1800
    assert health(files, CONFIG, NOON).lag_seconds == 0


def test_a_closed_day_waits_since_it_was_closed() -> None:
    now = (TODAY + 1) * DAY_SECONDS + CONFIG.compact.closed_after_seconds + 77
    assert health(files_of(3), CONFIG, now).lag_seconds == 77


def test_the_backlog_is_all_of_it_and_not_a_round() -> None:
    files = files_of(320, 16 * MIB)
    assert health(files, CONFIG, NOON).waiting_files == 320


def test_the_cost_is_that_of_what_is_kept() -> None:
    files = [file_of(0, 1_000_000_000)]
    priced = MaintainConfig(storage_price=0.5)
    assert health(files, priced, NOON).monthly_cost == 0.5
    assert health(files, priced, NOON, table=STATE).monthly_cost == 3.0
    unknown = replace(STATE, old_bytes=None, orphan_bytes=None)
    assert health(files, priced, NOON, table=unknown).monthly_cost == 0.5


def test_a_tables_facts_are_read_from_its_metadata(tmp_path: Path) -> None:
    config = Config(data_dir=tmp_path)
    fill(config, int(NOON) * 10**9)
    with contextlib.closing(open_catalog(config)) as catalog:
        table = catalog.load_table(("otel", "logs"))
        live = live_files(table)
        facts = all_facts(live, table)
        assert [all_facts([each], table)[0] for each in live] == facts
        days = {fact.day for fact in facts}
        assert len(days) == 2
        for fact in facts:
            assert fact.rows == LANDED_PER_DAY[fact.tenant or ""]
            assert fact.day == fact.first_micros // 86_400_000_000 == fact.last_micros // 86_400_000_000
            (added,) = [each for each in table.metadata.snapshots if each.sequence_number == fact.sequence]
            assert fact.committed_seconds == added.timestamp_ms / 1000
        noted = {
            "orphan_bytes": 5,
            "old_bytes": 7,
            "expired_at": 3.5,
            "compacted_at": "?",
            "orphans_at": True,
        }
        with table.transaction() as change:
            change.set_properties({MAINTENANCE: json.dumps(noted)})
        found = measure(table, config.maintain, NOON)
        assert (found.files, found.rows) == (4, 2 * sum(LANDED_PER_DAY.values()))
        assert found.table is not None
        assert found.table.snapshots == len(table.metadata.snapshots)
        assert found.table.manifests == 2
        assert (
            found.table.metadata_bytes == Path(table.metadata_location.removeprefix("file://")).stat().st_size
        )
        assert (found.table.orphan_bytes, found.table.old_bytes) == (5, 7)
        assert found.table.runs == {"expired_at": 3.0}


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"orphan_bytes": -1, "expired_at": 1e400}'])
def test_a_property_that_somebody_else_wrote_is_not_believed(tmp_path: Path, text: str) -> None:
    with contextlib.closing(open_catalog(Config(data_dir=tmp_path))) as catalog:
        ensure_namespace(catalog, "otel")
        table = open_table(catalog, "otel", landed_spec("logs"), LandingPosition().to_text()).table
        with table.transaction() as change:
            change.set_properties({MAINTENANCE: text})
        state = state_of(table.metadata, 0)
        assert (state.orphan_bytes, state.old_bytes, state.runs) == (None, None, {})


def test_gauges_show_what_is_known_and_nothing_else() -> None:
    registry = CollectorRegistry()
    gauges = TableGauges(registry)

    def value(name: str) -> float | None:
        return registry.get_sample_value(name, {"table": "logs"})

    gauges.show("logs", health(files_of(32, 20_000), CONFIG, NOON, known_since=NOON - 60, table=STATE))
    assert value("frazil_table_files") == 32
    assert value("frazil_table_bytes") == 640_000
    assert value("frazil_table_rows") == 32 * 400
    assert value("frazil_table_small_files") == 32
    assert value("frazil_table_oldest_timestamp_seconds") == TODAY * DAY_SECONDS
    assert value("frazil_maintain_waiting_bytes") == 640_000
    assert value("frazil_maintain_lag_seconds") == 60
    assert value("frazil_table_snapshots") == 10
    assert value("frazil_table_manifests") == 4
    assert value("frazil_table_metadata_bytes") == 5000
    assert value("frazil_table_orphan_bytes") == 2_000_000_000
    assert value("frazil_table_monthly_cost") == pytest.approx(5.00064 * 0.023)
    gauges.show("logs", health([], CONFIG, NOON, table=replace(STATE, orphan_bytes=None)))
    assert value("frazil_table_files") == 0
    assert value("frazil_table_orphan_bytes") is None
    assert value("frazil_table_oldest_timestamp_seconds") is None
    assert value("frazil_table_files_per_moment") is None
