from __future__ import annotations

import datetime as dt
import socket
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import frazil
from frazil.client.connection import DEFAULT_URL, open_transport
from frazil.client.http_transport import HttpTransport, base_url
from frazil.client.transport import Unreachable
from frazil.config import Config, load_config
from frazil.errors import (
    CatalogUnavailable,
    ConfigError,
    Forbidden,
    FrazilError,
    LimitReached,
    Overloaded,
    QueryInvalid,
    QueryRefused,
    RequestInvalid,
    RequestTooLarge,
    StoreUnavailable,
    Transient,
    Unauthenticated,
)
from frazil.query.model import Stats
from tests.support.client_api import Api

ROWS = pa.table(
    {
        "n": pa.array([1, 2, None], pa.int64()),
        "name": ["a", None, "ü"],
        "time": pa.array([dt.datetime(2026, 11, 15, 10), None, None], pa.timestamp("us")),
        "attributes": pa.array([[("k", "v")], None, []], pa.map_(pa.string(), pa.string())),
    }
)


def test_all_conversions_of_a_result_have_the_same_rows(api: Api) -> None:
    api.table = ROWS
    with frazil.connect(api.url) as db:
        result = db.sql("SELECT * FROM logs")
    assert result.arrow().equals(ROWS)
    assert result.columns == ["n", "name", "time", "attributes"]
    time = dt.datetime(2026, 11, 15, 10)
    assert result.rows() == [(1, "a", time, {"k": "v"}), (2, None, None, None), (None, "ü", None, {})]
    assert list(result) == result.rows()
    assert len(result) == 3
    assert list(result.pandas()["name"]) == ["a", None, "ü"]
    assert result.pandas()["attributes"][0] == {"k": "v"}
    frame = result.polars()
    assert frame["n"].to_list() == [1, 2, None]
    assert frame["time"].to_list() == [time, None, None]


def test_the_repr_of_a_result_is_a_small_table(api: Api) -> None:
    api.table = pa.table({"n": range(1500), "name": ["x"] * 1500})
    result = frazil.connect(api.url).sql("SELECT 1")
    shown = repr(result).splitlines()
    assert shown[0] == "n  name"
    assert shown[2] == "0  x"
    assert shown[-1] == "… 1,490 more rows"


def test_a_result_without_rows_keeps_its_columns(api: Api) -> None:
    api.table = ROWS.slice(0, 0)
    result = frazil.connect(api.url).sql("SELECT 1")
    assert result.rows() == []
    assert result.columns == ROWS.column_names
    assert repr(result).endswith("0 rows")


def test_columns_with_the_same_name_are_kept(api: Api) -> None:
    api.table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["n", "n"])
    assert frazil.connect(api.url).sql("SELECT 1 AS n, 2 AS n").rows() == [(1, 2)]


def test_the_api_receives_the_query_unchanged(api: Api) -> None:
    with frazil.connect(api.url, api_key="fz_secret") as db:
        db.sql("SELECT ?", [5], as_of="tag:x", partial=True, seconds_max=3, rows_max=9)
    (seen,) = api.seen
    assert seen.headers["authorization"] == "Bearer fz_secret"
    assert seen.headers["accept"] == "application/vnd.apache.arrow.stream"
    query = seen.query
    assert query.pop("id").isalnum()
    assert query == {
        "sql": "SELECT ?",
        "params": [5],
        "as_of": {"tag": "x"},
        "partial": True,
        "seconds_max": 3,
        "rows_max": 9,
    }


def test_stats_come_with_the_result_and_unknown_fields_are_ignored(api: Api) -> None:
    api.stats = {"files": 3, "files_total": 9, "tail_rows": 2, "stale": "since 10:00", "of_tomorrow": 1}
    stats = frazil.connect(api.url).sql("SELECT 1").stats
    assert (stats.files, stats.files_total, stats.tail_rows, stats.stale) == (3, 9, 2, "since 10:00")
    assert stats.rows == 1
    assert stats.seconds is not None


def test_tables_are_described_with_times_as_numbers(api: Api) -> None:
    logs, spans = frazil.connect(api.url).tables()
    assert (logs.name, logs.rows, logs.tail_rows, logs.snapshot_id) == ("logs", 12, 3, 1234)
    assert logs.landed_at == 1_794_736_802_000_001
    assert logs.last_time is None
    assert [column.name for column in logs.columns] == ["time", "service_name"]
    assert (spans.rows, spans.columns[0].doc) == (0, "")


