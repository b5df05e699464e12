"""From what roles say to the picture: states, stages, objectives and lines, with exact numbers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import pytest

from frazil.config import Config
from frazil.health import Role
from frazil.status import Watcher
from frazil.status.stages import PolledRole
from tests.support.status_roles import Speaker, down, endpoint, reported

START = 1_790_000_000.0
SIGNALS = ("logs", "spans", "metrics")
SERIES = {
    *(("received_records_per_second", signal) for signal in SIGNALS),
    *(("landed_rows_per_second", table) for table in SIGNALS),
    *(("landing_lag_seconds", table) for table in SIGNALS),
    *(("freshness_seconds", table) for table in SIGNALS),
    ("derive_lag_seconds", None),
    ("backlog_bytes", None),
    ("backlog_age_seconds", None),
    ("ack_p99_seconds", None),
    ("refusals_per_second", None),
    ("queries_per_second", None),
    ("query_p95_seconds", None),
}


@dataclass(frozen=True)
class Said:
    """The metrics of a role, and when it was started."""

    role: Role
    text: str
    url: str | None = None
    started: float = START - 600
    problems: dict[str, str] = field(default_factory=dict)


class Story:
    """Looks that are 10 s apart, by a clock that the test moves."""

    def __init__(self, **status: Any) -> None:
        self.config = Config.model_validate({"status": status})
        self.now = 0.0
        self.watcher = Watcher(self.config, wall=lambda: START + self.now)
        self.speakers: dict[tuple[str, float], Speaker] = {}

    def heard(self, said: Said | PolledRole) -> PolledRole:
        if isinstance(said, PolledRole):
            return said
        where = endpoint(said.role, said.url)
        speaker = self.speakers.setdefault((where.url, said.started), Speaker(said.role))
        report = speaker.report(self.now, said.text)
        use = {
            "started_at": said.started,
            "memory_bytes": 3e8,
            "cpu_seconds": 12.5,
            "problems": said.problems,
        }
        return PolledRole(where, "ok", (), report.model_copy(update=use))

    def look(self, *roles: Said | PolledRole) -> Story:
        self.watcher.update([self.heard(each) for each in roles])
        self.watcher.sample()
        self.now += 10
        return self

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(orjson.dumps(self.watcher.status()))
        return found

    def line(self, name: str, of: str | None = None) -> list[float | None]:
        (found,) = (s for s in self.status["history"]["series"] if (s["name"], s["of"]) == (name, of))
        values: list[float | None] = found["values"]
        return values

    def objective(self, name: str) -> dict[str, Any]:
        (found,) = (each for each in self.status["objectives"] if each["name"] == name)
        return dict(found)


def receiver(records: int, *, slow: int = 0, busy: int = 0, started: float = START - 600) -> Said:
    """It has taken `records` requests of a log each, all but `slow` of them within 50 ms."""
    ack = 'frazil_receive_ack_seconds_bucket{signal="logs",transport="http",le='
    return Said(
        "receiver",
        f"""
frazil_receive_requests_total{{signal="logs",transport="http",outcome="ok"}} {records}
frazil_receive_requests_total{{signal="logs",transport="grpc",outcome="busy"}} {busy}
frazil_receive_records_total{{signal="logs",outcome="accepted"}} {records}
frazil_receive_bytes_total{{signal="logs"}} {100 * records}
{ack}"0.05"}} {records - slow}
{ack}"1.0"}} {records}
{ack}"+Inf"}} {records}
frazil_receive_ack_seconds_count{{signal="logs",transport="http"}} {records}
frazil_receive_ready_workers 2.0
""",
        started=started,
    )


def pipeline(
    age: float = 0.0,
    rows: int = 0,
    *,
    leader: int = 1,
    url: str | None = None,
    failing: int = 0,
) -> Said:
    return Said(
        "pipeline",
        f"""
