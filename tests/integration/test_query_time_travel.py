"""The tables as they were: at a time, in a snapshot, under a tag."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import pytest
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import SetSnapshotRefUpdate

from frazil.config import Config
from frazil.errors import QueryInvalid
from frazil.query.model import AsOf
from frazil.tables import Signal
from tests.support.integration.moving_lake import Landing, Log, configured
from tests.support.query.small_lake import Service

BODIES = "SELECT body FROM logs ORDER BY body"
JOINED = "SELECT l.body, s.name FROM logs l JOIN spans s USING (trace_id) ORDER BY ALL"
TRACES = [os.urandom(16) for _ in range(4)]
AGES_AGO = AsOf(time=1_000_000)


class Past:
    """Three batches of logs and of spans, each landed alone; a fourth has not landed."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.landing = Landing(config)
        self.logs, self.spans = Log(config), Log(config, "spans")
        self.times: list[int] = []
        self.snapshots: dict[Signal, list[int]] = {"logs": [], "spans": []}
        for number in range(3):
            self.write(number)
            self.land()
        self.write(3)

    def write(self, number: int) -> None:
        self.logs.write([f"log {number}"], traces=TRACES[number:])
        self.spans.write([f"span {number}"], traces=TRACES[number:])

    def land(self) -> None:
        self.landing.land()
        for signal, found in self.snapshots.items():
            snapshot = self.landing.landers[signal].checkpoint().table.current_snapshot()
            assert snapshot is not None
            found.append(snapshot.snapshot_id)
        self.times.append(self._later())

    def _later(self) -> int:
        """A moment after the last commit and before the next: commits have milliseconds."""
        now = time.time_ns() // 1_000_000
        while time.time_ns() // 1_000_000 <= now + 1:
            pass
        return (now + 1) * 1000

    def tag(self, signal: Signal, name: str, snapshot_id: int) -> None:
        table = self.landing.catalog.load_table(("otel", signal))
        update = SetSnapshotRefUpdate(ref_name=name, type=SnapshotRefType.TAG, snapshot_id=snapshot_id)
        self.landing.catalog.commit_table(table, (), (update,))


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    # What is known is as old as it may be: what was done a moment ago has to be found all the same.
    made = Past(configured(tmp_path_factory.mktemp("past"), query={"metadata_age_max_seconds": 600}))
    with contextlib.closing(made.landing):
        yield made


@pytest.fixture(scope="module")
def service(past: Past) -> Iterator[Service]:
    service = Service(past.config)
    service.start()
    try:
        yield service
    finally:
        service.close()


def bodies(service: Service, as_of: AsOf | None) -> list[str]:
    return [row[0] for row in service.execute(BODIES, as_of=as_of).rows]


def logs(count: int) -> list[str]:
    return [f"log {number}" for number in range(count)]


def test_now_has_what_has_not_landed_and_the_past_does_not(service: Service, past: Past) -> None:
    assert bodies(service, None) == logs(4)
    told = service.execute(BODIES, as_of=AsOf(time=past.times[-1]))
    assert (told.rows, told.stats.tail_rows) == ([[text] for text in logs(3)], 0)


@pytest.mark.parametrize("number", range(3))
def test_a_time_and_a_snapshot_give_what_had_landed_then(service: Service, past: Past, number: int) -> None:
    assert bodies(service, AsOf(time=past.times[number])) == logs(number + 1)
    assert bodies(service, AsOf(snapshot_id=past.snapshots["logs"][number])) == logs(number + 1)


@pytest.mark.parametrize("number", range(3))
def test_a_time_is_the_same_for_all_tables_of_a_question(service: Service, past: Past, number: int) -> None:
    told = service.execute(JOINED, as_of=AsOf(time=past.times[number]))
    assert told.rows == [[f"log {each}", f"span {each}"] for each in range(number + 1)]
    assert told.stats.snapshots == {signal: found[number] for signal, found in past.snapshots.items()}


def test_a_tag_that_all_tables_have_holds_for_a_join(service: Service, past: Past) -> None:
    bodies(service, None)
    for signal, found in past.snapshots.items():
        past.tag(signal, "before the release", found[1])
    told = service.execute(JOINED, as_of=AsOf(tag="before the release"))
    assert told.rows == [["log 0", "span 0"], ["log 1", "span 1"]]


def test_a_tag_that_was_made_just_now_is_found(service: Service, past: Past) -> None:
    """Whatever the service knew before."""
    bodies(service, None)
    past.tag("logs", "just now", past.snapshots["logs"][0])
    assert bodies(service, AsOf(tag="just now")) == logs(1)


def test_a_snapshot_of_one_table_cannot_be_asked_of_two(service: Service, past: Past) -> None:
    with pytest.raises(QueryInvalid, match=r"otel\.spans has no snapshot \d+; the oldest time is 20"):
        service.execute(JOINED, as_of=AsOf(snapshot_id=past.snapshots["logs"][1]))


def test_errors_say_what_there_is(service: Service, past: Past) -> None:
    with pytest.raises(QueryInvalid, match=r"has no tag `nope`; .* tags and branches are .*landed, main"):
        bodies(service, AsOf(tag="nope"))
    with pytest.raises(QueryInvalid, match=r"as old as 1970-01-01 00:00:01 UTC; the oldest time is 20"):
        bodies(service, AGES_AGO)
    with pytest.raises(QueryInvalid, match="no snapshot 42"):
        bodies(service, AsOf(snapshot_id=42))
    with pytest.raises(QueryInvalid, match="metrics does not exist yet"):
        service.execute("SELECT count(*) FROM metrics", as_of=AsOf(time=past.times[0]))


def test_the_past_of_one_tenant_is_not_another_ones(service: Service, past: Past) -> None:
    for as_of in (AsOf(time=past.times[2]), AsOf(snapshot_id=past.snapshots["logs"][2]), AsOf(tag="landed")):
        assert service.execute(BODIES, "globex", as_of=as_of).rows == []


def test_as_of_now_has_what_landed_a_moment_ago(service: Service, past: Past) -> None:
    assert bodies(service, None)[:4] == logs(4)
    past.land()
    assert bodies(service, AsOf(time=past.times[-1])) == logs(4)
    assert bodies(service, AsOf(snapshot_id=past.snapshots["logs"][-1])) == logs(4)
    assert bodies(service, AsOf(time=past.times[0])) == logs(1), "and the past stays what it was"


def test_the_same_question_of_another_time_is_another_question(service: Service, past: Past) -> None:
    """Answers are kept; none is given for another moment."""
    for _ in range(2):
        for number in range(3):
            assert bodies(service, AsOf(time=past.times[number])) == logs(number + 1)