@pytest.mark.parametrize(
    ("status", "code", "facts", "kind"),
    [
        (400, "query_invalid", {"position": 7}, QueryInvalid),
        (400, "request_invalid", {}, RequestInvalid),
        (401, "unauthenticated", {}, Unauthenticated),
        (403, "forbidden", {}, Forbidden),
        (403, "query_refused", {"position": 0}, QueryRefused),
        (404, "not_found", {}, RequestInvalid),
        (413, "too_large", {}, RequestTooLarge),
        (422, "limit_reached", {"limit": "query.seconds_max"}, LimitReached),
        (429, "overloaded", {"limit": "query.queue_max"}, Overloaded),
        (503, "store_unavailable", {}, StoreUnavailable),
        (503, "catalog_unavailable", {}, CatalogUnavailable),
        (503, "unavailable", {}, Transient),
        (500, "internal", {}, FrazilError),
        (422, "a_code_of_tomorrow", {}, LimitReached),
    ],
)
def test_errors_are_those_that_the_service_raised(
    api: Api, status: int, code: str, facts: dict[str, Any], kind: type[FrazilError]
) -> None:
    api.refuse(status, code, "what is wrong", hint="what to do", **facts)
    with pytest.raises(kind) as caught:
        frazil.connect(api.url).sql("SELECT 1")
    error = caught.value
    assert type(error) is kind
    assert str(error) == "what is wrong"
    assert error.__notes__ == ["what to do"]
    if isinstance(error, QueryInvalid | QueryRefused):
        assert error.position == facts["position"]
    if isinstance(error, Overloaded):
        assert error.bound == "query.queue_max"
    if isinstance(error, LimitReached):
        assert error.limit == facts.get("limit", "")


def test_a_503_with_retry_after_is_retried(api: Api) -> None:
    api.refuse(503, "store_unavailable", "wait", retry_after="0")
    api.refuse(503, "store_unavailable", "wait", retry_after="0")
    assert frazil.connect(api.url).sql("SELECT 1").rows() == [(1,)]
    assert len(api.seen) == 3


def test_the_number_of_retries_is_limited(api: Api) -> None:
    for _ in range(9):
        api.refuse(503, "store_unavailable", "wait", retry_after="0")
    with pytest.raises(StoreUnavailable):
        frazil.connect(api.url).sql("SELECT 1")
    assert len(api.seen) == 3


@pytest.mark.parametrize(("status", "delay"), [(503, None), (503, "60"), (429, "0"), (400, "0")])
def test_other_errors_are_not_retried(api: Api, status: int, delay: str | None) -> None:
    api.refuse(status, "", "no", retry_after=delay)
    with pytest.raises(FrazilError):
        frazil.connect(api.url).sql("SELECT 1")
    assert len(api.seen) == 1


def test_the_error_has_the_retry_delay(api: Api) -> None:
    api.refuse(429, "overloaded", "64 queries wait", retry_after="7")
    with pytest.raises(Overloaded) as caught:
        frazil.connect(api.url).sql("SELECT 1")
    assert caught.value.retry_after_seconds == 7


def test_a_truncated_response_is_an_error(api: Api) -> None:
    api.table = pa.table({"n": range(1000)})
    api.breaks_off = True
    with pytest.raises(Unreachable, match="ended early"):
        frazil.connect(api.url).sql("SELECT 1")


def test_an_arrow_stream_without_end_marker_is_an_error(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = api.body("arrow")
    monkeypatch.setattr(Api, "body", lambda self, format: whole[:-8])
    with pytest.raises(Unreachable, match="ended early"):
        frazil.connect(api.url).sql("SELECT 1")


def test_a_server_that_is_not_frazil_is_detected(api: Api) -> None:
    api.refusals.append((404, {}, b"<html>not here</html>"))
    with pytest.raises(ConfigError, match="without frazil's error format"):
        frazil.connect(api.url).sql("SELECT 1")


def test_a_redirection_is_not_followed_with_the_key(api: Api) -> None:
    api.refusals.append((302, {"location": api.url + "/elsewhere"}, b""))
    with pytest.raises(ConfigError):
        frazil.connect(api.url, api_key="fz_secret").sql("SELECT 1")
    assert len(api.seen) == 1


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_url_without_a_server_is_unreachable() -> None:
    with pytest.raises(Unreachable, match=r"cannot reach http://127.0.0.1:\d+: Connection refused"):
        frazil.connect(f"127.0.0.1:{closed_port()}").sql("SELECT 1")


def test_a_connection_that_the_server_closed_is_reopened(api: Api) -> None:
    transport = HttpTransport(api.url)
    frazil_tables = transport.tables()
    for pool in transport._http._plain.pools._container.values():
        connection = pool._get_conn()
        connection.sock.shutdown(socket.SHUT_RDWR)
        pool._put_conn(connection)
    assert transport.tables() == frazil_tables


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "http://host:99999", "http://u:p@host", "http://h/?a=1"]
)
def test_an_invalid_url_is_rejected(url: str) -> None:
    with pytest.raises(ConfigError):
        base_url(url)


