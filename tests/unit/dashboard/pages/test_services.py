"""The Services page: what it shows in each state, and how much it asks for that."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import pytest

from frazil.dashboard.api_client import ApiError
from frazil.dashboard.time_range import format_range
from tests.support.query.engine_api import EngineApi
from tests.support.query.read_telemetry import BEGIN, pairs, spans
from tests.unit.dashboard.pages.conftest import Open, component

SERVER, CLIENT = 2, 3
SECOND, MS = 10**9, 10**6
ERROR = {"code": 2}
QUERIES_MAX = 3


def range_(hours: float = 1) -> str:
    end = dt.datetime.fromtimestamp(BEGIN + 60, dt.UTC)
    return format_range(end - dt.timedelta(hours=hours), end)


def call(
    api: EngineApi,
    id: int,
    caller: str,
    callee: str,
    *,
    error: bool = False,
    version: str = "1.2",
    at: float = BEGIN,
) -> None:
    """A request to the caller, which calls the callee."""
    trace, root, client, server = id.to_bytes(16), *((4 * id + n).to_bytes(8) for n in range(3))
    every = {
        "trace_id": trace,
        "nanos": int((at - BEGIN) * SECOND),
        "status": ERROR if error else {},
        "name": "Get",
    }
    request = spans(
        every | {"span_id": root, "kind": SERVER, "took": 30 * MS},
        every | {"span_id": client, "parent_span_id": root, "kind": CLIENT, "took": 9 * MS},
        service=caller,
    )
    request.resource_spans[0].resource.attributes.extend(pairs({"service.version": version}))
    api.engine.add("spans", request)
    answer = every | {"span_id": server, "parent_span_id": client, "kind": SERVER, "took": 8 * MS}
    api.engine.add("spans", spans(answer, service=callee))


@pytest.fixture
def shop(api: EngineApi) -> EngineApi:
    """Twelve calls from shop to cart, three of which fail, and one from job to mail."""
    for id in range(1, 13):
        call(api, id, "shop", "cart", error=id <= 3)
    call(api, 13, "job", "mail")
    return api


def nodes(map_: dict[str, Any]) -> list[str]:
    return [node["name"] for node in map_["nodes"]]


@pytest.mark.parametrize("hours", [1, 24, 720])
def test_map_and_list_take_at_most_three_queries_and_no_raw_rows_for_more_than_an_hour(
    hours: float, shop: EngineApi, opened: Open
) -> None:
    app = opened("services", range=range_(hours))
    assert not app.exception
    assert not app.error
    map_ = component(app, "services_map")
    assert nodes(map_) == ["cart", "job", "mail", "shop"]
    assert [call["title"].split(":")[0] for call in map_["calls"]] == ["shop → cart", "job → mail"]
    assert map_["calls"][0]["level"] == "bad"
    rows = {row["name"]: row for row in component(app, "services_list")}
    assert rows["cart"]["failed"][1] == pytest.approx(0.25)
    assert rows["shop"]["version"] == "1.2"
    assert len(shop.queries) <= QUERIES_MAX
    assert any("FROM spans" in sql for sql in shop.queries) == (hours == 1)


@pytest.mark.parametrize(("hours", "tab"), [(1, "Versions"), (720, "Recent errors")])
def test_one_service_takes_at_most_three_queries(
    hours: float, tab: str, shop: EngineApi, opened: Open
) -> None:
    app = opened("services", range=range_(hours), service="cart", tab=tab)
    assert not app.exception
    assert not app.error
    assert [title.value for title in app.title] == ["cart"]
    assert nodes(component(app, "service_map")) == ["cart", "shop"]
    operations = app.dataframe[0].value
    assert list(operations["operation"]) == ["Get"]
    assert list(operations["failed"]) == [25.0]
    assert len(shop.queries) <= QUERIES_MAX
    assert any("FROM spans" in sql for sql in shop.queries) == (hours == 1)


def test_versions_of_a_service_have_their_share_of_its_requests(api: EngineApi, opened: Open) -> None:
    for id, version in enumerate(("1.2", "1.2", "1.2", "1.3"), 1):
        call(api, id, "shop", "cart", version=version, error=id == 4)
    app = opened("services", range=range_(), service="shop", tab="Versions")
    found = {row["version"]: row for row in app.dataframe[-1].value.to_dict("records")}
    assert {name: (row["share"], row["failed"]) for name, row in found.items()} == {
        "1.2": (75.0, 0.0),
        "1.3": (25.0, 100.0),
    }


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"callee": "cart"}, ["cart", "shop"]),
        ({"callee": "cart", "caller": "shop"}, ["cart", "shop"]),
        ({"find": "AI"}, ["job", "mail"]),
    ],
)
def test_a_chosen_connection_or_a_search_leaves_its_services(
    given: dict[str, str], shown: list[str], shop: EngineApi, opened: Open
) -> None:
    app = opened("services", range=range_(), **given)
    assert nodes(component(app, "services_map")) == shown
    assert {row["name"] for row in component(app, "services_list")} == set(shown)
    assert [button.label for button in app.main.button] == (
        ["Show all services"] if "callee" in given else []
    )


def test_a_connection_that_is_not_there_can_be_left(api: EngineApi, opened: Open) -> None:
    call(api, 1, "shop", "cart", at=time.time() - 60)
    app = opened("services", range="1h", callee="nothing", kind="database")
    assert not app.exception
    assert "No connection matches." in [info.value for info in app.info]
    app.main.button(key="services_clear").click().run()
    assert len(nodes(component(app, "services_map"))) == 2


@pytest.mark.parametrize(
    ("facts", "said", "service"),
    [
        ({"enabled": False, "lag_seconds": None}, "`service_edges` is off", None),
        ({"lag_seconds": None}, "not in `service_edges` yet", "cart"),
        ({"days_left": 3, "lag_seconds": 30.0}, "3 past days are not in `service_edges` yet", None),
    ],
)
def test_a_page_says_why_calls_may_be_missing_and_shows_what_is_there(
    facts: dict[str, Any], said: str, service: str | None, shop: EngineApi, opened: Open
) -> None:
    shop.facts["service_edges"] = facts
    app = opened("services", range=range_(), **({"service": service} if service else {}))
    assert any(said in info.value for info in app.info)
    assert component(app, "service_map" if service else "services_map") is not None


def test_a_version_is_not_shown_as_the_newest_if_later_ones_are_not_derived(
    shop: EngineApi, opened: Open
) -> None:
    shop.facts["service_versions"] = {"enabled": False}
    assert {row["version"] for row in component(opened("services", range=range_()), "services_list")} == {""}


def test_without_rollups_a_long_range_is_read_from_spans(shop: EngineApi, opened: Open) -> None:
    shop.facts["span_metrics"] = {"days_left": 2}
    app = opened("services", range=range_(24))
    assert any("FROM spans" in sql for sql in shop.queries)
    assert len(component(app, "services_list")) == 4


def test_a_result_that_lacks_rows_is_called_incomplete(shop: EngineApi, opened: Open) -> None:
    shop.missing = ["rows since 10:00 are late"]
    app = opened("services", range=range_())
    assert any("Incomplete map" in warning.value and "late" in warning.value for warning in app.warning)
    assert component(app, "services_map") is not None


def test_without_spans_the_page_says_how_to_send_them(api: EngineApi, opened: Open) -> None:
    app = opened("services")
    assert [header.value for header in app.subheader] == ["No traces yet"]


@pytest.mark.parametrize("service", ["", "cart"])
def test_nothing_in_the_range_is_said(service: str, shop: EngineApi, opened: Open) -> None:
    app = opened("services", range="2020-01-01T00:00Z..2020-01-01T01:00Z", service=service)
    assert any("in this time range" in info.value for info in app.info)
    assert not app.exception


@pytest.mark.parametrize("service", ["", "cart"])
def test_an_error_that_may_pass_can_be_tried_again(service: str, api: EngineApi, opened: Open) -> None:
    call(api, 1, "shop", "cart", at=time.time() - 60)
    api.error = ApiError("storage does not answer", code="store_unavailable", status=503)
    app = opened("services", range="1h", service=service)
    (error,) = app.error
    assert "Storage is unavailable" in error.value
    api.error = None
    next(button for button in app.main.button if button.label == "Try again").click().run()
    assert not app.error
    assert component(app, "service_map" if service else "services_map") is not None


def test_a_hostile_name_is_no_markup_in_titles(api: EngineApi, opened: Open) -> None:
    name = "**bold** :red[x] $y$ <b>"
    call(api, 1, "shop", name)
    app = opened("services", range=range_(), service=name)
    assert app.title[0].value == r"\*\*bold\*\* \:red\[x\] \$y\$ \<b\>"
    assert name in nodes(component(app, "service_map"))
    app = opened("services", range=range_(), callee=name, caller="shop")
    assert any(r"\*\*bold\*\*" in each.value for each in app.markdown)
