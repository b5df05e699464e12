"""`frazil backfill service_edges` as it is typed, with tasks that run in this process: the service graph is
the same afterwards, also if the command is killed between two days.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from frazil.cli import app
from frazil.pipeline.derive.days import days_left
from frazil.pipeline.maintain import command as maintain_command
from frazil.tables import derived_specs
from frazil.times import day_text
from tests.support.calls import DAY, HOUR, SERVER, Span, edges_seen, expected_edges, hex16
from tests.support.derived_lake import Crash, DerivedLake
from tests.support.random_telemetry import spans_request

EDGES = "service_edges"
SETTINGS = {"disabled_tables": [spec.name for spec in derived_specs("spans") if spec.name != EDGES]}
TO_PAY = {"server_address": "pay.example.com"}


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DerivedLake]:
    """The command finds no active pipeline, and works on this lake."""
    with contextlib.closing(DerivedLake(tmp_path / "data", derive=SETTINGS)) as made:
        made.now -= made.now % DAY + 12 * HOUR  # noon of yesterday

        @contextlib.contextmanager
        def opened(_: Any) -> Iterator[tuple[Any, Any]]:
            yield made.catalog, made.runner

        monkeypatch.setattr(maintain_command, "opened", opened)
        settings = {"data_dir": str(tmp_path / "data"), "derive": SETTINGS}
        (tmp_path / "frazil.yaml").write_text(json.dumps(settings))
        monkeypatch.chdir(tmp_path)
        yield made


def calls_of(lake: DerivedLake, days: int) -> tuple[list[Span], list[Span]]:
    """Clients of one day, of which one has no server, and the servers of the others, one after midnight."""
    at, first = lake.now - days * DAY, 100 * days
    midnight = at - at % DAY
    clients = [
        Span(hex16(first + 1), at=at, attributes=TO_PAY),
        Span(hex16(first + 2), at=at + 60, status_code=2),
        Span(hex16(first + 3), at=midnight - 5),
    ]
    servers = [
        Span(hex16(first + 12), hex16(first + 2), SERVER, "cart", at + 61),
        Span(hex16(first + 13), hex16(first + 3), SERVER, "stock", midnight + 1),
    ]
    return clients, servers


@pytest.fixture
def spans(lake: DerivedLake) -> list[Span]:
    """Of five days. Clients and servers are derived in different rounds."""
    pairs = [calls_of(lake, days) for days in (0, 1, 3)]
    for side in (0, 1):
        landed = [span for pair in pairs for span in pair[side]]
        lake.land_requests("spans", [(each.tenant_id, spans_request([each])) for each in landed])
        lake.derive("spans")
    return [span for pair in pairs for side in pair for span in side]


def seen(lake: DerivedLake) -> dict[Any, Any]:
    return edges_seen(lake.table(EDGES).scan().to_arrow(), lake.now + 2 * DAY)


def day(lake: DerivedLake, days: int) -> str:
    return day_text(int(lake.now // DAY) - days)


def typed(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["backfill", EDGES, *arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def commits(lake: DerivedLake) -> int:
    return len(lake.table(EDGES).metadata.snapshots)


@pytest.mark.parametrize(
    ("first", "last", "derived"), [(30, None, [0, 1, 2, 3, 4]), (3, 1, [1, 2, 3]), (1, 1, [1])]
)
def test_the_graph_is_the_same_after_its_days_were_derived_again(
    lake: DerivedLake, spans: list[Span], first: int, last: int | None, derived: list[int]
) -> None:
    before, number = seen(lake), commits(lake)
    received = [dataclasses.replace(span, received=float(int(lake.now))) for span in spans]
    assert before == expected_edges(received, lake.now + 2 * DAY)
    report = typed("--from", day(lake, first), *(() if last is None else ("--to", day(lake, last))))
    wanted = [day(lake, days) for days in derived]
    assert [each["day"] for each in report["days"]] == wanted
    assert commits(lake) - number == len(wanted), "one commit for each day"
    assert seen(lake) == before
    assert days_left(lake.table(EDGES).metadata) == []


@pytest.mark.parametrize("number", [2, 4])
def test_a_command_that_is_killed_between_days_is_continued_by_the_next(
    lake: DerivedLake, spans: list[Span], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    before, run_job, jobs = seen(lake), lake.runner.run_job, 0

    def killed(work: Callable[[Any], Any], items: Any) -> Any:
        nonlocal jobs
        jobs += 1
        if jobs == number:
            raise Crash
        return run_job(work, items)

    with monkeypatch.context() as patched:
        patched.setattr(lake.runner, "run_job", killed)
        with pytest.raises(Crash):
            typed("--from", day(lake, 30))
    left = days_left(lake.table(EDGES).metadata)
    assert len(left) == 5 - number + 1
    assert seen(lake) == before, "queries between the two see the same graph"
    typed("--from", day(lake, 30))
    assert days_left(lake.table(EDGES).metadata) == []
    assert seen(lake) == before
