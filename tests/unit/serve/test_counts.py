"""Histograms: that they agree with the list, and where their buckets begin."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frazil.config import Config
from frazil.serve.app import create_app
from tests.support.query.read_telemetry import BEGIN, logs, spans
from tests.support.serve.requests import Client
from tests.support.serve.stand_in import StandIn

SECOND = 10**9
MICRO = 10**6
WHOLE = {"from": str(BEGIN - 10), "to": str(BEGIN + 100)}


def counted(client: Client, path: str, **parameters: Any) -> Any:
    answer = client.get(f"/api/v1/{path}/counts", params=WHOLE | parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def sums(answer: Any) -> dict[str, int]:
    """In the answer's order."""
    return {series["name"]: sum(series["counts"]) for series in answer["series"]}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Client, StandIn]:
    """For tests with many examples, each of which begins with no rows: making the application takes longer
    than asking it.
    """
    queries = StandIn()
    config = Config.model_validate({"data_dir": str(tmp_path_factory.mktemp("shared"))})
    return Client(create_app(config, queries)), queries  # type: ignore[arg-type]


def test_logs_are_counted_by_level_from_the_lowest_on(client: Client, queries: StandIn) -> None:
    numbers = [21, 24, 17, 13, 9, 12, 5, 1, 4, 0, 0, 99]
    queries.add("logs", logs(*({"severity_number": number} for number in numbers)))
    answer = counted(client, "logs")
    expected = {"unset": 3, "trace": 2, "debug": 1, "info": 2, "warn": 1, "error": 1, "fatal": 2}
    assert list(sums(answer).items()) == list(expected.items())
    assert answer["total"] == len(numbers)


def test_spans_are_counted_by_status(client: Client, queries: StandIn) -> None:
    queries.add("spans", spans({"status": {"code": 2}}, {"status": {"code": 1}}, {"status": {}}, {}))
    assert list(sums(counted(client, "spans")).items()) == [("unset", 2), ("ok", 1), ("error", 1)]


def test_each_record_is_in_the_bucket_of_its_time(client: Client, queries: StandIn) -> None:
    """BEGIN is 20 s after a full minute."""
    times = [0, 9 * SECOND, 10 * SECOND - 1, 10 * SECOND, 39 * SECOND, 40 * SECOND]
    queries.add("logs", logs(*({"nanos": nanos, "severity_number": 9} for nanos in times)))
    answer = counted(client, "logs", buckets=12, by="none")
    assert answer["bucket_seconds"] == 10
    assert answer["first_bucket"] == "2026-09-21T14:13:10.000000Z"
    assert answer["from"] == "2026-09-21T14:13:10.000000Z"
    assert answer["to"] == "2026-09-21T14:15:00.000000Z"
    assert answer["series"] == [{"name": "all", "counts": [0, 3, 1, 0, 1, 1, 0, 0, 0, 0, 0]}]


def test_buckets_that_the_range_cuts_off_hold_what_is_in_the_range(client: Client, queries: StandIn) -> None:
    queries.add("logs", logs(*({"nanos": second * SECOND} for second in range(60))))
    answer = counted(
        client, "logs", **{"from": str(BEGIN + 5), "to": str(BEGIN + 45), "buckets": 2, "by": "none"}
    )
    assert (answer["bucket_seconds"], answer["first_bucket"]) == (60, "2026-09-21T14:13:00.000000Z")
    assert answer["series"][0]["counts"] == [35, 5]


RECORDS = st.lists(
    st.fixed_dictionaries(
        {
            "nanos": st.integers(-20 * SECOND, 110 * SECOND),
            "body": st.sampled_from(["connection refused", "Connection open", "well"]),
            "severity_number": st.sampled_from([0, 1, 9, 13, 17, 24]),
            "attributes": st.sampled_from([{}, {"code": 502}, {"code": "x"}]),
        }
    ),
    max_size=25,
)
SPANS = st.lists(
    st.fixed_dictionaries(
        {
            "nanos": st.integers(-20 * SECOND, 110 * SECOND),
            "took": st.sampled_from([0, 1_000, 250_000_000, -5]),
            "name": st.sampled_from(["GET /cart", "SELECT"]),
            "kind": st.sampled_from([0, 2, 3]),
            "status": st.sampled_from([{}, {"code": 1}, {"code": 2, "message": "timed out"}]),
            "attributes": st.sampled_from([{}, {"code": 502}]),
        }
    ),
    max_size=25,
)
SERVICES = {"service": st.sampled_from(["cart", "pay", ["cart", "pay"]])}
LOG_FILTERS = st.fixed_dictionaries(
    {},
    optional={
        **SERVICES,
        "severity": st.sampled_from(["warn", "1", "fatal"]),
        "q": st.sampled_from(["connection", "OPEN connection", "none"]),
        "regex": st.sampled_from(["^well", "refus.d$"]),
        "attr": st.sampled_from(["code=502", "code:x"]),
        "from": st.just(str(BEGIN)),
        "to": st.just(str(BEGIN + 50)),
    },
)
SPAN_FILTERS = st.fixed_dictionaries(
    {},
    optional={
        **SERVICES,
        "name": st.just("SELECT"),
        "kind": st.sampled_from(["server", "client"]),
        "status": st.sampled_from(["error", "unset"]),
        "duration_min": st.sampled_from(["0", "1us", "250ms"]),
        "duration_max": st.sampled_from(["1us", "1s"]),
        "q": st.sampled_from(["timed", "select"]),
        "attr": st.just("code=502"),
        "from": st.just(str(BEGIN)),
    },
)


