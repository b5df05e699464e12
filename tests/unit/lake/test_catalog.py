"""The catalog: opened with bounds on every wait, and described to Spark as PyIceberg sees it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import requests
import sqlalchemy
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from frazil.config import Config
from frazil.errors import CatalogUnavailable, ConfigError, StoreUnavailable
from frazil.lake.catalog import catalog_errors, ensure_namespace, open_catalog, spark_properties
from frazil.lake.pyiceberg_compat import catalogs
from tests.support.lake.http_stub import HttpStub, Request, http_stub

LOST = psycopg2.OperationalError("server closed the connection\nmore")


def config_of(tmp_path: Path, lake: dict[str, Any]) -> Config:
    return Config.model_validate({"data_dir": tmp_path, "lake": lake})


@contextlib.contextmanager
def opened(config: Config) -> Iterator[Catalog]:
    with contextlib.closing(open_catalog(config)) as catalog:
        yield catalog


@pytest.mark.parametrize(
    "error",
    [
        OperationalError("SELECT secret", {}, LOST),
        sqlalchemy.exc.DatabaseError("SELECT 1", {}, Exception("file is not a database")),
        sqlalchemy.exc.TimeoutError("no connection is free"),
        requests.ConnectionError("refused"),
        requests.ReadTimeout("late"),
        ServerError("500"),
        ServiceUnavailableError("503"),
        TooManyRequestsError("429"),
        UnauthorizedError("the token has expired"),
        ForbiddenError("403"),
        CommitStateUnknownException("504"),
    ],
)
def test_what_may_pass_is_unavailable(error: Exception) -> None:
    with pytest.raises(CatalogUnavailable) as caught, catalog_errors():
        raise error
    assert caught.value.__cause__ is error
    assert "SELECT" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        CommitFailedException("another was first"),
        NoSuchTableError("otel.logs"),
        BadRequestError("400"),
        IntegrityError("INSERT", {}, Exception()),
        ProgrammingError("SELECT", {}, Exception()),
        StoreUnavailable("full"),
        FileNotFoundError("metadata"),
    ],
)
def test_what_says_something_about_the_question_stays_what_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, catalog_errors():
        raise error
    assert caught.value is error


def test_a_sqlite_catalog_waits_for_others_and_syncs_what_it_commits(tmp_path: Path) -> None:
    config = config_of(tmp_path / "new" / "folder", {})
    with opened(config) as catalog:
        assert isinstance(catalog, SqlCatalog)
        with catalog.engine.connect() as connection:
            found = {
                name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
                for name in ("busy_timeout", "synchronous")
            }
    assert found == {"busy_timeout": 30_000, "synchronous": 3}  # 3 is EXTRA
    assert config.catalog_file.exists()


def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"not a database, " * 1000)
    with pytest.raises(CatalogUnavailable, match="not a database"):
        open_catalog(config_of(tmp_path, {}))


def test_namespaces_are_made_with_those_they_are_in_and_once(tmp_path: Path) -> None:
    with opened(config_of(tmp_path, {})) as catalog:
        for _ in range(2):
            ensure_namespace(catalog, "company.otel")
        assert catalog.namespace_exists("company.otel")
        assert catalog.list_namespaces() == [("company",)]


@pytest.mark.parametrize("error", [IntegrityError("INSERT", {}, Exception()), NamespaceAlreadyExistsError()])
def test_a_namespace_that_another_process_makes_at_the_same_time_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def lost_the_race(*_: Any) -> None:
        raise error

    with opened(config_of(tmp_path, {})) as catalog:
        monkeypatch.setattr(catalog, "create_namespace", lost_the_race)
        ensure_namespace(catalog, "otel")


def test_a_postgres_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    for scheme in ("postgres", "postgresql"):
        catalog = {"type": "postgres", "postgres": {"uri": f"{scheme}://u:secret@127.0.0.1:1/db"}}
        with pytest.raises(CatalogUnavailable, match="refused") as caught:
            open_catalog(config_of(tmp_path, {"catalog": catalog}))
        assert "secret" not in str(caught.value)


def test_an_address_of_postgres_that_is_none_is_not_repeated(tmp_path: Path) -> None:
    catalog = {"type": "postgres", "postgres": {"uri": "postgresql://u:secret@host:port/db"}}
    with pytest.raises(ConfigError, match="%40") as caught:
        open_catalog(config_of(tmp_path, {"catalog": catalog}))
    assert "secret" not in str(caught.value)


# REST


def rest_config(tmp_path: Path, uri: str, **rest: Any) -> Config:
    return config_of(tmp_path, {"catalog": {"type": "rest", "rest": {"uri": uri, **rest}}})


def catalog_answer(request: Request) -> tuple[int, Any]:
    if request.path.endswith("/oauth/tokens"):
        return 200, {"access_token": "exchanged", "token_type": "bearer"}
    if "/config" in request.path:
        return 200, {"defaults": {}, "overrides": {}}
    return 200, {"namespaces": []}


@pytest.fixture
def rest_server() -> Iterator[HttpStub]:
    with http_stub(catalog_answer) as server:
        yield server


def last_headers(server: HttpStub, config: Config) -> dict[str, str]:
    with opened(config) as catalog:
        catalog.list_namespaces()
    return server.requests[-1].headers


def test_without_credentials_none_are_sent(rest_server: HttpStub, tmp_path: Path) -> None:
    headers = last_headers(rest_server, rest_config(tmp_path, rest_server.url, headers={"X-Team": "a"}))
    assert "authorization" not in headers
    assert headers["x-team"] == "a"


def test_a_token_is_sent_and_the_warehouse_is_asked_for(rest_server: HttpStub, tmp_path: Path) -> None:
    config = rest_config(tmp_path, rest_server.url, token="secret", warehouse="w1")
    assert last_headers(rest_server, config)["authorization"] == "Bearer secret"
    assert rest_server.requests[0].path == "/v1/config?warehouse=w1"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_credential_is_exchanged_for_a_token(
    rest_server: HttpStub, tmp_path: Path, elsewhere: bool
) -> None:
    address = {"oauth2_server_uri": f"{rest_server.url}/login/oauth/tokens"} if elsewhere else {}
    config = rest_config(
        tmp_path, rest_server.url, credential="id:pass", scope="PRINCIPAL_ROLE:ALL", **address
    )
    assert last_headers(rest_server, config)["authorization"] == "Bearer exchanged"
    exchange = rest_server.requests[0]
    assert exchange.path == ("/login/oauth/tokens" if elsewhere else "/v1/oauth/tokens")
    assert b"client_id=id&client_secret=pass&scope=PRINCIPAL_ROLE%3AALL" in exchange.body


def test_requests_are_signed_as_aws_wants_it(rest_server: HttpStub, tmp_path: Path) -> None:
    rest = {"uri": rest_server.url, "sigv4": {"region": "eu-west-1", "service": "glue"}}
    keys = {"access_key_id": "AKIA", "secret_access_key": "secret"}
    config = config_of(tmp_path, {"catalog": {"type": "rest", "rest": rest}, "s3": keys})
    headers = last_headers(rest_server, config)
    assert headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIA/")
    assert "/eu-west-1/glue/aws4_request" in headers["authorization"]


@pytest.mark.parametrize(
    "rest", [{}, {"credential": "id:pass"}, {"sigv4": {"region": "eu-west-1", "service": "glue"}}]
)
@pytest.mark.parametrize("when", ["opening", "later"])
def test_a_catalog_that_hangs_is_given_up(
    rest_server: HttpStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, rest: dict[str, Any]
) -> None:
    monkeypatch.setattr(catalogs, "RESPONSE_SECONDS_MAX", 0.2)
    keys = {"access_key_id": "AKIA", "secret_access_key": "secret"}
    lake = {"catalog": {"type": "rest", "rest": {"uri": rest_server.url, **rest}}, "s3": keys}
    began = time.monotonic()

    def use() -> None:
        rest_server.hangs = when == "opening"
        with opened(config_of(tmp_path, lake)) as catalog, catalog_errors():
            rest_server.hangs = True
            catalog.list_namespaces()

    with pytest.raises(CatalogUnavailable, match="timed out"):
        use()
    assert time.monotonic() - began < 5


def test_what_is_no_catalog_is_said_to_be_none(tmp_path: Path) -> None:
    with (
        http_stub(lambda request: (200, b"<html>Welcome!</html>")) as server,
        pytest.raises(CatalogUnavailable, match=r"lake\.catalog\.rest\.uri"),
    ):
        open_catalog(rest_config(tmp_path, server.url))


def test_only_configured_ways_to_the_store_override_what_a_rest_catalog_says(tmp_path: Path) -> None:
    def asked_with(s3: dict[str, Any]) -> dict[str, str]:
        answer: Callable[[Request], Any] = lambda request: (  # noqa: E731
            200,
            {"defaults": {"client.region": "eu-north-1", "s3.endpoint": "https://its.own"}, "overrides": {}},
        )
        with http_stub(answer) as server:
            lake = {"catalog": {"type": "rest", "rest": {"uri": server.url}}, "s3": s3}
            with opened(config_of(tmp_path, lake)) as catalog:
                return catalog.properties

    its_own = asked_with({})
    assert (its_own["client.region"], its_own["s3.endpoint"]) == ("eu-north-1", "https://its.own")
    ours = asked_with({"region": "eu-west-1", "endpoint": "https://our.own"})
    assert (ours["client.region"], ours["s3.endpoint"]) == ("eu-west-1", "https://our.own")


# Spark

PREFIX = "spark.sql.catalog.frazil"


def of_spark(config: Config) -> dict[str, str]:
    """The catalog's own settings, after a look at those that all have."""
    settings = spark_properties(config)
    assert "IcebergSparkSessionExtensions" in settings.pop("spark.sql.extensions")
    assert settings.pop(PREFIX) == "org.apache.iceberg.spark.SparkCatalog"
    assert settings.pop(f"{PREFIX}.cache-enabled") == "false"
    return {key.removeprefix(f"{PREFIX}."): value for key, value in settings.items()}


