"""Tables made from their specs: by one of many at once, evolved in place, never bent to another type."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitStateUnknownException

from frazil.config import Config
from frazil.errors import ConfigError, DataLost
from frazil.lake.catalog import open_catalog
from frazil.lake.commits.commit import Committer, read_checkpoint
from frazil.lake.schema import iceberg_schema
from frazil.lake.snapshots import LANDED
from frazil.lake.tables import open_table
from frazil.tables import SET_ASIDE, SIGNALS, Promoted, Signal, landed_spec

LOGS = ("otel", "logs")
RACER = """
import sys
from pathlib import Path
from frazil.config import Config
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.lake.tables import open_table
from frazil.tables import landed_spec
config = Config.model_validate({"data_dir": Path(sys.argv[1])})
print("ready", flush=True)
sys.stdin.readline()
catalog = open_catalog(config)
ensure_namespace(catalog, "otel")
print(open_table(catalog, "otel", landed_spec("logs"), "at 0").landed, flush=True)
"""


def test_a_new_table_has_one_empty_snapshot_with_the_tag_and_the_first_position(catalog: Catalog) -> None:
    checkpoint = open_table(catalog, "otel", landed_spec("logs"), "at 0")
    assert checkpoint.position == "at 0"
    assert [snapshot.snapshot_id for snapshot in checkpoint.table.snapshots()] == [checkpoint.landed]
    assert checkpoint.table.metadata.refs[LANDED].snapshot_id == checkpoint.landed
    assert checkpoint.table.metadata.current_snapshot_id == checkpoint.landed
    assert checkpoint.table.scan().to_arrow().num_rows == 0


def test_a_table_that_is_there_is_opened_as_it_is(catalog: Catalog) -> None:
    made = open_table(catalog, "otel", landed_spec("logs"), "at 0")
    again = open_table(catalog, "otel", landed_spec("logs"), "another beginning")
    assert (again.landed, again.position) == (made.landed, "at 0")
    assert again.table.metadata_location == made.table.metadata_location


@pytest.mark.slow
def test_of_processes_that_make_a_table_at_once_one_does_and_all_find_the_same(config: Config) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(config.data_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    assert all(racer.stdout and racer.stdout.readline() == "ready\n" for racer in racers)
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("\n")
        racer.stdin.flush()
    said = [racer.communicate(timeout=120)[0].split("\n")[-2] for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0, 0]
    assert len(set(said)) == 1
    with contextlib.closing(open_catalog(config)) as catalog:
        assert len(catalog.load_table(LOGS).snapshots()) == 1


def test_of_threads_that_make_a_table_at_once_one_does(config: Config, catalog: Catalog) -> None:
    landed: list[int] = []
    ready = threading.Barrier(6)

    def make() -> None:
        with contextlib.closing(open_catalog(config)) as own:
            ready.wait(30)
            landed.append(open_table(own, "otel", SET_ASIDE, "at 0").landed)

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(landed) == 6
    assert len(set(landed)) == 1


def test_a_table_whose_making_was_applied_but_not_answered_is_found(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = catalog.commit_table

    def lose_answer(*args: Any) -> Any:
        real(*args)
        raise CommitStateUnknownException("lost")

    with monkeypatch.context() as lossy:
        lossy.setattr(catalog, "commit_table", lose_answer)
        with pytest.raises(CommitStateUnknownException):
            open_table(catalog, "otel", SET_ASIDE, "at 0")
    assert len(open_table(catalog, "otel", SET_ASIDE, "at 0").table.snapshots()) == 1


def test_new_columns_are_added_in_their_place_and_old_ids_stay(catalog: Catalog) -> None:
    before = open_table(catalog, "otel", landed_spec("logs"), "at 0").table.schema()
    extra = (
        Promoted("cart.id"),
        Promoted("retries", "resource", "int"),
        Promoted("cart.total", type="double"),
    )
    spec = landed_spec("logs", extra)
    table = open_table(catalog, "otel", spec, "at 0").table
    assert [field.name for field in table.schema().fields] == [column.name for column in spec.columns]
    for field in before.fields:
        assert table.schema().find_field(field.name) == field
    fresh = iceberg_schema(spec)
    for promoted in extra:
        added = table.schema().find_field(promoted.column)
        assert (str(added.field_type), added.doc) == (
            str(fresh.find_field(promoted.column).field_type),
            fresh.find_field(promoted.column).doc,
        )
        assert added.field_id > max(before.field_ids)
        assert not added.required


def test_a_bloom_filter_asked_for_later_becomes_a_property(catalog: Catalog) -> None:
    key = "write.parquet.bloom-filter-enabled.column.cart_id"
    plain, filtered = (landed_spec("logs", (Promoted("cart.id", bloom=bloom),)) for bloom in (False, True))
    assert key not in open_table(catalog, "otel", plain, "at 0").table.properties
    assert open_table(catalog, "otel", filtered, "at 0").table.properties[key] == "true"


def test_evolution_leaves_rows_and_position_alone(catalog: Catalog) -> None:
    made = open_table(catalog, "otel", landed_spec("logs"), "at 0")
    Committer(catalog, deadline_seconds=60).append(made, [], "at 1")
    evolved = open_table(catalog, "otel", landed_spec("logs", (Promoted("cart.id"),)), "at 0")
    assert evolved.position == "at 1"
    assert len(evolved.table.snapshots()) == 2


def test_a_column_that_is_promoted_no_longer_stays(catalog: Catalog) -> None:
    open_table(catalog, "otel", landed_spec("logs", (Promoted("cart.id"),)), "at 0")
    table = open_table(catalog, "otel", landed_spec("logs"), "at 0").table
    assert table.schema().find_field("cart_id") is not None


def test_a_commit_that_was_staged_before_an_evolution_succeeds(config: Config, catalog: Catalog) -> None:
    old = open_table(catalog, "otel", landed_spec("logs"), "at 0")
    with contextlib.closing(open_catalog(config)) as other:
        open_table(other, "otel", landed_spec("logs", (Promoted("cart.id"),)), "at 0")
    assert Committer(catalog, deadline_seconds=60).append(old, [], "at 1").attempts == 1
    now = read_checkpoint(catalog, LOGS)
    assert now.position == "at 1"
    assert now.table.schema().find_field("cart_id") is not None


def test_of_processes_that_evolve_a_table_at_once_each_finds_its_columns(
    config: Config, catalog: Catalog
) -> None:
    open_table(catalog, "otel", landed_spec("logs"), "at 0")
    ready = threading.Barrier(3)
    failed: list[BaseException] = []

    def evolve(*attributes: str) -> None:
        spec = landed_spec("logs", tuple(Promoted(attribute) for attribute in attributes))
        try:
            with contextlib.closing(open_catalog(config)) as own:
                ready.wait(30)
                names = {field.name for field in open_table(own, "otel", spec, "at 0").table.schema().fields}
                assert {column.name for column in spec.columns} <= names
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=evolve, args=names) for names in [("a",), ("a", "b"), ("b", "c")]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    names = [field.name for field in catalog.load_table(LOGS).schema().fields]
    assert {"a", "b", "c"} <= set(names)
    assert len(names) == len(set(names))


def test_a_column_of_another_type_is_a_mistake_in_the_configuration(catalog: Catalog) -> None:
    open_table(catalog, "otel", landed_spec("logs", (Promoted("cart.id"),)), "at 0")
    with pytest.raises(ConfigError, match=r"cart_id has type string.*says int.*name with `column`"):
        open_table(catalog, "otel", landed_spec("logs", (Promoted("cart.id", type="int"),)), "at 0")
    named = Promoted("cart.id", type="int", name="cart_number")
    assert (
        open_table(catalog, "otel", landed_spec("logs", (named,)), "at 0")
        .table.schema()
        .find_field("cart_number")
    )


def test_properties_that_somebody_lost_come_back_and_those_of_others_stay(catalog: Catalog) -> None:
    table = open_table(catalog, "otel", SET_ASIDE, "at 0").table
    with table.transaction() as transaction:
        transaction.remove_properties("write.metadata.delete-after-commit.enabled")
        transaction.set_properties({"owner": "me", "write.metadata.previous-versions-max": "50"})
    table = open_table(catalog, "otel", SET_ASIDE, "at 0").table
    assert table.properties["write.metadata.delete-after-commit.enabled"] == "true"
    assert table.properties["owner"] == "me"
    assert table.properties["write.metadata.previous-versions-max"] == "50"


def test_a_table_that_somebody_cut_otherwise_is_not_written_to(catalog: Catalog) -> None:
    table = open_table(catalog, "otel", landed_spec("logs"), "at 0").table
    with table.update_spec() as update:
        update.add_identity("service_name")
    with pytest.raises(ConfigError, match="restore the table's partition spec"):
        open_table(catalog, "otel", landed_spec("logs"), "at 0")


def test_a_table_that_the_catalog_has_lost_is_not_begun_anew_in_its_place(
    config: Config, catalog: Catalog
) -> None:
    checkpoint = open_table(catalog, "otel", SET_ASIDE, "at 0")
    Committer(catalog, deadline_seconds=5).append(checkpoint, [], "at 1")
    catalog.drop_table(("otel", "set_aside"))
    with pytest.raises(DataLost, match="rebuild-catalog"):
        open_table(catalog, "otel", SET_ASIDE, "at 0")


def test_what_a_creation_left_that_died_half_way_is_no_hindrance(catalog: Catalog) -> None:
    open_table(catalog, "otel", SET_ASIDE, "at 0")
    catalog.drop_table(("otel", "set_aside"))
    assert open_table(catalog, "otel", SET_ASIDE, "at 0").position == "at 0"


@pytest.mark.parametrize("signal", SIGNALS)
def test_a_table_is_cut_ordered_and_documented_as_its_spec_says(catalog: Catalog, signal: Signal) -> None:
    spec = landed_spec(signal)
    table = open_table(catalog, "otel", spec, "at 0").table
    schema = table.schema()
    assert [field.name for field in schema.fields] == [column.name for column in spec.columns]
    for column in spec.columns:
        field = schema.find_field(column.name)
        assert field.required == column.required
        assert field.doc == f"{column.doc}. From: {column.source}"
    cut = [
        (schema.find_column_name(each.source_id), str(each.transform), each.name)
        for each in table.spec().fields
    ]
    assert cut == [("tenant_id", "identity", "tenant_id"), ("time", "day", "time_day")]
    order = [
        (schema.find_column_name(each.source_id), each.direction.name, each.null_order.name)
        for each in table.sort_order().fields
    ]
    assert order == [(name, "ASC", "NULLS_FIRST") for name in spec.sort_by]
    assert table.metadata.format_version == 2
    kept = {
        "write.format.default": "parquet",
        "write.parquet.compression-codec": "zstd",
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "10",
        "write.delete.mode": "copy-on-write",
        "write.update.mode": "copy-on-write",
        "write.merge.mode": "copy-on-write",
        "write.metadata.metrics.default": "none",
        "write.metadata.metrics.column.time": "truncate(32)",
        "write.metadata.metrics.column.tenant_id": "truncate(32)",
        "comment": spec.doc,
    }
    assert kept.items() <= table.properties.items()
    for name in spec.bloom_filters:
        assert table.properties[f"write.parquet.bloom-filter-enabled.column.{name}"] == "true"
    assert "write.metadata.metrics.column.attributes" not in table.properties
    assert "write.metadata.metrics.column.body" not in table.properties
