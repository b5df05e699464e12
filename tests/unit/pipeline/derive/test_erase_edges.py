"""An erasure of spans also reaches the service graph, its unmatched halves, and the versions of services."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from frazil.ledger import balance
from tests.support.calls import DAY, HOUR, SERVER, Span, edges_seen, expected_edges, hex16
from tests.support.derived_lake import DerivedLake
from tests.support.known_lake import holding
from tests.support.random_telemetry import spans_request

EDGES, VERSIONS = "service_edges", "service_versions"
OF_U1 = "attributes['user.id'] = 'u1'"
SECRET = {"user_id": "u1", "server_address": "zanzibar.example.com"}
OTHER = {"user_id": "u2", "server_address": "pay.example.com"}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[DerivedLake]:
    with contextlib.closing(DerivedLake(tmp_path)) as made:
        made.now -= made.now % DAY + 12 * HOUR  # noon of yesterday
        yield made


def land(lake: DerivedLake, *spans: Span) -> None:
    lake.land_requests("spans", [(each.tenant_id, spans_request([each])) for each in spans])
    lake.derive("spans")


def call(lake: DerivedLake, number: int, attributes: dict[str, str], **more: Any) -> Span:
    return Span(hex16(number), at=lake.now, attributes=attributes, **more)


def seen(lake: DerivedLake) -> dict[Any, Any]:
    return edges_seen(lake.table(EDGES).scan().to_arrow(), lake.now + DAY)


def expected(lake: DerivedLake, *spans: Span) -> dict[Any, Any]:
    received = [dataclasses.replace(span, received=float(int(lake.now))) for span in spans]
    return expected_edges(received, lake.now + DAY)


def reports(lake: DerivedLake, where: str = OF_U1, **options: Any) -> dict[str, Any]:
    erasure = lake.erase(where, tables=("spans",), **options)
    assert erasure.is_proven
    return {each.table: each for each in erasure.tables if each.table in (EDGES, VERSIONS)}


def test_halves_and_calls_of_erased_spans_are_gone_and_those_of_others_stay(lake: DerivedLake) -> None:
    gone = call(lake, 1, SECRET), call(lake, 2, SECRET, service_name="vault")
    answer = Span(hex16(3), hex16(2), SERVER, "cart", lake.now)
    stay = call(lake, 4, OTHER), Span(hex16(5), hex16(4), SERVER, "cart", lake.now)
    others = call(lake, 6, SECRET, tenant_id="globex")
    land(lake, gone[0], gone[1], answer)
    land(lake, stay[0], others)
    land(lake, stay[1])
    found = reports(lake)
    assert [len(found[name].days_recomputed) for name in (EDGES, VERSIONS)] == [1, 1]
    assert seen(lake) == expected(lake, answer, *stay, others)
    assert lake.merged(VERSIONS) == lake.expected(VERSIONS)
    folder = lake.config.data_dir / "warehouse" / "otel" / EDGES
    left = holding(folder, "zanzibar")
    assert left, "of the other tenant"
    assert not [path for path in left if "tenant_id=acme" in path]
    assert holding(folder, "vault") == []


def test_of_two_halves_the_one_that_was_not_erased_is_a_call_to_a_virtual_node(lake: DerivedLake) -> None:
    client = call(lake, 1, OTHER)
    land(lake, client)
    land(lake, Span(hex16(2), hex16(1), SERVER, "cart", lake.now, attributes={"user_id": "u1"}))
    assert {key[3] for key in seen(lake)} == {"cart"}
    reports(lake)
    assert seen(lake) == expected(lake, client)
    assert {key[3] for key in seen(lake)} == {"pay.example.com"}


def test_numbers_of_days_whose_other_rows_are_gone_stay_and_the_report_names_the_days(tmp_path: Path) -> None:
    rule = {"table": "spans", "where": "service_name = 'old'", "after_seconds": "7d"}
    with contextlib.closing(DerivedLake(tmp_path, maintain={"retention": {"rules": [rule]}})) as lake:
        noon = lake.now - 10 * DAY - lake.now % DAY + 12 * HOUR
        old, web = (
            dataclasses.replace(call(lake, number, SECRET), service_name=name, at=noon)
            for number, name in ((1, "old"), (2, "web"))
        )
        land(lake, old, web)
        before = seen(lake)
        assert lake.retain(table="spans", confirmed=True).rows_removed == 1
        assert seen(lake) == before, "retention of spans changes nothing"
        found = reports(lake, yes=True)
        assert seen(lake) == before
        for report in found.values():
            assert (len(report.days_kept), report.days_recomputed) == (1, [])
        reports(lake, "time < '2100-01-01'", yes=True)
        assert seen(lake) == {}, "a condition on columns of the table removes its own rows"


def test_counts_balance_and_a_backfill_of_a_day_changes_no_edge(lake: DerivedLake) -> None:
    spans: Sequence[Span] = [
        *(call(lake, number, OTHER) for number in range(1, 6)),
        *(Span(hex16(10 + number), hex16(number), SERVER, "cart", lake.now) for number in range(1, 4)),
    ]
    for each in spans:
        land(lake, each)
    assert balance(lake.config).problems == []
    before, rows = seen(lake), lake.table(EDGES).scan().count()
    assert before == expected(lake, *spans)
    for name in (EDGES, VERSIONS):
        lake.deriver("spans").rederive([name], {int(lake.now // DAY)})
    assert seen(lake) == before
    assert lake.table(EDGES).scan().count() < rows, "both sides are derived together"
    assert lake.merged(VERSIONS) == lake.expected(VERSIONS)
    assert balance(lake.config).problems == []