frazil_pipeline_leader {leader}
frazil_land_pending_bytes{{table="logs"}} 1000
frazil_land_pending_bytes{{table="spans"}} 500
frazil_land_pending_segments{{table="logs"}} 3
frazil_land_pending_age_seconds{{table="logs"}} {age}
frazil_land_pending_age_seconds{{table="spans"}} {age / 2}
frazil_landed_rows_total{{table="logs"}} {rows}
frazil_land_commits_total{{table="logs"}} 4
frazil_land_last_commit_timestamp_seconds{{table="logs"}} {START - 30}
frazil_maintain_runs_total{{task="compact",table="logs",outcome="done"}} 5
frazil_maintain_runs_total{{task="compact",table="logs",outcome="failed"}} 1
frazil_maintain_failing{{task="compact",table="logs"}} {failing}
frazil_maintain_failing{{task="compact",table="spans"}} 0
frazil_maintain_last_timestamp_seconds{{task="compact",table="logs"}} {START - 60}
frazil_maintain_waiting_bytes{{table="logs"}} 42
frazil_table_files{{table="logs"}} 7
frazil_store_seconds_bucket{{store="lake",operation="put",le="0.1"}} {rows}
frazil_store_seconds_bucket{{store="lake",operation="put",le="+Inf"}} {rows}
frazil_store_seconds_count{{store="lake",operation="put"}} {rows}
""",
        url=url,
    )


def deriving(
    table: str = "log_rollups",
    *,
    off: int = 0,
    failing: int = 0,
    days: int = 0,
    age: float = 0.0,
    rows: int = 0,
    committed: float = START - 20,
    limited: int = 0,
    unmatched: int = 0,
    problem: str = "",
) -> Said:
    """A pipeline that derives."""
    text = f"""
frazil_pipeline_leader 1
frazil_derive_disabled{{table="{table}"}} {off}
frazil_derive_failing{{table="{table}"}} {failing}
frazil_derive_days_left{{table="{table}"}} {days}
frazil_derive_pending_age_seconds{{table="{table}"}} {age}
frazil_derived_source_rows_total{{table="{table}"}} {rows}
frazil_derive_last_commit_timestamp_seconds{{table="{table}"}} {committed}
frazil_derive_series_limited_tenants {limited}
frazil_derive_unmatched_max{{table="{table}"}} {unmatched}
"""
    return Said("pipeline", text, problems={table: problem} if problem else {})


def api(queries: int = 0) -> Said:
    return Said(
        "api",
        f"""