def test_spark_uses_the_same_sqlite_file_and_folder(tmp_path: Path) -> None:
    assert of_spark(config_of(tmp_path, {})) == {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:sqlite:{tmp_path}/catalog.db",
        "jdbc.schema-version": "V1",
        "jdbc.busy_timeout": "30000",
        "jdbc.synchronous": "FULL",
        "warehouse": f"{tmp_path}/warehouse",
    }


def test_spark_gets_user_and_password_of_postgres_apart_from_the_address(tmp_path: Path) -> None:
    uri = "postgresql://me:p%40ss@db.example.com:6432/lake?sslmode=require&application_name=x"
    settings = of_spark(config_of(tmp_path, {"catalog": {"type": "postgres", "postgres": {"uri": uri}}}))
    assert settings["catalog-impl"] == "org.apache.iceberg.jdbc.JdbcCatalog"
    address, _, query = settings["uri"].partition("?")
    assert address == "jdbc:postgresql://db.example.com:6432/lake"
    assert set(query.split("&")) == {"connectTimeout=5", "socketTimeout=60", "sslmode=require"}
    assert (settings["jdbc.user"], settings["jdbc.password"]) == ("me", "p@ss")


def test_spark_reaches_s3_as_pyiceberg_does(tmp_path: Path) -> None:
    s3 = {
        "endpoint": "https://s3.example.com",
        "region": "eu-west-1",
        "access_key_id": "key",
        "secret_access_key": "secret",
        "sse_kms_key_id": "arn:key",
    }
    settings = of_spark(config_of(tmp_path, {"warehouse": "s3://lake/w/", "s3": s3}))
    assert settings["warehouse"] == "s3://lake/w"
    assert settings["io-impl"] == "org.apache.iceberg.aws.s3.S3FileIO"
    files = {key: value for key, value in settings.items() if key.startswith(("s3.", "client.", "frazil."))}
    assert files == {
        "s3.endpoint": "https://s3.example.com",
        "client.region": "eu-west-1",
        "s3.path-style-access": "true",
        "s3.access-key-id": "key",
        "s3.secret-access-key": "secret",
        "s3.sse.type": "kms",
        "s3.sse.key": "arn:key",
    }


