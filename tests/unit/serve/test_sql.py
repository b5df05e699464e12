"""POST /api/v1/sql: what it takes, what it gives, and what it says when it cannot."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from frazil.config import Config
from frazil.errors import (
    CatalogUnavailable,
    ConfigError,
    LimitReached,
    Overloaded,
    QueryInvalid,
    QueryRefused,
    StoreUnavailable,
)
from frazil.query.model import AsOf, Progress
from frazil.serve.app import create_app
from frazil.sql.functions import FUNCTIONS, TABLE_FUNCTIONS
from tests.support.serve.requests import Client
from tests.support.serve.stand_in import StandIn


def ask(client: Client, body: Any, **options: Any) -> Any:
    return client.post("/api/v1/sql", json=body, **options)


def test_rows_come_with_columns_and_stats(client: Client) -> None:
    answer = ask(client, {"sql": "SELECT $1 AS a, $2 AS b", "params": [1, "x"]})
    assert answer.status_code == 200
    assert answer.json()["rows"] == [[1, "x"]]
    assert [column["name"] for column in answer.json()["columns"]] == ["a", "b"]
    assert answer.headers["x-frazil-query-id"] == "made"
    assert json.loads(answer.headers["x-frazil-stats"])["files_total"] == 2


def test_the_functions_of_queries_are_listed_beside_the_tables(client: Client) -> None:
    listed = {each["name"]: each for each in client.get("/api/v1/tables").json()["functions"]}
    assert listed.keys() == {function.name for function in (*FUNCTIONS, *TABLE_FUNCTIONS)}
    assert listed["kind_name"] == {
        "name": "kind_name",
        "arguments": "kind",
        "doc": "The name of a span kind: kind_name(kind) is server, client, …",
    }


def test_parameters_may_be_nested(client: Client) -> None:
    """There is one rule for them, the query service's."""
    answer = ask(client, {"sql": "SELECT $1.a[2], $2", "params": [{"a": [1, 2]}, [[[[[[7]]]]]]]})
    assert answer.json()["rows"] == [[2, [[[[[[7]]]]]]]]


def test_null_members_are_as_if_left_out(client: Client, queries: StandIn) -> None:
    optional = ("params", "as_of", "seconds_max", "rows_max", "id")
    assert ask(client, {"sql": "SELECT 1", **dict.fromkeys(optional)}).status_code == 200
    asked = queries.asked[-1]
    assert (asked.params, asked.as_of, asked.seconds_max, asked.rows_max, asked.id) == (
        (),
        None,
        None,
        None,
        "",
    )
    assert ask(client, {"sql": "SELECT 1", "rows_max": 10.0}).status_code == 200
    assert queries.asked[-1].rows_max == 10


@pytest.mark.parametrize("content_type", ["text/plain", "application/sql", "text/plain; charset=utf-8"])
def test_a_plain_body_is_the_sql_itself(client: Client, content_type: str) -> None:
    answer = client.post("/api/v1/sql", content="SELECT 7", headers={"content-type": content_type})
    assert answer.json()["rows"] == [[7]]


def test_the_format_is_the_parameter_else_what_accept_prefers_else_json(client: Client) -> None:
    def kind(accept: str | None, query: str = "") -> str:
        headers = {} if accept is None else {"accept": accept}
        answer = client.post(f"/api/v1/sql{query}", json={"sql": "SELECT 1 AS a"}, headers=headers)
        return answer.headers["content-type"].partition(";")[0]

    assert kind(None) == kind("*/*") == kind("application/*;q=0.5") == "application/json"
    assert kind("text/csv") == kind("application/json;q=0.1, text/csv") == "text/csv"
    assert kind("text/html, */*;q=0.8") == "application/json"
    assert kind("application/vnd.apache.arrow.stream") == "application/vnd.apache.arrow.stream"
    assert kind("text/csv", "?format=parquet") == "application/vnd.apache.parquet"


def test_arrow_and_parquet_and_csv_hold_the_rows(client: Client) -> None:
    def content(format: str) -> bytes:
        return client.post(f"/api/v1/sql?format={format}", json={"sql": "SELECT 5 AS a"}).content

    assert pa.ipc.open_stream(content("arrow")).read_all()["a"].to_pylist() == [5]
    assert pq.read_table(io.BytesIO(content("parquet")))["a"].to_pylist() == [5]
    assert content("csv").split() == [b'"a"', b"5"]


