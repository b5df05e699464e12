"""A write-ahead log with known rows in it, a lander of it, and the tables as three engines read them."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_httpfs
import pyarrow as pa
from google.protobuf.message import Message
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from frazil.config import Config
from frazil.lake.catalog import ensure_namespace, open_catalog
from frazil.ledger import Ledger, balance
from frazil.otlp.decode import Decoder, conform
from frazil.pipeline.jars import EVERY, download_missing, jar_path
from frazil.pipeline.land.kafka import KafkaSource
from frazil.pipeline.land.lander import Lander
from frazil.pipeline.land.segments import SegmentSource
from frazil.pipeline.metrics import Metrics
from frazil.pipeline.runner import SparkRunner
from frazil.pipeline.session import spark_session, stop
from frazil.storage import Store
from frazil.tables import SIGNALS, Signal, landed_spec
from frazil.wal.names import SegmentName, new_stream
from frazil.wal.reader import WalReader
from frazil.wal.segment import SegmentWriter
from frazil.wal.store import open_store

DECODERS: dict[Signal, Decoder] = {signal: Decoder(signal) for signal in SIGNALS}
Row = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Sent:
    """A request, whose it is and when it came."""

    request: Message
    tenant: str = "default"
    received_unix_nano: int = 1_790_000_000_123_456_789


@dataclass
class Stream:
    """Writes segments as a receiver does."""

    store: Store
    signal: Signal
    name: str = field(default_factory=new_stream)
    sequence: int = 0
    rows: int = 0

    def write(self, sent: Sequence[Sent]) -> SegmentName:
        """A segment of all these requests."""
        times = [each.received_unix_nano for each in sent]
        decoded = DECODERS[self.signal].decode(
            [each.request.SerializeToString() for each in sent], [each.tenant for each in sent], times
        )
        assert not decoded.rejected.any(), decoded.reasons
        writer = SegmentWriter(1)
        writer.write(decoded.table)
        name = SegmentName(self.signal, self.name, self.sequence)
        data = writer.finish(name, stream_rows=self.rows, received=(min(times), max(times)))
        self.store.create(name.path, data)
        self.sequence, self.rows = self.sequence + 1, self.rows + writer.rows
        return name


class Lake:
    """A configuration with all that tests want to do to it. Sessions of Spark are made when asked for."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.catalog: Catalog = open_catalog(config)
        ensure_namespace(self.catalog, config.lake.namespace)
        self._session: SparkSession | None = None

    @property
    def store(self) -> Store:
        return open_store(self.config)

    def spark(self) -> SparkSession:
        if self._session is None:
            self._session = spark_session(self.config)
        return self._session

    def lander(self, signal: Signal, start_spark: Callable[[], SparkSession] | None = None) -> Lander:
        reader = None if self.config.wal.type == "kafka" else WalReader(self.store)
        source = (
            KafkaSource(self.config, signal) if reader is None else SegmentSource(self.config, signal, reader)
        )
        runner = SparkRunner(start_spark or self.spark, "land")
        return Lander(self.config, signal, self.catalog, source, runner, Metrics(), reader=reader)

    def land(self, *signals: Signal) -> None:
        """All that waits."""
        for signal in signals or SIGNALS:
            lander = self.lander(signal)
            while lander.step(now_due=True) != "idle":
                pass

    def table(self, name: str) -> Any:
        return self.catalog.load_table((*self.config.lake.namespace.split("."), name))

    def by_pyiceberg(self, name: str) -> pa.Table:
        """Lists of structs that are NULL come as empty ones: it builds them anew without their NULLs."""
        return self.table(name).scan().to_arrow()

    def by_spark(self, name: str) -> pa.Table:
        return self.spark().table(self.spark_name(name)).toArrow()

    def spark_name(self, name: str) -> str:
        return f"{self.config.lake.catalog.name}.{self.config.lake.namespace}.{name}"

    def by_duckdb(self, name: str) -> pa.Table:
        """The data files that the catalog plans, as they are."""
        files = [task.file.file_path for task in self.table(name).scan().plan_files()]
        with contextlib.closing(duckdb.connect(config=_OFFLINE)) as engine:
            engine.execute("SET TimeZone = 'UTC'")
            s3 = self.config.lake.s3
            if any(file.startswith("s3://") for file in files):
                engine.execute(f"LOAD '{_httpfs()}'")
                assert s3.endpoint is not None
                assert s3.secret_access_key is not None
                engine.execute(
                    f"CREATE SECRET (TYPE s3, KEY_ID '{s3.access_key_id}', USE_SSL false, URL_STYLE 'path', "
                    f"SECRET '{s3.secret_access_key.get_secret_value()}', REGION 'us-east-1', "
                    f"ENDPOINT '{s3.endpoint.removeprefix('http://')}')"
                )
            query = "SELECT * FROM read_parquet($files, hive_partitioning = false)"
            return engine.execute(query, {"files": files}).to_arrow_table()

    def bodies(self) -> Counter[str]:
        """How often each body of a log is in the table."""
        return Counter(self.by_pyiceberg("logs")["body"].to_pylist())

    def ledger(self) -> Ledger:
        return balance(self.config)

    def close(self) -> None:
        self.catalog.close()


