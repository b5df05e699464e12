"""`frazil pipeline`: waits for the lease, then lands table by table until it is stopped. Threads beside it
keep the tables and the write-ahead log.
"""

from __future__ import annotations

import contextlib
import signal as signals
import threading
import time
from dataclasses import dataclass
from types import FrameType

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.table.metadata import TableMetadata
from pyspark.sql import SparkSession

from frazil import telemetry
from frazil.config import Config
from frazil.dependencies import Dependencies, checks_of
from frazil.errors import ConfigError, DataLost, Fenced, FrazilError, Permanent, Stopped
from frazil.folders import keep_private
from frazil.lake.catalog import catalog_errors, ensure_namespace, open_catalog, table_or_none
from frazil.lake.commit import checkpoint_of
from frazil.lake.recover import recover_tables
from frazil.lake.tables import check_promoted
from frazil.pipeline.cluster import (
    PIPELINE_PART,
    application_id,
    idle_reason,
    is_standalone,
    remove_applications,
)
from frazil.pipeline.health import HealthServer
from frazil.pipeline.land.lander import Lander
from frazil.pipeline.land.source import source_of
from frazil.pipeline.land.upkeep import UpkeepThread
from frazil.pipeline.maintain.background import Background
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.metrics import Metrics
from frazil.pipeline.runner import Runner, SparkRunner
from frazil.pipeline.session import spark_session, stop
from frazil.ports import check_free
from frazil.role_metrics import describe_role
from frazil.tables import SIGNALS, Signal
from frazil.wal.journal import promoted
from frazil.wal.lease import Keeper, open_lease
from frazil.wal.reader import WalReader
from frazil.wal.store import open_store

_BACKOFF_SECONDS = 1.0
_BACKOFF_SECONDS_MAX = 60.0
_UPKEEP_SECONDS = 30.0
_STANDBY_SECONDS = 1.0

log = structlog.get_logger("frazil.pipeline")


def run(config: Config) -> int:
    """Until SIGINT or SIGTERM; the commit that is under way is finished."""
    stopping = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        log.info("stopping after the current commit")
        stopping.set()

    for number in (signals.SIGINT, signals.SIGTERM):
        signals.signal(number, on_signal)
    check_free("pipeline.listen", config.pipeline.listen)
    _check_retention(config)
    keep_private(config)
    check_promoted(config, promoted(config)).refuse()
    Pipeline(config, stopping).run()
    return 0


def _check_retention(config: Config) -> None:
    if all(rule.where is None for rule in config.maintain.retention.rules):
        return
    from frazil.pipeline.maintain.retain.check import check_rules

    if problems := check_rules(config):
        raise ConfigError("; ".join(problems))


@dataclass
class _Table:
    lander: Lander
    backoff: float = _BACKOFF_SECONDS
    not_before: float = 0.0
    problem: str = ""
    upkeep_at: float = 0.0