def test_what_can_be_asked_for_reaches_the_query_service(client: Client, queries: StandIn) -> None:
    wishes = {"seconds_max": 2.5, "rows_max": 10, "partial": True, "id": "my-query"}
    assert ask(client, {"sql": "SELECT 1", **wishes}).headers["x-frazil-query-id"] == "my-query"
    asked = queries.asked[-1]
    assert (asked.seconds_max, asked.rows_max, asked.partial, asked.id) == (2.5, 10, True, "my-query")
    for given, expected in (
        ("1970-01-01T00:00:01Z", AsOf(time=1_000_000)),
        ({"snapshot": 12}, AsOf(snapshot_id=12)),
        ({"snapshot": str(2**62)}, AsOf(snapshot_id=2**62)),
        ({"tag": "before"}, AsOf(tag="before")),
    ):
        assert ask(client, {"sql": "SELECT 1", "as_of": given}).status_code == 200
        assert queries.asked[-1].as_of == expected


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "`sql` is missing"),
        ({"sql": "  "}, "`sql` is missing"),
        ({"sql": 5}, "`sql` is missing"),
        ([], "must be an object"),
        ({"sql": "SELECT 1", "parms": [1]}, "Did you mean `params`?"),
        ({"sql": "SELECT 1", "params": {"a": 1}}, "must be an array"),
        ({"sql": "SELECT 1", "params": [json.loads("[" * 17 + "]" * 17)]}, "nested too deeply"),
        ({"sql": "SELECT 1", "params": [10**30]}, "more than 64 bits"),
        ({"sql": "SELECT 1", "params": [0] * 1001}, "more than 1000"),
        ({"sql": "SELECT 1", "as_of": {"snapshot": -1}}, "`as_of` must be a time"),
        ({"sql": "SELECT 1", "as_of": {"snapshot": 1, "tag": "x"}}, "`as_of` must be a time"),
        ({"sql": "SELECT 1", "as_of": "yesterday"}, "as_of is not a time"),
        ({"sql": "SELECT 1", "seconds_max": 0}, "above 0"),
        ({"sql": "SELECT 1", "seconds_max": True}, "above 0"),
        ({"sql": "SELECT 1", "rows_max": 1.5}, "whole number"),
        ({"sql": "SELECT 1", "partial": 1}, "true or false"),
        ({"sql": "SELECT 1", "id": "a/b"}, "letters, digits"),
        ({"sql": "SELECT 1", "id": "x" * 65}, "at most 64"),
        ({"sql": "SELECT \0"}, "NUL character"),
        ({"sql": "SELECT 1", "rows_max": True}, "whole number"),
        ({"sql": "SELECT 1", "rows_max": "5"}, "whole number"),
        ({"sql": "SELECT 1", "partial": None}, "true or false"),
    ],
)
def test_a_mistake_in_the_body_is_named(client: Client, body: Any, says: str) -> None:
    answer = ask(client, body)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


def test_bodies_that_are_no_json_or_bombs_are_refused(client: Client) -> None:
    headers = {"content-type": "application/json"}
    for content in (
        b"{",
        b"[" * 100_000,
        b'{"sql": "\\ud800"}',
        b"\xff",
        b'{"sql": "SELECT 1", "params": [NaN]}',
    ):
        assert client.post("/api/v1/sql", content=content, headers=headers).status_code == 400
    many = orjson.dumps({"sql": "SELECT 1"} | {f"{number:x}": 1 for number in range(100_000)})
    started = time.process_time()
    assert "unknown member `0`" in client.post("/api/v1/sql", content=many, headers=headers).text
    assert time.process_time() - started < 1
    wrong = client.post("/api/v1/sql", content=b"x", headers={"content-type": "application/xml"})
    assert wrong.status_code == 415
    packed = {"content-type": "application/json", "content-encoding": "gzip"}
    assert client.post("/api/v1/sql", content=b"x", headers=packed).status_code == 415


def test_sql_and_bodies_have_a_bound(asking: Callable[..., Client]) -> None:
    client = asking(query={"sql_bytes_max": 1024})
    assert ask(client, {"sql": "SELECT 1 --" + "x" * 1000}).status_code == 200
    long = ask(client, {"sql": "SELECT 1 --" + "x" * 1024})
    assert (long.status_code, long.json()["error"]["code"]) == (413, "too_large")
    assert "query.sql_bytes_max" in long.json()["error"]["message"]
    assert ask(client, {"sql": "SELECT 1", "params": ["x" * (2 << 20)]}).status_code == 413

    async def pieces() -> Any:
        for _ in range(300):
            yield b" " * 10_000

    headers = {"content-type": "application/sql"}
    assert client.post("/api/v1/sql", content=pieces(), headers=headers).status_code == 413


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (QueryInvalid("no column x", position=7), 400, "query_invalid"),
        (QueryRefused("read_csv", position=7), 403, "query_refused"),
        (LimitReached("too long", limit="query.seconds_max"), 422, "limit_reached"),
        (Overloaded("many wait", bound="queue", retry_after_seconds=1.2), 429, "overloaded"),
        (StoreUnavailable("down"), 503, "store_unavailable"),
        (CatalogUnavailable("down"), 503, "catalog_unavailable"),
    ],
)
def test_each_error_has_its_status_and_code(
    client: Client, queries: StandIn, error: Exception, status: int, code: str
) -> None:
    queries.failure = error
    answer = ask(client, {"sql": "SELECT 1"})
    found = answer.json()["error"]
    assert (answer.status_code, found["code"], found["message"]) == (status, code, str(error))
    assert answer.headers.get("retry-after") == ({429: "2", 503: "1"}.get(status))
    assert found.get("position") == getattr(error, "position", None)
    if status == 422:
        assert found["limit"] == "query.seconds_max"


