"""The Iceberg catalog, for PyIceberg and for Spark, from one configuration."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pydantic
import requests
import sqlalchemy
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    RESTError,
)
from pyiceberg.table import Table
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DataError,
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    ProgrammingError,
)

from frazil.config import Config
from frazil.errors import CatalogUnavailable, ConfigError
from frazil.lake.files import IO_IMPLEMENTATION, file_properties, secret_text
from frazil.lake.pyiceberg_compat import tables_only
from frazil.lake.pyiceberg_compat.catalogs import (
    CONNECT_SECONDS_MAX,
    RESPONSE_SECONDS_MAX,
    BoundedRestCatalog,
    BoundedSqlCatalog,
)
from frazil.storage.durable import DurableFolders

LEASES = "leases"
"""The table of leases, in the namespace of the others. It holds no telemetry."""
# Transient: a retry may succeed after a network, server or permission problem.
_TRANSIENT = (
    DatabaseError,
    InterfaceError,
    sqlalchemy.exc.TimeoutError,
    requests.RequestException,
    RESTError,  # includes a lost response to a commit (CommitStateUnknownException)
)
# Caused by the request itself. Callers handle them.
_REQUEST_ERRORS = (IntegrityError, ProgrammingError, DataError, NotSupportedError, BadRequestError)


@contextlib.contextmanager
def catalog_errors() -> Iterator[None]:
    """Turns transient errors into CatalogUnavailable. A lost race or a missing table raises as it is."""
    try:
        yield
    except _REQUEST_ERRORS:
        raise
    except _TRANSIENT as error:
        cause = error.orig if isinstance(error, sqlalchemy.exc.DBAPIError) else error
        lines = str(cause).strip().splitlines() or [type(cause).__name__]
        raise CatalogUnavailable(f"the catalog is unavailable: {lines[0][:600]}") from error


def open_catalog(config: Config) -> Catalog:
    """Opens the configured catalog. Any thread may use it. The caller closes it."""
    catalog = config.lake.catalog
    with catalog_errors():
        if catalog.type == "rest":
            return _open_rest(config)
        uri = _sqlite_uri(config) if catalog.type == "sqlite" else _postgres_uri(config)
        return _open_sql(config, uri, schema_version="v1")  # as Spark's JdbcCatalog


def open_existing_catalog(config: Config) -> Catalog | None:
    """Opens the configured catalog for reading only. Returns None if it does not exist yet."""
    kind = config.lake.catalog.type
    if kind == "rest":
        return open_catalog(config)
    if kind == "sqlite" and not config.catalog_file.exists():
        return None
    with catalog_errors():
        uri = _sqlite_read_only_uri(config) if kind == "sqlite" else _postgres_uri(config)
        catalog = _open_sql(config, uri, schema_version="v0", init_catalog_tables="false")
        try:
            if sqlalchemy.inspect(catalog.engine).has_table(IcebergTables.__tablename__):
                return catalog
        except Exception:
            catalog.close()
            raise
        catalog.close()
        return None


def _open_sql(config: Config, uri: str, **properties: str) -> SqlCatalog:
    return BoundedSqlCatalog(
        config.lake.catalog.name,
        **_common_properties(config),
        uri=uri,
        warehouse=config.warehouse,
        pool_pre_ping="true",
        **properties,
    )


def ensure_namespace(catalog: Catalog, namespace: str) -> None:
    """Creates the namespace and its parents where they do not exist."""
    parts = namespace.split(".")
    with catalog_errors():
        for depth in range(1, len(parts) + 1):
            name = tuple(parts[:depth])
            if not catalog.namespace_exists(name):
                # Another process may have created it just now; SQL catalogs then raise the database's error.
                with contextlib.suppress(NamespaceAlreadyExistsError, IntegrityError):
                    catalog.create_namespace(name)


def table_or_none(catalog: Catalog, namespace: str, name: str) -> Table | None:
    try:
        return catalog.load_table((*namespace.split("."), name))
    except NoSuchTableError:
        return None


def full_name(table: Table) -> str:
    return ".".join(table.name())


def metadata_location(catalog: SqlCatalog, identifier: tuple[str, ...]) -> str | None:
    """Returns the location of a table's current metadata; None if the table does not exist. Much cheaper than
    loading the table.
    """
    is_table = tables_only(catalog)
    statement = sqlalchemy.select(IcebergTables.metadata_location).where(
        IcebergTables.catalog_name == catalog.name,
        IcebergTables.table_namespace == ".".join(identifier[:-1]),
        IcebergTables.table_name == identifier[-1],
        *(() if is_table is None else (is_table,)),
    )
    with catalog_errors(), catalog.engine.connect() as connection:
        return connection.scalar(statement)


class CatalogProbe:
    """Checks repeatedly, with a cheap request, whether the catalog responds. Changes nothing."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._rest: Catalog | None = None

    def check(self) -> bool:
        """Returns whether the namespace exists. Raises CatalogUnavailable or ConfigError."""
        config = self._config
        with catalog_errors():
            if config.lake.catalog.type == "rest":
                self._rest = self._rest or _open_rest(config)
                return self._rest.namespace_exists(tuple(config.lake.namespace.split(".")))
            uri = _sqlite_uri(config) if config.lake.catalog.type == "sqlite" else _postgres_uri(config)
            engine = sqlalchemy.create_engine(uri, poolclass=sqlalchemy.pool.NullPool)
            with engine.connect() as connection:
                if not sqlalchemy.inspect(connection).has_table(IcebergTables.__tablename__):
                    return False
                statement = sqlalchemy.select(IcebergTables.table_name).where(
                    IcebergTables.catalog_name == config.lake.catalog.name,
                    IcebergTables.table_namespace == config.lake.namespace,
                )
                return connection.scalar(statement.limit(1)) is not None

    def close(self) -> None:
        if self._rest is not None:
            self._rest.close()