class Pipeline:
    def __init__(self, config: Config, stopping: threading.Event) -> None:
        self._config = config
        self._stopping = stopping
        self._metrics = Metrics(config)
        self._maintain_metrics = MaintainMetrics(self._metrics.registry)
        describe_role(self._metrics.registry, "pipeline", config)
        self._spark: SparkSession | None = None
        self._starting_spark = threading.Lock()
        self._runner: Runner = SparkRunner(self._started_spark, "land")
        self._lease = open_lease(config)
        self._lost = threading.Event()
        self._catalog: Catalog | None = None
        self._tables: list[_Table] = []
        self._upkeep: UpkeepThread | None = None
        self._problem = "starting"
        self._dependencies = Dependencies(
            {**checks_of(config, "wal", "catalog", "warehouse"), "spark": self._spark_problem}
        )
        self._background: Background | None = None
        self._health = HealthServer(
            config.pipeline.listen, self._metrics.registry, self._problems, self._waiting
        )

    @property
    def port(self) -> int:
        return self._health.port

    def run(self) -> None:
        telemetry.start(self._config, "pipeline", self._metrics.registry)
        self._health.start()
        try:
            while not self._stopping.is_set():
                if self._acquired():
                    self._work()
        finally:
            self._lease.release()
            self._end_spark()
            self._close_catalog()
            self._metrics.leader.set(0)
            self._health.stop()
            telemetry.stop()

    def _acquired(self) -> bool:
        """Waits until this process has the lease. A standby that could take over is ready."""
        said: str | None = None
        while not self._stopping.is_set():
            try:
                if self._lease.acquire():
                    return True
                reason = ""
            except FrazilError as error:
                reason = f"the lease cannot be acquired: {error}"
            self._problem = reason
            if reason != said:  # once a second would bury everything else
                if reason:
                    log.warning("lease not acquired; trying again", reason=reason)
                else:
                    log.info("lease not free; waiting to take over")
                said = reason
            self._stopping.wait(_STANDBY_SECONDS)
        return False

    def _work(self) -> None:
        self._lost.clear()
        keeper = Keeper(self._lease, self._config.pipeline.lease_seconds / 3, self._on_lost)
        keeper.start()
        self._metrics.leader.set(1)
        background = Background(self._config, self._started_spark, self._maintain_metrics)
        self._background = background
        try:
            if not self._opened(keeper):
                return
            background.start()
            if self._upkeep is not None:
                self._upkeep.start()
            poll = self._config.land.poll_interval(self._config.wal.type)
            while not self._stopping.is_set() and keeper.held:
                # Where one table has landed, another batch may wait: look again at once.
                steps = [self._step(table) for table in self._tables]
                if not any(steps):
                    self._stopping.wait(poll)
        finally:
            if self._upkeep is not None:
                self._upkeep.stop()
                self._upkeep = None  # its problems are those of the lease's next holder
            background.stop()
            self._background = None
            keeper.stop()
            self._metrics.stand_down()
            if not keeper.held:
                self._tables = []

    def _on_lost(self) -> None:
        """From the keeper's thread. Cancels jobs that run or wait, and gives a cluster's cores back: the next
        holder needs them.
        """
        self._problem = f"the lease was lost: {self._lease.lost}"
        self._lost.set()
        self._end_spark()
        log.warning("landing stopped: the lease was lost", reason=self._lease.lost)

    def _is_over(self) -> bool:
        return self._stopping.is_set() or self._lost.is_set()

    def _opened(self, keeper: Keeper) -> bool:
        """Opens the catalog, as often as it takes."""
        backoff = _BACKOFF_SECONDS
        while not self._stopping.is_set() and keeper.held:
            try:
                self._tables = self._open()
                self._problem = ""
                return True
            except FrazilError as error:
                if isinstance(error, Permanent):
                    raise
                self._problem = str(error)
                log.warning("cannot start yet", reason=str(error), again_in_seconds=backoff)
            self._stopping.wait(backoff)
            backoff = min(backoff * 2, _BACKOFF_SECONDS_MAX)
        return False

    def _open(self) -> list[_Table]:
        config = self._config
        self._close_catalog()
        catalog = self._catalog = open_catalog(config)
        ensure_namespace(catalog, config.lake.namespace)
        try:
            recover_tables(catalog, config.lake.namespace)
        except DataLost as error:  # landing of that table will say so; the others go on
            log.error("a table cannot be read", reason=str(error))
        check_promoted(config, promoted(config)).refuse()  # the catalog may not have answered before
        reader: WalReader | None = None
        if config.wal.type != "kafka":
            store = open_store(config)
            reader = WalReader(store)
            self._upkeep = UpkeepThread(config, store, self._metadata_of, self._metrics)
        return [
            _Table(
                Lander(
                    config,
                    signal,
                    catalog,
                    source_of(config, signal, reader),
                    self._runner,
                    self._metrics,
                    reader=reader,
                )
            )
            for signal in SIGNALS
        ]

    def _metadata_of(self, signal: Signal) -> TableMetadata | None:
        assert self._catalog is not None  # noqa: S101
        with catalog_errors():
            table = table_or_none(self._catalog, self._config.lake.namespace, signal)
        if table is None:
            return None
        checkpoint_of(table)  # DataLost if it was rolled back: then its segments may be needed again
        return table.metadata

    def _close_catalog(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    def _started_spark(self) -> SparkSession:
        """Started for the first job, of whichever thread. A session whose JVM has died is replaced. Raises
        Stopped if the lease was lost.
        """
        is_new = False
        with self._starting_spark:
            if self._lost.is_set():
                raise Stopped("the lease was lost")
            if self._spark is not None and not _alive(self._spark):
                log.warning("Spark has died; starting it again")
                with contextlib.suppress(Exception):  # whatever it says of a JVM that is gone
                    stop(self._spark)
                self._spark = None
            if self._spark is None:
                begin = time.monotonic()
                with telemetry.span("spark.start", master=self._config.spark.master):
                    self._spark = spark_session(
                        self._config,
                        app_name="frazil-pipeline",
                        is_over=self._is_over,
                        cores_part=PIPELINE_PART,
                    )
                self._metrics.spark_started()
                log.info("Spark started", master=self._config.spark.master, seconds=_since(begin))
                is_new = True
            self._metrics.job()
            spark = self._spark
        if is_new and is_standalone(self._config.spark.master):
            # Not under the lock: while a master does not answer, Spark can still be ended.
            remove_applications(spark, self._lease.applications)
            self._lease.applications = (application_id(spark),)
        return spark

    def _end_spark(self) -> None:
        with self._starting_spark:
            if self._spark is not None:
                stop(self._spark)
                self._spark = None

    def _step(self, table: _Table) -> bool:
        """Whether to look again at once."""
        now = time.monotonic()
        if now < table.not_before or self._stopping.is_set():
            return False
        signal = table.lander.signal
        try:
            step = table.lander.step()
            self._keep_up(table, now)
        except Exception as error:
            self._failed(table, error)
            return False
        if step in ("landed", "again") or not table.problem:
            table.backoff = _BACKOFF_SECONDS
        if table.problem:
            log.info("goes on", table=signal)
            table.problem = ""
        return step in ("landed", "again")

    def _keep_up(self, table: _Table, now: float) -> None:
        if self._upkeep is None:
            return
        table.lander.drop_streams(self._upkeep.take_gone(table.lander.signal))
        if now >= table.upkeep_at:
            table.upkeep_at = now + min(_UPKEEP_SECONDS, max(self._config.land.wal_grace_seconds, 1.0))
            table.lander.checkpoint()  # another process may have landed meanwhile

    def _failed(self, table: _Table, error: Exception) -> None:
        """Errors of one table leave the others alone. Whatever it was, the position is read again."""
        table.lander.forget()
        if isinstance(error, Fenced):  # another was first, which is no trouble: look where it stands now
            log.info("landing again: another process landed or removed rows", table=table.lander.signal)
            return
        if isinstance(error, Stopped) or self._lost.is_set():  # a lost lease ends the job that runs
            return
        stopped = isinstance(error, Permanent)
        is_known = isinstance(error, FrazilError)
        has_lost_spark = not is_known and self._spark is not None and not _alive(self._spark)
        table.problem = "Spark has died" if has_lost_spark else str(error) or repr(error)
        seconds = _BACKOFF_SECONDS_MAX if stopped else table.backoff
        table.not_before = time.monotonic() + seconds
        table.backoff = min(table.backoff * 2, _BACKOFF_SECONDS_MAX)
        self._metrics.failed(table.lander.signal, stopped=stopped)
        if is_known or has_lost_spark:
            say = log.error if stopped else log.warning
            say(
                "table is stopped until someone decides" if stopped else "landing failed; trying again",
                table=table.lander.signal,
                reason=table.problem,
                again_in_seconds=seconds,
            )
        else:
            log.error(
                "landing failed; trying again",
                table=table.lander.signal,
                again_in_seconds=seconds,
                exc_info=error,
            )

    def _problems(self) -> dict[str, str]:
        """A standby's problems too: why it could not take over."""
        found: dict[str, str] = {"pipeline": self._problem} if self._problem else {}
        found |= {} if self._upkeep is None else self._upkeep.problems
        found |= {table.lander.signal: table.problem for table in self._tables if table.problem}
        return found | self._dependencies.problems()

    def _spark_problem(self) -> str:
        """Why jobs do not run. A JVM that has died is replaced when it is next needed."""
        spark = self._spark
        if spark is None:
            return ""
        with contextlib.suppress(Exception):  # it is being stopped, or its JVM has died
            return idle_reason(spark)
        return ""

    def _waiting(self) -> dict[str, str]:
        background = self._background
        return {} if background is None else background.held


def _alive(spark: SparkSession) -> bool:
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:  # the JVM is gone
        return False


def _since(begin: float) -> float:
    return round(time.monotonic() - begin, 1)