@pytest.mark.parametrize("error", [ZeroDivisionError("secret"), ConfigError("secret")])
def test_a_defect_is_a_500_without_details(client: Client, queries: StandIn, error: Exception) -> None:
    queries.failure = error
    answer = ask(client, {"sql": "SELECT 1"})
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_no_sql_and_no_key_is_in_the_log(client: Client, queries: StandIn, log: io.StringIO) -> None:
    queries.failure = ZeroDivisionError()
    headers = {"authorization": "Bearer fz_tell-nobody"}
    ask(client, {"sql": "SELECT 'tell-nobody'", "params": ["tell-nobody"]}, headers=headers)
    assert "internal error" in log.getvalue()
    assert "tell-nobody" not in log.getvalue()


def test_queries_are_watched_and_cancelled_by_their_own_tenant_alone(
    client: Client, queries: StandIn
) -> None:
    queries.running["mine"] = Progress("mine", "default", "running", 40.0, 1.5)
    queries.running["theirs"] = Progress("theirs", "other", "running", 40.0, 1.5)
    shown = {"id": "mine", "state": "running", "percent": 40.0, "seconds": 1.5}
    assert client.get("/api/v1/queries/mine").json() == shown
    assert client.get("/api/v1/queries/theirs").status_code == 404
    assert client.delete("/api/v1/queries/theirs").status_code == 404
    assert client.delete("/api/v1/queries/mine").status_code == 204
    assert client.get("/api/v1/queries/mine").status_code == 404


class Wire:
    """An ASGI server that the test plays itself: what was sent, and when the client goes."""

    def __init__(self, app: Any, body: bytes) -> None:
        self.app, self.body = app, body
        self.sent: list[dict[str, Any]] = []
        self.gone = asyncio.Event()
        self._asked = False

    async def run(self) -> None:
        headers = [(b"host", b"127.0.0.1:4380"), (b"content-type", b"application/json")]
        scope = {
            "type": "http", "method": "POST", "path": "/api/v1/sql", "raw_path": b"/api/v1/sql",
            "query_string": b"", "headers": headers, "root_path": "", "scheme": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
        }  # fmt: skip
        await self.app(scope, self.receive, self.send)

    async def receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)

    @property
    def is_whole(self) -> bool:
        return bool(self.sent) and not self.sent[-1].get("more_body", False)


def application(folder: Path, queries: StandIn) -> Any:
    return create_app(Config.model_validate({"data_dir": str(folder)}), queries)  # type: ignore[arg-type]


def test_an_error_after_the_first_byte_leaves_the_body_without_an_end(tmp_path: Path) -> None:
    async def broken(error: Exception) -> tuple[Wire, StandIn]:
        queries = StandIn()
        queries.broken_after = error  # type: ignore[assignment]
        wire = Wire(application(tmp_path, queries), b'{"sql": "SELECT 1"}')
        await wire.run()
        return wire, queries

    for error in (StoreUnavailable("gone"), ZeroDivisionError()):
        wire, queries = asyncio.run(broken(error))
        assert wire.sent[0]["status"] == 200
        assert not wire.is_whole
        assert queries.closed_answers == 1


def test_a_client_that_goes_while_it_waits_cancels_the_query(tmp_path: Path) -> None:
    async def go() -> None:
        queries = StandIn()
        queries.hang.clear()
        wire = Wire(application(tmp_path, queries), b'{"sql": "SELECT 1"}')
        running = asyncio.create_task(wire.run())
        while not queries.asked:  # noqa: ASYNC110
            await asyncio.sleep(0)
        wire.gone.set()
        await asyncio.wait_for(running, 10)
        assert wire.sent[0]["status"] == 499

    asyncio.run(go())


def test_a_client_that_goes_while_it_reads_lets_the_worker_go(tmp_path: Path) -> None:
    async def go() -> None:
        queries = StandIn()
        wire = Wire(application(tmp_path, queries), b'{"sql": "SELECT 1"}')
        stuck = asyncio.Event()

        async def slow(message: dict[str, Any]) -> None:
            wire.sent.append(message)
            if message["type"] == "http.response.body":
                stuck.set()
                await asyncio.Event().wait()  # the client reads no further

        wire.send = slow  # type: ignore[method-assign]
        running = asyncio.create_task(wire.run())
        await asyncio.wait_for(stuck.wait(), 10)
        wire.gone.set()
        await asyncio.wait_for(running, 10)
        assert queries.closed_answers == 1
        assert not wire.is_whole

    asyncio.run(go())