def _open_rest(config: Config) -> Catalog:
    properties: dict[str, Any] = {**_common_properties(config), **_rest_properties(config)}
    if "token" not in properties and "credential" not in properties:
        properties["auth"] = {"type": "noop"}  # else PyIceberg sends the token `None`
    s3 = config.lake.s3
    if "rest.sigv4-enabled" in properties:
        properties["rest.sigv4.max-retries"] = "2"
        if s3.access_key_id is not None:
            properties["client.access-key-id"] = s3.access_key_id
            properties["client.secret-access-key"] = secret_text(s3.secret_access_key)
    try:
        return BoundedRestCatalog(config.lake.catalog.name, **properties)
    except pydantic.ValidationError:
        raise CatalogUnavailable(
            f"{properties['uri']} does not respond like an Iceberg REST catalog; check lake.catalog.rest.uri"
        ) from None


def _common_properties(config: Config) -> dict[str, str]:
    return {"py-io-impl": IO_IMPLEMENTATION, **file_properties(config)}


def _rest_properties(config: Config) -> dict[str, str]:
    """Returns the properties that have the same names in PyIceberg and Spark."""
    rest = config.lake.catalog.rest
    assert rest is not None  # validated by the configuration  # noqa: S101
    given = {
        "uri": rest.uri,
        "warehouse": rest.warehouse,
        "token": secret_text(rest.token),
        "credential": secret_text(rest.credential),
        "scope": rest.scope,
    }
    if rest.credential is not None:
        given["oauth2-server-uri"] = rest.oauth2_server_uri or f"{rest.uri.rstrip('/')}/v1/oauth/tokens"
    if rest.sigv4 is not None:
        given["rest.sigv4-enabled"] = "true"
        given["rest.signing-region"] = rest.sigv4.region
        given["rest.signing-name"] = rest.sigv4.service
    given |= {f"header.{name}": value for name, value in rest.headers.items()}
    return {key: value for key, value in given.items() if value is not None}


def _sqlite_uri(config: Config) -> str:
    DurableFolders().make(config.catalog_file.parent)
    return f"sqlite:///{config.catalog_file}?timeout={RESPONSE_SECONDS_MAX}"


def _sqlite_read_only_uri(config: Config) -> str:
    query = {"mode": "ro", "uri": "true", "timeout": str(RESPONSE_SECONDS_MAX)}
    url = sqlalchemy.URL.create("sqlite", database=config.catalog_file.absolute().as_uri(), query=query)
    return url.render_as_string()


