"""A tenant whose spans never find the other side of their call does not fill the table. No call is lost."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from frazil.lake.live_files import FilePartition
from frazil.pipeline.datafile import Layout, write_part
from frazil.pipeline.derive.unmatched import Room, Waiting, pending_rows
from frazil.pipeline.inputs import opened
from frazil.pipeline.maintain.merge.settle import Settling
from frazil.pipeline.partition_sort import partition_and_sort
from frazil.tables.derived.combine import combine, rolled_up
from frazil.tables.derived.service_edges import SERVICE_EDGES, service_edge_rows
from tests.support.calls import DAY, MINUTE, NOON, SERVER, Span, edges_seen, hex16, span_table
from tests.support.derived_lake import DerivedLake
from tests.support.random_telemetry import spans_request

MAX = 8
EDGES = "service_edges"
TO_PAY = {"server_address": "pay.example.com"}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[DerivedLake]:
    with contextlib.closing(DerivedLake(tmp_path, derive={"unmatched_spans_per_day_max": MAX})) as made:
        made.now += DAY / 2 - made.now % DAY - DAY  # noon of yesterday
        yield made


def clients(lake: DerivedLake, numbers: Iterable[int], tenant: str = "acme") -> list[Span]:
    return [Span(hex16(each), at=lake.now, attributes=TO_PAY, tenant_id=tenant) for each in numbers]


def land(lake: DerivedLake, spans: Sequence[Span]) -> None:
    lake.land_requests("spans", [(each.tenant_id, spans_request([each])) for each in spans])


def pending(lake: DerivedLake) -> dict[str, int]:
    table = lake.table(EDGES)
    found = pending_rows(table, [int(lake.now // DAY)])
    scanned = Counter(table.scan(row_filter="resolution <= 1").to_arrow()["tenant_id"].to_pylist())
    assert {partition.tenant: rows for partition, rows in found.items() if rows} == scanned
    return dict(scanned)


def calls(lake: DerivedLake) -> dict[tuple[Any, ...], int]:
    """By tenant and callee, at the resolution of a day, long after."""
    seen = edges_seen(lake.table(EDGES).scan().to_arrow(), lake.now + DAY)
    found: Counter[tuple[Any, ...]] = Counter()
    for key, row in seen.items():
        if key[1] == DAY:
            found[key[0], key[3]] += row[0]
    return found


def sample(lake: DerivedLake, name: str) -> float | None:
    return lake.registry.get_sample_value(name, {"table": EDGES})


def test_beyond_the_bound_spans_do_not_wait_and_calls_are_counted(lake: DerivedLake) -> None:
    land(lake, [*clients(lake, range(1, 6)), *clients(lake, range(1, 4), "globex")])
    lake.derive("spans")
    assert pending(lake) == {"acme": 5, "globex": 3}
    land(lake, clients(lake, range(6, 30)))
    lake.derive("spans")
    assert pending(lake) == {"acme": MAX, "globex": 3}
    land(lake, clients(lake, range(30, 40)))
    lake.derive("spans")
    assert pending(lake) == {"acme": MAX, "globex": 3}, "the table's files tell that it is full"
    assert calls(lake) == {("acme", "pay.example.com"): 39, ("globex", "pay.example.com"): 3}
    assert sample(lake, "frazil_derive_unmatched_not_kept_total") == 31


def test_spans_that_wait_still_find_the_other_side_and_others_do_not(lake: DerivedLake) -> None:
    land(lake, clients(lake, range(1, 30)))
    lake.derive("spans")
    servers = [Span(hex16(100 + each), hex16(each), SERVER, "pay", at=lake.now) for each in range(1, 30)]
    land(lake, servers)
    lake.derive("spans")
    assert pending(lake) == {"acme": MAX}, "there is no room for servers"
    assert calls(lake) == {("acme", "pay.example.com"): 29}


def test_a_day_that_is_derived_again_has_its_whole_room(lake: DerivedLake) -> None:
    land(lake, clients(lake, range(1, 5)))
    land(lake, clients(lake, range(5, 9)))
    lake.derive("spans")
    lake.deriver("spans").rederive([EDGES], {int(lake.now // DAY)})
    assert pending(lake) == {"acme": 8}
    assert calls(lake) == {("acme", "pay.example.com"): 8}


def test_tasks_share_the_room_and_one_with_few_rows_of_a_day_takes_little() -> None:
    rows = rolled_up(
        service_edge_rows(span_table([Span(hex16(each)) for each in range(1, 11)])), SERVICE_EDGES
    )
    day = FilePartition("acme", int(rows["time"][0].as_py().timestamp() // DAY))
    waiting = Waiting(SERVICE_EDGES, {day: Room(rows=10, source_rows=40)}, [_File(day, 20)])  # type: ignore[list-item]
    first, second = waiting.kept(rows), waiting.kept(rows)
    halves = [pc.sum(pc.equal(each["resolution"], 0)).as_py() for each in (first, second)]
    assert halves == [5, 0]
    assert waiting.given_up[day] == 15
    assert sum(edges_seen(first, 1e12)[key][0] for key in edges_seen(first, 1e12) if key[1] == DAY) == 10


@dataclasses.dataclass
class _File:
    partition: FilePartition
    rows: int

    @property
    def file(self) -> Any:
        return dataclasses.make_dataclass("File", [("record_count", int)])(self.rows)


def test_one_id_that_occurs_very_often_is_settled_in_bounded_memory(tmp_path: Path) -> None:
    """As from a client that sends the same parent id in all its spans."""
    servers = [Span(hex16(2 + each), hex16(1), SERVER, "cart", NOON + each * MINUTE) for each in range(2)]
    few = rolled_up(service_edge_rows(span_table(servers)), SERVICE_EDGES)
    many = few.take(pa.array(np.arange(150_000) % 2))
    client = rolled_up(service_edge_rows(span_table([Span(hex16(1))])), SERVICE_EDGES)
    with contextlib.closing(DerivedLake(tmp_path)) as lake:
        land(lake, [Span(hex16(9), kind=1)])
        lake.derive("spans")
        layout = Layout.of(lake.table(EDGES), SERVICE_EDGES, 1)
        parts = partition_and_sort([many, client], SERVICE_EDGES).parts
        files = [write_part(layout, part, f"many-{at}") for at, part in enumerate(parts)]
        with opened(layout, files) as (inputs, _):
            settling = Settling(layout, inputs, 128 * 2**20, settled_until=1e12)
            assert max(rows.num_rows for rows in settling._whole_groups()) < 100_000
        with opened(layout, files) as (inputs, _):
            settled = pa.concat_tables(list(Settling(layout, inputs, 128 * 2**20, 1e12).groups()))
        found = combine(settled, SERVICE_EDGES)
        assert found.filter(pc.equal(found["resolution"], DAY))["calls"].to_pylist() == [150_000]
