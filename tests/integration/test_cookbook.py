"""Every question of docs/cookbook.md, asked of a real lake through the real API: it runs, and it finds.

The lake holds some minutes of the demo and faults whose every row is known (planted.py); nearly all of it has
landed and was compacted, and a last log has not. What the demo's answers must be is computed here from the
WAL, without SQL.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from prometheus_client import CollectorRegistry

from frazil.demo import DemoOptions, VirtualClock, run_demo
from frazil.lake.catalog import open_catalog
from frazil.pipeline.derive.deriver import Deriver
from frazil.pipeline.derive.metrics import DeriveMetrics
from tests.support.integration.api import running_api
from tests.support.integration.clients import SIGNALS
from tests.support.integration.documented import COMPACTS_EARLY, Stack
from tests.support.integration.known_faults import NEW_ERROR, OLD_ERROR, SECOND, KnownFaults
from tests.support.local_runner import LocalRunner

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "cookbook.md"
DEMO_SECONDS = 120
AFTER_THE_TAG = "said after the tag was made"


@dataclass(frozen=True)
class Recipe:
    number: int
    title: str
    text: str

    def blocks(self, language: str) -> list[str]:
        return re.findall(rf"^```{language}\n(.*?)^```$", self.text, flags=re.MULTILINE | re.DOTALL)

    @property
    def may_be_empty(self) -> bool:
        return "*No rows when all is healthy.*" in self.text.replace("\n", " ")


def _recipes() -> dict[int, Recipe]:
    parts = re.split(r"^### (\d+)\. (.*)$", PAGE.read_text(), flags=re.MULTILINE)[1:]
    made = [Recipe(int(n), title, text) for n, title, text in zip(*[iter(parts)] * 3, strict=True)]
    return {recipe.number: recipe for recipe in made}


RECIPES = _recipes()
WITH_SQL = [recipe for recipe in RECIPES.values() if recipe.blocks("sql")]


class Lake(Stack):
    def rows(self, number: int) -> list[dict[str, Any]]:
        [sql] = RECIPES[number].blocks("sql")
        answer = self.api.sql(sql)
        assert answer.status_code == 200, f"{RECIPES[number].title}\n{answer.text}"
        told = answer.json()
        return [dict(zip([c["name"] for c in told["columns"]], row, strict=True)) for row in told["rows"]]

    def row(self, number: int, **where: Any) -> dict[str, Any]:
        [row] = [r for r in self.rows(number) if all(r[key] == value for key, value in where.items())]
        return row


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with running_api(tmp_path_factory.mktemp("cookbook"), COMPACTS_EARLY) as (api, receiver):
        options = DemoOptions(
            endpoint=receiver.http,
            protocol="http",
            traces_per_second=1,
            duration_seconds=DEMO_SECONDS,
            incident="errors",
            incident_after_seconds=DEMO_SECONDS / 2,
            seed=42,
        )
        begin = time.time_ns() - (DEMO_SECONDS + 60) * SECOND
        assert run_demo(options, clock=VirtualClock(begin)).failed == 0
        lake = Lake(api, receiver)
        lake.land()
        _derive(lake)
        planted = KnownFaults()
        planted.plant()
        planted.send(receiver)
        lake.land()
        lake.compact()
        _derive(lake)
        [pinning] = [line for line in _lines(40) if "tag create" in line]
        lake.sh(pinning)
        late = KnownFaults()
        late.log("storage", AFTER_THE_TAG, age_seconds=1, severity=17)
        late.send(receiver)
        yield lake


def _derive(lake: Lake) -> None:
    """Derives all rows that have landed since the last time."""
    config = lake.receiver.config
    metrics = DeriveMetrics(CollectorRegistry(), config)
    with contextlib.closing(open_catalog(config)) as catalog:
        for signal in SIGNALS:
            assert Deriver(config, signal, catalog, LocalRunner(), metrics).round() == "derived"


def _lines(number: int) -> list[str]:
    [block] = RECIPES[number].blocks("sh")
    return block.replace("\\\n", " ").splitlines()


@pytest.fixture(scope="module")
def spans(lake: Lake) -> list[dict[str, Any]]:
    """Every span that was acked, from the log and not by a query."""
    columns = ["service_name", "name", "kind", "status_code", "duration_nano", "trace_id", "span_id"]
    return lake.receiver.rows("spans").select([*columns, "parent_span_id", "http_route"]).to_pylist()


def test_the_page_has_at_least_thirty_questions_numbered_from_one() -> None:
    assert list(RECIPES) == list(range(1, len(RECIPES) + 1))
    assert len(WITH_SQL) >= 30
    assert all(recipe.title.endswith("?") for recipe in RECIPES.values())


def test_every_link_of_its_table_of_contents_leads_to_a_question() -> None:
    linked = re.findall(r"\]\(#([^)]+)\)", PAGE.read_text())
    titles = {
        re.sub(r"[^\w\- ]", "", f"{r.number}. {r.title}".lower()).replace(" ", "-") for r in RECIPES.values()
    }
    assert set(linked) == titles


@pytest.mark.parametrize("recipe", WITH_SQL, ids=lambda recipe: str(recipe.number))
def test_a_question_runs_and_finds_something(lake: Lake, recipe: Recipe) -> None:
    """Also recipes without rows when all is healthy: here it is not."""
    assert lake.rows(recipe.number), recipe.title


def test_the_questions_see_what_has_landed_and_what_has_not(lake: Lake) -> None:
    stats = lake.api.sql("SELECT count(*) FROM logs").json()["stats"]
    assert (stats["files"] > 0, stats["tail_rows"]) == (True, 1)


def test_failures_by_service_are_those_of_the_log(lake: Lake, spans: list[dict[str, Any]]) -> None:
    requests, failed = Counter[str](), Counter[str]()
    for span in spans:
        if span["kind"] in (2, 5):
            requests[span["service_name"]] += 1
            failed[span["service_name"]] += span["status_code"] == 2
    found = {row["service_name"]: (row["requests"], row["failed"]) for row in lake.rows(1)}
    assert found == {service: (n, failed[service]) for service, n in requests.items()}
    assert failed["catalog"] > 0, "the demo's incident"


def test_latencies_by_operation_are_those_of_the_log(lake: Lake, spans: list[dict[str, Any]]) -> None:
    durations = defaultdict[tuple[str, str], list[float]](list)
    for span in spans:
        if span["kind"] == 2:
            durations[span["service_name"], span["name"]].append(span["duration_nano"] / 1e6)
    for row in lake.rows(2):
        expected = np.percentile(durations[row["service_name"], row["name"]], [50, 95, 99])
        assert [row["p50_ms"], row["p95_ms"], row["p99_ms"]] == pytest.approx(expected, abs=0.051)


def test_the_slowest_traces_are_the_slowest(lake: Lake, spans: list[dict[str, Any]]) -> None:
    roots = [span for span in spans if span["parent_span_id"] is None]
    slowest = sorted(roots, key=lambda span: -span["duration_nano"])[:10]
    found = lake.rows(3)
    assert [row["trace_id"] for row in found] == [span["trace_id"] for span in slowest]
    sizes = Counter(span["trace_id"] for span in spans)
    assert [row["spans"] for row in found] == [sizes[row["trace_id"]] for row in found]


def test_an_error_of_yesterday_is_not_new_and_one_of_today_is(lake: Lake) -> None:
    found = {row["latest"] for row in lake.rows(4) if row["service_name"] == "storage"}
    assert found == {NEW_ERROR, AFTER_THE_TAG}
    assert OLD_ERROR not in found


def test_around_the_last_exception_stands_that_exception(lake: Lake) -> None:
    assert AFTER_THE_TAG in [row["body"] for row in lake.rows(5)]


def test_logs_of_failed_traces_are_of_failed_traces(lake: Lake, spans: list[dict[str, Any]]) -> None:
    failed = {s["trace_id"] for s in spans if s["parent_span_id"] is None and s["status_code"] == 2}
    found = lake.rows(6)
    assert {row["trace_id"] for row in found} <= failed
    assert any(row["severity"] == "ERROR" for row in found)


def test_the_two_versions_of_a_service_are_told_apart(lake: Lake) -> None:
    found = {row["service_version"]: row for row in lake.rows(8) if row["service_name"] == "cart"}
    assert set(found) == {"1.8.2", "1.9.0"}
    assert (found["1.9.0"]["n"], found["1.9.0"]["failed_percent"], found["1.9.0"]["p50_ms"]) == (20, 20, 8)


def test_self_times_are_those_of_the_log(lake: Lake, spans: list[dict[str, Any]]) -> None:
    below = Counter[tuple[str, str]]()
    for span in spans:
        if span["parent_span_id"] is not None:
            below[span["trace_id"], span["parent_span_id"]] += span["duration_nano"]
    own = Counter[tuple[str, str]]()
    for span in spans:
        left = span["duration_nano"] - below[span["trace_id"], span["span_id"]]
        own[span["service_name"], span["name"]] += max(left, 0)
    for row in lake.rows(9):
        assert row["self_seconds"] == pytest.approx(own[row["service_name"], row["name"]] / 1e9, abs=0.00051)


def test_calls_between_services_are_those_of_the_log(lake: Lake, spans: list[dict[str, Any]]) -> None:
    clients = {(s["trace_id"], s["span_id"]): s["service_name"] for s in spans if s["kind"] == 3}
    calls = Counter(
        (clients[key], span["service_name"])
        for span in spans
        if span["kind"] == 2 and (key := (span["trace_id"], span["parent_span_id"])) in clients
    )
    assert {(row["caller"], row["callee"]): row["calls"] for row in lake.rows(10)} == calls


def test_retries_and_loops_are_found_where_they_were_planted(lake: Lake) -> None:
    storm = lake.row(11, service_name="courier")
    assert (storm["name"], storm["tries_most"]) == ("POST /parcels", 5)
    loop = lake.row(12, service_name="reports")
    assert (loop["name"], loop["statements_most"]) == ("SELECT items", 40)


def test_the_objective_counts_as_the_error_rate_does(lake: Lake) -> None:
    failing = {row["service_name"]: row for row in lake.rows(1)}
    for row in lake.rows(13):
        rate = failing[row["service_name"]]
        if row["requests"] == rate["requests"]:  # those that consume messages are not served requests
            assert row["burn_1h"] == pytest.approx(rate["failed"] / rate["requests"] / 0.005, abs=0.051)
    assert lake.row(13, service_name="cart")["burn_5m"] > 1


def test_apdex_is_that_of_the_log(lake: Lake, spans: list[dict[str, Any]]) -> None:
    points, n = Counter[str](), Counter[str]()
    for span in spans:
        if span["kind"] == 2 and span["parent_span_id"] is None and span["http_route"]:
            n[span["http_route"]] += 1
            if span["status_code"] != 2 and (ms := span["duration_nano"] / 1e6) <= 400:
                points[span["http_route"]] += 2 if ms <= 100 else 1
    found = {row["http_route"]: row["apdex"] for row in lake.rows(14)}
    assert found == {route: pytest.approx(points[route] / 2 / n[route], abs=0.00051) for route in n}


def test_silent_services_are_named_and_talking_ones_are_not(lake: Lake) -> None:
    silent = {row["service_name"] for row in lake.rows(15)}
    assert {"reports", "early", "lost", "offline"} <= silent
    assert not {"cart", "frontend", "storage"} & silent


def test_restarts_are_counted(lake: Lake) -> None:
    assert lake.row(16, k8s_pod_name="cart-0")["restarts"] == 3


def test_a_counter_that_starts_anew_has_no_negative_rate(lake: Lake) -> None:
    # 10, 30, 50, then 5, 25 of a new process: 20 + 20 + 5 + 20, in 40 seconds.
    found = lake.row(19, metric_name="jobs.done")
    assert (found["increase"], found["per_second"]) == (65, 65 / 40)
    assert lake.row(19, metric_name="jobs.failed")["increase"] == 14


def test_quantiles_of_histograms_are_right(lake: Lake) -> None:
    # 10 up to 1 s, 80 up to 2 s, 10 up to 4 s: the 95th of a hundred lies half-way between 2 and 4.
    assert lake.row(20, service_name="bucketed")["p95_seconds"] == 3.0
    # 90 up to 2 s and 10 up to 4 s: the 95th is 4 s at most.
    assert lake.row(21, service_name="bucketed")["p95_ms_at_most"] == 4000.0


def test_exemplars_lead_to_traces_that_are_there(lake: Lake, spans: list[dict[str, Any]]) -> None:
    assert {row["trace_id"] for row in lake.rows(22)} <= {span["trace_id"] for span in spans}


def test_the_largest_sender_and_the_noisiest_line_are_those_of_the_log(lake: Lake) -> None:
    counts = {(row["service_name"], row["signal"]): row["n"] for row in lake.rows(23)}
    for signal in SIGNALS:
        sent = Counter(lake.receiver.rows(signal)["service_name"].to_pylist())
        shown = {service: n for (service, of), n in counts.items() if of == signal}
        assert {service: sent[service] for service in shown} == shown
    noisiest = lake.rows(24)[0]
    recent = time.time() - 3600
    templates = Counter(
        (log["service_name"], re.sub(r"[0-9a-f]{8,}|[0-9]+([.][0-9]+)?|'[^']*'", "#", log["body"]))
        for log in lake.receiver.rows("logs")
        .select(["service_name", "body", "body_type", "time"])
        .to_pylist()
        if log["body_type"] is None and log["time"].timestamp() > recent
    )
    [(expected, n)] = templates.most_common(1)
    assert (noisiest["service_name"], noisiest["template"], noisiest["n"]) == (*expected, n)


def test_the_careless_attribute_is_named(lake: Lake) -> None:
    worst = lake.rows(26)[0]
    assert (worst["metric_name"], worst["series"]) == ("careless.requests", 200)
    assert (worst["worst_attribute"], worst["distinct_values"]) == ("user.id", 200)


def test_the_constant_metric_is_named_and_no_other(lake: Lake) -> None:
    assert [row["metric_name"] for row in lake.rows(27)] == ["build.info"]


def test_attributes_with_a_column_are_not_proposed_for_one(lake: Lake) -> None:
    proposed = {row["attribute"] for row in lake.rows(28)}
    assert "client.address" in proposed
    assert not proposed & {"http.route", "rpc.method", "db.system.name", "server.address"}


def test_late_skewed_broken_orphaned_and_repeated_records_are_found(lake: Lake) -> None:
    assert lake.row(30, service_name="offline")["n"] == 1
    skewed = lake.row(31, service_name="early")
    assert skewed["ms_too_early_most"] >= 2000
    assert [row["service_name"] for row in lake.rows(32)] == ["lost"]
    assert [(row["service_name"], row["n"]) for row in lake.rows(33)] == [("batch", 3)]
    assert lake.row(34, service_name="again")["too_many"] == 1


def test_sampled_spans_stand_for_those_that_were_dropped(lake: Lake) -> None:
    # A threshold of c, of 16, keeps a quarter.
    assert lake.row(35, service_name="sampled") == {"service_name": "sampled", "kept": 10, "estimated": 40}
    assert lake.row(35, service_name="courier")["estimated"] == 1


def test_sessions_get_fewer_step_by_step(lake: Lake) -> None:
    [row] = lake.rows(36)
    assert row["sessions"] > row["saw_a_product"] > row["filled_the_cart"] > 0 < row["ordered"]


def test_a_series_has_every_minute_once(lake: Lake) -> None:
    found = lake.rows(37)
    assert len({row["minute"] for row in found}) == len(found) == 60
    assert {row["n"] == 0 for row in found} == {True, False}
    assert sum(row["errors"] for row in found) > 10


def test_columns_are_listed_once(lake: Lake) -> None:
    found = [(row["table_name"], row["column_name"]) for row in lake.rows(38)]
    assert len(found) == len(set(found))
    assert ("spans", "duration_nano") in found


def test_rows_are_taken_elsewhere_as_the_page_says(lake: Lake, spans: list[dict[str, Any]]) -> None:
    for line in _lines(39):
        lake.sh(line)
    errors = pq.read_table(lake.receiver.folder / "errors.parquet")
    assert AFTER_THE_TAG in errors["body"].to_pylist()
    slow = pq.read_table(lake.receiver.folder / "slow.parquet")
    assert slow.num_rows == sum(span["duration_nano"] > 100e6 for span in spans) > 0


def test_the_past_is_asked_as_the_page_says(lake: Lake) -> None:
    [asking] = [line for line in _lines(40) if "--as-of" in line]
    then = lake.sh(f"{asking} --format csv")
    assert '"storage",3' in then
    [sql] = re.findall(r'"([^"]+)"', asking)
    assert ["storage", 4] in lake.api.rows(sql), "what was said after the tag is there now"
    assert "incident-42" in lake.sh(_lines(40)[-1])


def test_services_of_the_week_are_those_of_the_log(lake: Lake, spans: list[dict[str, Any]]) -> None:
    served = defaultdict[str, list[dict[str, Any]]](list)
    for span in spans:
        if span["kind"] in (2, 5):
            served[span["service_name"]].append(span)
    found = {row["service_name"]: row for row in lake.rows(41)}
    assert found.keys() == served.keys()
    for service, of_it in served.items():
        failed = sum(span["status_code"] == 2 for span in of_it)
        assert (found[service]["requests"], found[service]["failed_percent"]) == (
            len(of_it),
            pytest.approx(100 * failed / len(of_it), abs=0.01),
        )
        durations = sorted(span["duration_nano"] / 1e6 for span in of_it)
        exact = durations[math.ceil(0.99 * len(durations)) - 1]
        assert found[service]["p99_ms"] == pytest.approx(exact, rel=0.0101, abs=0.01)


def test_the_busiest_operations_and_the_volume_of_logs_are_those_of_the_records(
    lake: Lake, spans: list[dict[str, Any]]
) -> None:
    calls = Counter((span["service_name"], span["name"]) for span in spans)
    for row in lake.rows(42):
        assert row["calls"] <= calls[row["service_name"], row["operation"]]
    landed = lake.api.rows("SELECT count(*) FROM logs WHERE body <> ?", AFTER_THE_TAG)[0][0]
    assert 0 < sum(row["records"] for row in lake.rows(43)) <= landed


def test_new_log_lines_are_those_that_were_not_there_yesterday(lake: Lake) -> None:
    rows = lake.rows(46)
    found = {row["template"]: row for row in rows if row["service_name"] == "storage"}
    assert len(rows) < 200
    assert {*found} == {"certificate of partner <*> has expired", AFTER_THE_TAG}
    assert found["certificate of partner <*> has expired"]["example"] == NEW_ERROR


def test_the_service_graph_has_the_calls_of_the_log(lake: Lake, spans: list[dict[str, Any]]) -> None:
    clients = {
        (span["trace_id"], span["span_id"]): span["service_name"] for span in spans if span["kind"] in (3, 4)
    }
    calls = Counter(
        (clients[parent], span["service_name"])
        for span in spans
        if span["kind"] in (2, 5) and (parent := (span["trace_id"], span["parent_span_id"])) in clients
    )
    found = Counter[tuple[str, str]]()
    for row in lake.rows(47):
        if (row["caller"], row["callee"]) in calls:
            found[row["caller"], row["callee"]] += row["calls"]
    assert found == calls
    assert len(calls) > 3
    assert {row["connection"] for row in lake.rows(47)} >= {"service", "database"}


def test_a_version_that_was_deployed_has_its_first_request(lake: Lake) -> None:
    versions = {row["version"]: row for row in lake.rows(48) if row["service_name"] == "cart"}
    assert versions["1.9.0"]["requests"] > 0
    assert versions["1.9.0"]["first_seen"] <= versions["1.9.0"]["last_seen"]


def test_metrics_in_steps_count_what_the_points_count(lake: Lake) -> None:
    """The demo's sources have start times, and started in the time that is read."""
    counted = (
        "SELECT coalesce(sum(n), 0) "
        "FROM (SELECT coalesce(sum({0}) FILTER (aggregation_temporality = 1), 0) + coalesce(max({0}) "
        "FILTER (aggregation_temporality = 2), 0) AS n FROM metrics WHERE metric_name = '{1}' "
        "AND start_time_unix_nano IS NOT NULL GROUP BY series_id, start_time_unix_nano)"
    )
    requests = lake.api.rows(counted.format("count", "http.server.request.duration"))[0][0]
    assert 0 < requests == sum(row["requests"] for row in lake.rows(44))
    assert all(0 < row["p99_ms"] < 1e6 for row in lake.rows(44) if row["requests"])
    orders = lake.api.rows(counted.format("coalesce(value_double, value_int)", "shop.orders"))[0][0]
    found = lake.rows(45)
    assert 0 < orders == sum(row["orders"] for row in found)
    assert {row["country"] for row in found} - {None}