def test_spark_enters_a_rest_catalog_with_the_same_credentials(tmp_path: Path) -> None:
    uri = "https://catalog.example.com/iceberg"
    config = rest_config(tmp_path, uri, credential="id:pass", warehouse="w1", headers={"X-Team": "a"})
    assert of_spark(config) == {
        "type": "rest",
        "uri": uri,
        "warehouse": "w1",
        "credential": "id:pass",
        "oauth2-server-uri": f"{uri}/v1/oauth/tokens",
        "header.X-Team": "a",
        "rest.client.connection-timeout-ms": "5000",
        "rest.client.socket-timeout-ms": "30000",
    }


def test_spark_signs_with_the_configured_key(tmp_path: Path) -> None:
    rest = {"uri": "https://glue.example.com", "sigv4": {"region": "eu-west-1", "service": "glue"}}
    keys = {"access_key_id": "AKIA", "secret_access_key": "secret"}
    settings = of_spark(config_of(tmp_path, {"catalog": {"type": "rest", "rest": rest}, "s3": keys}))
    signing = {key: value for key, value in settings.items() if key.startswith("rest.s") or "key" in key}
    assert signing == {
        "rest.sigv4-enabled": "true",
        "rest.signing-region": "eu-west-1",
        "rest.signing-name": "glue",
        "rest.access-key-id": "AKIA",
        "rest.secret-access-key": "secret",
        "s3.access-key-id": "AKIA",
        "s3.secret-access-key": "secret",
    }