def agrees(client: Client, path: str, by: str, buckets: int, filters: dict[str, Any]) -> None:
    """Each bucket of each series has as many as the list has records of its time."""
    page = client.get(f"/api/v1/{path}", params={**WHOLE, **filters, "limit": 1000}).json()
    answer = counted(client, path, **filters, by=by, buckets=buckets)
    assert page["next"] is None
    assert answer["total"] == len(page["records"]) == sum(sums(answer).values())
    assert all(len(series["counts"]) <= buckets and any(series["counts"]) for series in answer["series"])
    first, width = answer["first_bucket"], answer["bucket_seconds"]
    exact = "time_unix_nano" if path == "logs" else "start_time_unix_nano"
    for number in range(len(answer["series"][0]["counts"]) if answer["series"] else 0):
        inside = [r for r in page["records"] if _bucket(int(r[exact]), first, width) == number]
        assert sum(series["counts"][number] for series in answer["series"]) == len(inside)
    names = [_series(record, by) for record in page["records"]]
    assert sums(answer) == {name: names.count(name) for name in set(names)}


def _series(record: dict[str, Any], by: str) -> str:
    match by:
        case "severity":
            levels = ["unset", "trace", "debug", "info", "warn", "error", "fatal"]
            return levels[(record.get("severity_number", 0) + 3) // 4]
        case "status":
            return ["unset", "ok", "error"][record.get("status_code", 0)]
        case "service":
            return str(record["service_name"])
        case _:
            return "all"


def _bucket(nanos: int, first: str, width_seconds: int) -> int:
    return (nanos // 1000 - int(datetime.fromisoformat(first).timestamp()) * MICRO) // (width_seconds * MICRO)


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(
    cart=RECORDS,
    pay=RECORDS,
    filters=LOG_FILTERS,
    by=st.sampled_from(["severity", "service", "none"]),
    buckets=st.sampled_from([1, 2, 7, 60, 400]),
)
def test_counts_of_logs_agree_with_the_list(
    shared: tuple[Client, StandIn],
    cart: list[Any],
    pay: list[Any],
    filters: dict[str, Any],
    by: str,
    buckets: int,
) -> None:
    client, queries = shared
    queries.rows["logs"].clear()
    queries.add("logs", logs(*cart))
    queries.add("logs", logs(*pay, service="pay"))
    agrees(client, "logs", by, buckets, filters)


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(
    cart=SPANS,
    pay=SPANS,
    filters=SPAN_FILTERS,
    by=st.sampled_from(["status", "service", "none"]),
    buckets=st.sampled_from([1, 7, 60]),
)
def test_counts_of_spans_agree_with_the_list(
    shared: tuple[Client, StandIn],
    cart: list[Any],
    pay: list[Any],
    filters: dict[str, Any],
    by: str,
    buckets: int,
) -> None:
    client, queries = shared
    queries.rows["spans"].clear()
    queries.add("spans", spans(*cart))
    queries.add("spans", spans(*pay, service="pay"))
    agrees(client, "spans", by, buckets, filters)


def test_the_twenty_largest_services_are_shown_and_the_rest_as_one(client: Client, queries: StandIn) -> None:
    """Of 25 services, number n has n records; one of the small ones is called like the rest."""
    for number in range(1, 26):
        name = "other" if number == 24 else f"s{number:02d}"
        queries.add("logs", logs(*({"nanos": i * SECOND} for i in range(number)), service=name))
    answer = counted(client, "logs", by="service")
    *largest, rest = answer["series"]
    names = [series["name"] for series in largest]
    assert names == ["s25", "other", *(f"s{number:02d}" for number in range(23, 5, -1))]
    assert (rest["name"], rest["services"], sum(rest["counts"])) == ("other", 5, 1 + 2 + 3 + 4 + 5)
    assert all("services" not in series for series in largest)
    assert answer["total"] == sum(range(1, 26))


def test_services_sets_how_many_services_are_shown(client: Client, queries: StandIn) -> None:
    for number in range(1, 26):
        queries.add("logs", logs(*({"nanos": i} for i in range(number)), service=f"s{number:02d}"))
    all_of_them = counted(client, "logs", by="service", services=200, buckets=1)
    assert sums(all_of_them) == {f"s{number:02d}": number for number in range(25, 0, -1)}
    two = counted(client, "logs", by="service", services=2, buckets=1)
    assert list(sums(two).items()) == [("s25", 25), ("s24", 24), ("other", sum(range(1, 24)))]


def test_exactly_twenty_services_leave_no_rest(client: Client, queries: StandIn) -> None:
    for number in range(20):
        queries.add("spans", spans({}, service=f"s{number:02d}"))
    answer = counted(client, "spans", by="service")
    assert [series["name"] for series in answer["series"]] == [f"s{number:02d}" for number in range(20)]


def test_records_without_a_service_are_counted_under_no_name(client: Client, queries: StandIn) -> None:
    request = logs({}, {})
    del request.resource_logs[0].resource.attributes[:]
    queries.add("logs", request)
    assert sums(counted(client, "logs", by="service")) == {"": 2}


def test_an_empty_range_has_no_series(client: Client, queries: StandIn) -> None:
    queries.add("logs", logs({}))
    for by in ("severity", "service", "none"):
        answer = counted(client, "logs", by=by, **{"from": "0", "to": "60"})
        assert (answer["series"], answer["total"], answer["bucket_seconds"]) == ([], 0, 1)
        assert answer["stats"]["files_total"] == 2


def test_spans_without_times_are_counted_when_they_were_received(client: Client, queries: StandIn) -> None:
    request = spans({}, {}, {})
    unknown, ended, _ = request.resource_spans[0].scope_spans[0].spans
    unknown.start_time_unix_nano = unknown.end_time_unix_nano = ended.start_time_unix_nano = 0
    queries.add("spans", request, received=BEGIN + 30)
    answer = counted(client, "spans", buckets=12, by="none")
    assert answer["series"][0]["counts"] == [0, 2, 0, 0, 1, 0, 0, 0, 0, 0, 0]


def test_a_tenant_counts_its_own_records_alone(client: Client, queries: StandIn) -> None:
    for signal, made in (("logs", logs({})), ("spans", spans({}))):
        queries.add(signal, made)  # type: ignore[arg-type]
        queries.add(signal, made, tenant="other")  # type: ignore[arg-type]
        for by in ("service", "none"):
            assert counted(client, signal, by=by)["total"] == 1


def test_one_question_reads_no_more_columns_than_it_needs(client: Client, queries: StandIn) -> None:
    for by in ("severity", "service", "none"):
        counted(client, "logs", by=by)
    assert len(queries.asked) == 3
    assert all("*" not in asked.sql.replace("count(*)", "") for asked in queries.asked)


@pytest.mark.parametrize(
    ("path", "parameters", "says"),
    [
        ("logs", {"by": "servce"}, "Did you mean `service`?"),
        ("logs", {"by": "status"}, "Expected one of: severity, service, none."),
        ("spans", {"by": "severity"}, "Did you mean `service`?"),
        ("spans", {"by": "xyz"}, "Expected one of: status, service, none."),
        ("logs", {"bucket": "10"}, "Did you mean `buckets`?"),
        ("logs", {"buckets": "0"}, "buckets: "),
        ("logs", {"buckets": "401"}, "buckets: "),
        ("logs", {"limit": "5"}, "unknown parameter `limit`"),
        ("logs", {"kind": "server"}, "unknown parameter `kind`"),
        ("logs", {"severity": "eror"}, "Did you mean `error`?"),
        ("spans", {"status": "eror"}, "Did you mean `error`?"),
        ("logs", {"q": ["a", "b"]}, "`q` occurs twice"),
        ("logs", {"from": "5", "to": "5"}, "`from` must be before `to`"),
    ],
)
def test_a_mistake_in_a_parameter_is_named(
    client: Client, queries: StandIn, path: str, parameters: dict[str, Any], says: str
) -> None:
    answer = client.get(f"/api/v1/{path}/counts", params=WHOLE | parameters)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "request_invalid")
    assert says in answer.json()["error"]["message"]
    assert not queries.asked