def _postgres_url(config: Config) -> sqlalchemy.URL:
    postgres = config.lake.catalog.postgres
    assert postgres is not None  # validated by the configuration  # noqa: S101
    try:
        return sqlalchemy.make_url(postgres.uri.get_secret_value())
    except (ArgumentError, ValueError):
        raise ConfigError(
            "lake.catalog.postgres.uri is not a valid URI; use the form "
            "postgresql://USER:PASSWORD@HOST:5432/DATABASE, with %40 for an @ in the password"
        ) from None


def _postgres_uri(config: Config) -> str:
    url = _postgres_url(config)
    bounds = {
        "connect_timeout": str(CONNECT_SECONDS_MAX),
        "keepalives_idle": "10",
        "keepalives_interval": "5",
        "keepalives_count": "4",
        "tcp_user_timeout": str(RESPONSE_SECONDS_MAX * 1000),
        "application_name": "frazil",
    }
    url = url.set(drivername="postgresql+psycopg2", query={**bounds, **url.query})
    return url.render_as_string(hide_password=False)


def spark_properties(config: Config) -> dict[str, str]:
    """Returns the Spark settings of the same catalog."""
    name = f"spark.sql.catalog.{config.lake.catalog.name}"
    catalog = {
        "sqlite": _spark_sqlite,
        "postgres": _spark_postgres,
        "rest": _spark_rest,
    }[config.lake.catalog.type](config)
    # Spark's cache has served tables that were minutes old.
    catalog["cache-enabled"] = "false"
    return {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        name: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{name}.{key}": value for key, value in {**catalog, **_spark_files(config)}.items()},
    }


def _spark_sqlite(config: Config) -> dict[str, str]:
    return {
        **_spark_jdbc(config, f"jdbc:sqlite:{config.catalog_file}"),
        "jdbc.busy_timeout": str(RESPONSE_SECONDS_MAX * 1000),
        "jdbc.synchronous": "FULL",
    }


def _spark_postgres(config: Config) -> dict[str, str]:
    url = _postgres_url(config)
    bounds = {"connectTimeout": str(CONNECT_SECONDS_MAX), "socketTimeout": str(2 * RESPONSE_SECONDS_MAX)}
    tls = {key: value for key, value in url.query.items() if key.startswith("ssl")}
    address = sqlalchemy.URL.create(
        "postgresql",
        host=url.host or "localhost",
        port=url.port,
        database=url.database or url.username,
        query={**bounds, **tls},
    )
    user = {"jdbc.user": url.username, "jdbc.password": url.password}
    return {
        **_spark_jdbc(config, f"jdbc:{address.render_as_string()}"),
        **{key: value for key, value in user.items() if value is not None},
    }


def _spark_jdbc(config: Config, uri: str) -> dict[str, str]:
    return {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": uri,
        "jdbc.schema-version": "V1",
        "warehouse": config.warehouse,
    }


def _spark_rest(config: Config) -> dict[str, str]:
    properties = {
        "type": "rest",
        **_rest_properties(config),
        "rest.client.connection-timeout-ms": str(CONNECT_SECONDS_MAX * 1000),
        "rest.client.socket-timeout-ms": str(RESPONSE_SECONDS_MAX * 1000),
    }
    s3 = config.lake.s3
    if "rest.sigv4-enabled" in properties and s3.access_key_id is not None:
        properties["rest.access-key-id"] = s3.access_key_id
        properties["rest.secret-access-key"] = secret_text(s3.secret_access_key) or ""
    return properties


def _spark_files(config: Config) -> dict[str, str]:
    """Returns nothing for a local warehouse: Iceberg's default file IO reads and writes folders."""
    on_s3 = config.warehouse.startswith("s3://")
    if not on_s3 and config.lake.catalog.type != "rest":
        return {}
    properties = {
        key: value for key, value in file_properties(config).items() if not key.startswith("frazil.")
    }
    if key_id := properties.pop("s3.sse-kms-key-id", None):
        properties |= {"s3.sse.type": "kms", "s3.sse.key": key_id}
    return {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", **properties} if on_s3 else properties