frazil_queries_total{{outcome="ok"}} {queries}
frazil_query_planning_seconds_bucket{{le="0.1"}} {queries}
frazil_query_planning_seconds_bucket{{le="+Inf"}} {queries}
frazil_queries_running 1
frazil_table_files{{table="logs"}} 6
frazil_table_files{{table="spans"}} 2
""",
    )


def test_rates_latencies_and_what_waits_are_exact() -> None:
    story = Story()
    story.look(receiver(1000), pipeline(), api())
    story.look(receiver(1500, slow=100, busy=20), pipeline(30, rows=90), api(5))
    status = story.status
    assert (status["at"], status["state"]) == (START + 10, "ok")
    logs = status["stages"]["receive"]["signals"]["logs"]
    assert logs["records_per_second"] == 50
    assert logs["requests_per_second"] == 52
    assert logs["refused_per_second"] == 2
    assert logs["bytes_per_second"] == 5000
    # Of 500 acks 400 within 50 ms, 100 between that and a second.
    assert logs["ack"]["p50_seconds"] == pytest.approx(0.05 * 250 / 400)
    assert logs["ack"]["p99_seconds"] == pytest.approx(0.05 + 0.95 * 95 / 100)
    assert status["stages"]["receive"]["refusals"] == {"busy": 2}
    assert status["stages"]["receive"]["ready_workers"] == 2
    assert status["stages"]["wal"]["backlog"] == {"bytes": 1500, "age_seconds": 30, "segments": 3}
    landed = status["stages"]["land"]["tables"]["logs"]
    assert (landed["rows_per_second"], landed["lag_seconds"], landed["commits"]) == (9, 30, 4)
    assert landed["last_commit_at"] == START - 30
    assert landed["freshness_seconds"] == pytest.approx(0.099)
    assert status["stages"]["query"]["per_second"] == 0.5
    assert status["stages"]["lake"]["stores"]["lake put"]["p50_seconds"] == pytest.approx(0.05)
    assert status["stages"]["maintain"]["tasks"]["compact"] == {
        "runs": {"done": 5, "failed": 1},
        "last_at": START - 60,
        "failing": [],
    }


def test_a_task_names_the_tables_that_it_fails_on() -> None:
    def failing(said: Said) -> list[str]:
        found: list[str] = Story().look(said).status["stages"]["maintain"]["tasks"]["compact"]["failing"]
        return found

    assert failing(pipeline()) == []
    assert failing(pipeline(failing=1)) == ["logs"]


def test_the_pipelines_measure_of_a_table_goes_before_the_apis() -> None:
    tables = Story().look(pipeline(), api()).status["stages"]["lake"]["tables"]
    assert {name: table["files"] for name, table in tables.items()} == {"logs": 7, "spans": 2}


def test_a_role_says_how_long_it_is_up_and_what_it_takes() -> None:
    (role,) = Story().look(receiver(1)).status["roles"]
    assert role == {
        "name": "receiver",
        "url": "http://127.0.0.1:4318",
        "state": "ok",
        "reasons": [],
        "up_seconds": 600,
        "version": "1.2.3",
        "memory_bytes": 3e8,
        "cpu_seconds": 12.5,
    }


@pytest.mark.parametrize(
    ("roles", "state"),
    [
        ([receiver(1), pipeline(), api()], "ok"),
        ([receiver(1), down("pipeline"), api()], "degraded"),
        ([PolledRole(endpoint("receiver"), "degraded", ("disk full",), reported("receiver"))], "degraded"),
        ([down("receiver"), down("pipeline"), down("api")], "down"),
    ],
)
def test_the_whole_is_as_well_as_its_roles(roles: list[Said | PolledRole], state: str) -> None:
    assert Story().look(*roles).status["state"] == state


def test_pipelines_of_which_none_works_are_not_well() -> None:
    standby = pipeline(leader=0, url="http://10.0.0.1:4381")
    status = Story().look(standby, pipeline(leader=0)).status
    assert [role["state"] for role in status["roles"]] == ["degraded", "degraded"]
    assert "lease" in status["roles"][0]["reasons"][0]
    status = Story().look(standby, pipeline(leader=1)).status
    assert status["state"] == "ok"
    assert status["stages"]["wal"]["backlog"]["bytes"] == 1500  # the leader's alone


def test_what_a_role_that_is_down_would_say_is_unknown_and_not_nothing() -> None:
    story = Story().look(receiver(1), down("pipeline"), down("api"))
    status = story.status
    assert status["stages"]["wal"]["backlog"] == {"bytes": None, "age_seconds": None, "segments": None}
    assert status["stages"]["land"]["tables"]["logs"]["freshness_seconds"] is None
    assert status["stages"]["query"]["running"] is None
    assert [each["kept"] for each in status["objectives"]] == [True, False, False, False]


def test_an_objective_is_kept_up_to_its_target_and_counted_over_time() -> None:
    story = Story(landing_lag_seconds=40)
    for age in (0, 40, 41, 100):
        story.look(receiver(1), pipeline(age), api())
    lag = story.objective("landing_lag")
    assert (lag["target"], lag["value"], lag["kept"], lag["kept_ratio"]) == (40, 100, False, 0.5)
    story.look(receiver(1), pipeline(10), api())
    lag = story.objective("landing_lag")
    assert (lag["value"], lag["kept"], lag["kept_ratio"]) == (10, True, 0.6)


def test_without_requests_the_objective_for_acks_is_kept() -> None:
    ack = Story().look(receiver(5)).look(receiver(5)).objective("ack")
    assert (ack["target"], ack["value"], ack["kept"], ack["kept_ratio"]) == (0.4, None, True, 1.0)


def test_slow_acks_miss_the_objective_until_they_are_a_minute_ago() -> None:
    story = Story().look(receiver(0)).look(receiver(100, slow=50))
    assert story.objective("ack")["kept"] is False
    for _ in range(6):
        story.look(receiver(100, slow=50))
    assert story.objective("ack")["kept"] is True


def test_lines_have_a_point_a_look_and_rates_of_the_time_between_looks() -> None:
    story = Story()
    for records in (1000, 1100, 1100, 1400):
        story.look(receiver(records), pipeline(5), api())
    assert story.status["history"]["times"] == [START, START + 10, START + 20, START + 30]
    assert story.line("received_records_per_second", "logs") == [None, 10, 0, 30]
    assert story.line("landing_lag_seconds", "spans") == [2.5] * 4
    assert story.line("backlog_bytes") == [1500] * 4
    assert {(s["name"], s["of"]) for s in story.status["history"]["series"]} == SERIES
    assert {(s["name"], s["of"]) for s in Story().status["history"]["series"]} == SERIES


@pytest.mark.parametrize(
    ("said", "state"),
    [
        (deriving(off=1, failing=1), "off"),
        (deriving(failing=1, days=3), "failing"),
        (deriving(days=3, age=500), "catching_up"),
        (deriving(age=75.5), "late"),
        (deriving(age=75), "ok"),
        (deriving(age=10, committed=0), "waiting"),
        (pipeline(), None),  # of a release without derivation
        (down("pipeline"), None),
    ],
)
def test_a_derived_table_has_the_most_important_of_its_states(
    said: Said | PolledRole, state: str | None
) -> None:
    assert Story().look(said).status["stages"]["derive"]["tables"]["log_rollups"]["state"] == state


def test_a_derived_table_has_its_rate_lag_and_reason() -> None:
    because = "rows are not derived; landing continues: no such column"
    story = Story().look(deriving(rows=100)).look(deriving(failing=1, age=30, rows=400, problem=because))
    table = story.status["stages"]["derive"]["tables"]["log_rollups"]
    assert table == {
        "source": "logs",
        "state": "failing",
        "reason": because,
        "rows_per_second": 30,
        "lag_seconds": 30,
        "days_left": 0,
        "last_commit_at": START - 20,
        "limited_tenants": None,
        "unmatched_ratio": None,
    }
    assert story.line("derive_lag_seconds") == [0, 30]


@pytest.mark.parametrize(
    ("bound", "unmatched", "ratio"),
    [(1000, 799, None), (1000, 800, 0.8), (1000, 1000, 1.0), (0, 0, None)],
)
def test_unmatched_spans_are_shown_from_four_fifths_of_their_bound(
    bound: int, unmatched: int, ratio: float | None
) -> None:
    config = Config.model_validate({"derive": {"unmatched_spans_per_day_max": bound}})
    story = Story()
    story.watcher = Watcher(config, wall=lambda: START)
    table = story.look(deriving("service_edges", unmatched=unmatched)).status["stages"]["derive"]["tables"][
        "service_edges"
    ]
    assert table["unmatched_ratio"] == ratio


def test_the_failure_of_a_whole_source_is_the_reason_of_each_of_its_tables() -> None:
    said = replace(deriving(failing=1), problems={"derivation logs": "no catalog", "derivation spans": "?"})
    assert Story().look(said).status["stages"]["derive"]["tables"]["log_rollups"]["reason"] == "no catalog"


def test_derivation_misses_its_objective_beyond_interval_and_round() -> None:
    story = Story()
    for age in (0, 75, 76):
        story.look(deriving(age=age))
    lag = story.objective("derive_lag")
    assert (lag["target"], lag["value"], lag["kept"]) == (75, 76, False)
    assert lag["kept_ratio"] == pytest.approx(2 / 3)
    assert Story(derive_lag_seconds=100).look(deriving(age=76)).objective("derive_lag")["kept"] is True


def test_tables_that_are_off_have_no_lag_and_without_derivation_there_is_no_objective() -> None:
    assert Story().look(deriving(off=1, age=500)).objective("derive_lag")["value"] is None
    story = Story()
    config = Config.model_validate({"derive": {"enabled": False}})
    story.watcher = Watcher(config, wall=lambda: START)
    names = [each["name"] for each in story.look(deriving(off=1)).status["objectives"]]
    assert names == ["ack", "freshness", "landing_lag"]


def test_a_restart_is_no_growth_and_hides_no_other_role() -> None:
    story = Story()
    other = lambda records: replace(receiver(records), url="http://10.0.0.1:4318")  # noqa: E731
    story.look(receiver(5000), other(0)).look(receiver(5100), other(10))
    story.look(receiver(30, started=START + 18), other(20))
    story.look(receiver(130, started=START + 18), other(30))
    assert story.line("received_records_per_second", "logs") == [None, 11, 1, 11]


def test_lines_are_bounded() -> None:
    story = Story(kept_seconds=60)
    for turn in range(20):
        story.look(receiver(turn))
    assert story.status["history"]["times"] == [START + 10 * turn for turn in range(14, 20)]
    assert {len(line["values"]) for line in story.status["history"]["series"]} == {6}


def test_looks_between_samples_show_what_is_new_and_add_no_points() -> None:
    story = Story().look(receiver(1000))
    story.now = 4
    story.watcher.update([story.heard(receiver(1100)), down("api")])
    status = story.status
    assert status["stages"]["receive"]["total"]["records_per_second"] == 25
    assert status["state"] == "degraded"
    assert len(status["history"]["times"]) == 1


def test_with_kafka_what_has_not_landed_is_not_fresh() -> None:
    story = Story()
    wal = {"type": "kafka", "kafka": {"brokers": ["127.0.0.1:9092"]}}
    story.watcher = Watcher(Config.model_validate({"wal": wal}), wall=lambda: START)
    story.look(receiver(1), pipeline(8), api())
    assert story.objective("freshness")["value"] == 8