_OFFLINE = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}


def _httpfs() -> Path:
    return next(Path(duckdb_extension_httpfs.__file__).parent.rglob("httpfs.duckdb_extension"))


UNCLOSED_SOCKETS = "ignore:unclosed <socket.socket .*127.0.0.1:ResourceWarning"
"""PySpark leaves closing the sockets that results come through to the garbage collector."""


@contextlib.contextmanager
def spark_with_every_jar(folder: Path) -> Iterator[SparkSession]:
    """For any catalog, warehouse and source. Ends with the block, so that other tests can have their own."""
    class_path = os.pathsep.join(str(jar_path(package)) for package in EVERY)
    settings = {"spark.driver.extraClassPath": class_path, "spark.frazil.tests.password": "swordfish"}
    spark = {"master": "local[2]", "driver_memory_bytes": "1GiB", "settings": settings}
    config = Config.model_validate({"data_dir": folder, "spark": spark})
    download_missing(EVERY, {})
    session = spark_session(config, app_name="frazil-tests")
    try:
        yield session
    finally:
        stop(session)


@contextlib.contextmanager
def opened(settings: dict[str, Any]) -> Iterator[Lake]:
    lake = Lake(Config.model_validate(settings))
    try:
        yield lake
    finally:
        lake.close()


def expected_rows(signal: Signal, segments: dict[SegmentName, list[Sent]], config: Config) -> list[Row]:
    """What must be in the table, from the requests alone."""
    tables = []
    for name, sent in segments.items():
        decoded = DECODERS[signal].decode(
            [each.request.SerializeToString() for each in sent],
            [each.tenant for each in sent],
            [each.received_unix_nano for each in sent],
        )
        source = pa.array([f"{name.stream}/{name.sequence}"] * decoded.table.num_rows)
        table = conform(decoded.table, DECODERS[signal].spec)
        tables.append(table.append_column(pa.field("_segment", pa.string(), nullable=False), source))
    rows = []
    for row in pa.concat_tables(tables).to_pylist():
        away = (row["time"] - row["received_time"]).total_seconds()
        if not -config.land.horizon_past_seconds <= away <= config.land.horizon_ahead_seconds:
            row["time"] = row["received_time"]
        rows.append(canonical_row(row))
    return sorted(rows, key=repr)


def canonical_rows(signal: Signal, table: pa.Table) -> list[Row]:
    """Every column, in the spec's types and order. A cast between types of other meaning would raise."""
    schema = landed_spec(signal).arrow_schema
    assert table.column_names == schema.names
    return sorted((canonical_row(row) for row in table.cast(schema).to_pylist()), key=repr)


def canonical_row(row: dict[str, Any]) -> Row:
    """Maps without order, NaN equal to itself, 0.0 apart from -0.0."""
    return tuple((name, _canonical(value)) for name, value in row.items())


def with_empty_lists(rows: list[Row]) -> list[Row]:
    """As PyIceberg reads them: in lists of structs, NULL is empty."""
    return sorted(
        (tuple((k, () if v is None and k in _LISTS else v) for k, v in row) for row in rows), key=repr
    )


_LISTS = frozenset(
    column.name
    for signal in SIGNALS
    for column in landed_spec(signal).columns
    if pa.types.is_list(column.type) and pa.types.is_struct(column.type.value_type)
)


def _canonical(value: Any) -> Any:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return tuple((name, _canonical(item)) for name, item in value.items())
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return ("map", *sorted(value, key=repr))
    if isinstance(value, list):
        return tuple(_canonical(item) for item in value)
    return value