def test_a_url_may_omit_the_scheme_and_end_with_a_slash() -> None:
    assert base_url("127.0.0.1:4380") == "http://127.0.0.1:4380"
    assert base_url("https://frazil.example/") == "https://frazil.example"


def test_a_missing_ca_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"CA file .*ca\.pem does not exist"):
        frazil.connect("https://127.0.0.1:1", ca_file=tmp_path / "ca.pem")


def test_the_default_address_is_the_configurations() -> None:
    assert Config().serve.url == DEFAULT_URL


def test_the_configured_api_is_used_if_it_is_running(api: Api, tmp_path: Path) -> None:
    listen = api.url.removeprefix("http://")
    path = tmp_path / "other.yaml"
    path.write_text(f"serve: {{listen: '{listen}'}}\n")
    for config in (path, str(path), load_config(path, environ={})):
        transport = open_transport(config=config)
        assert (type(transport), transport.address) == (HttpTransport, api.url)


def test_the_environment_can_set_the_api_address(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAZIL_SERVE__LISTEN", api.url.removeprefix("http://"))
    assert frazil.connect().sql("SELECT 1").rows() == [(1,)]


@pytest.mark.parametrize("from_file", [False, True])
def test_the_environment_can_set_the_api_key(
    api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, from_file: bool
) -> None:
    (tmp_path / "key").write_text("fz_secret\n")
    monkeypatch.setenv("FRAZIL_API_KEY", f"@{tmp_path / 'key'}" if from_file else "fz_secret")
    frazil.connect(api.url).sql("SELECT 1")
    frazil.connect(api.url, api_key="fz_other").sql("SELECT 1")
    assert [seen.headers["authorization"] for seen in api.seen] == ["Bearer fz_secret", "Bearer fz_other"]


def test_the_api_key_of_the_environment_does_not_keep_from_reading_as_a_tenant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRAZIL_API_KEY", "fz_secret")
    with frazil.connect(tenant="shop") as db:
        assert db.sql("SELECT 1").rows() == [(1,)]


def test_an_api_key_without_an_api_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRAZIL_SERVE__LISTEN", f"127.0.0.1:{closed_port()}")
    with pytest.raises(Unreachable, match="remove the key"):
        frazil.connect(api_key="fz_secret")


def test_a_tenant_cannot_be_chosen_over_the_api(api: Api) -> None:
    with pytest.raises(ConfigError, match="the API key determines the tenant"):
        frazil.connect(api.url, tenant="other")


def test_polars_is_optional(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    result = frazil.connect(api.url).sql("SELECT 1")
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ImportError, match="pip install polars"):
        result.polars()


def test_progress_and_cancel_use_the_query_id(api: Api) -> None:
    transport = HttpTransport(api.url)
    progress = transport.progress("abc")
    assert progress is not None
    assert (progress.id, progress.state, progress.percent) == ("abc", "running", 40.0)
    assert transport.cancel("abc") is True
    assert [(seen.method, seen.path) for seen in api.seen] == [
        ("GET", "/api/v1/queries/abc"),
        ("DELETE", "/api/v1/queries/abc"),
    ]


def test_missing_progress_is_not_an_error() -> None:
    transport = HttpTransport(f"127.0.0.1:{closed_port()}")
    assert transport.progress("abc") is None
    assert transport.cancel("abc") is False


def test_an_invalid_stats_header_is_ignored(api: Api) -> None:
    api.stats = {"stale": "x"}
    from frazil.client import http_transport

    assert http_transport._stats("{broken", "q") == Stats(id="q")
    assert http_transport._stats("[]", "q") == Stats(id="q")
    assert http_transport._stats(None, "q") == Stats(id="q")
