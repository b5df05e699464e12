"""`frazil pipeline`: waits for the lease, then runs the steps until the process stops or loses the lease."""

from __future__ import annotations

import signal as signals
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.table.metadata import TableMetadata

from frazil import telemetry
from frazil.config import Config
from frazil.dependencies import Dependencies, checks_of
from frazil.errors import ConfigError, DataLost, FrazilError, Permanent
from frazil.lake.catalog import catalog_errors, ensure_namespace, open_catalog, table_or_none
from frazil.lake.commits.commit import checkpoint_of
from frazil.lake.state.recover import recover_tables
from frazil.lake.tables import check_promoted
from frazil.lake.views import known_views, load_views
from frazil.lease import LeaseRenewer, open_lease
from frazil.paths import keep_private
from frazil.pipeline.control.server import Control
from frazil.pipeline.derive.check import check_tables, checked_views
from frazil.pipeline.derive.deriver import Deriver
from frazil.pipeline.derive.metrics import DeriveMetrics
from frazil.pipeline.derive.step import DeriveStep
from frazil.pipeline.derive.views.declare import mark_off
from frazil.pipeline.health import HealthServer
from frazil.pipeline.land.lander import Lander, LandStep
from frazil.pipeline.land.source import source_of
from frazil.pipeline.land.upkeep import CleanUpStep, TableWal, WatchStep
from frazil.pipeline.maintain.background import MaintainStep
from frazil.pipeline.maintain.metrics import MaintainMetrics
from frazil.pipeline.maintain.retain.check import check_rules
from frazil.pipeline.metrics import Metrics
from frazil.pipeline.runner import Runner, SparkRunner
from frazil.pipeline.shared_spark import SharedSpark
from frazil.pipeline.steps import BACKOFF_SECONDS, BACKOFF_SECONDS_MAX, Step, StepRunner
from frazil.ports import check_free
from frazil.role_metrics import describe_role
from frazil.tables import SIGNALS, Signal
from frazil.tables.promoted import promoted
from frazil.times import backoff_seconds
from frazil.wal.reader import WalReader
from frazil.wal.store import open_store

_STANDBY_SECONDS = 1.0
_POLL_SECONDS = 0.5

log = structlog.get_logger("frazil.pipeline")


def run(config: Config) -> int:
    """Runs until SIGINT or SIGTERM. Finishes the current commit first."""
    stopping = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        log.info("stop requested; stopping after the current commit")
        stopping.set()

    for number in (signals.SIGINT, signals.SIGTERM):
        signals.signal(number, on_signal)
    check_free("pipeline.listen", config.pipeline.listen)
    _check_sections(config)
    keep_private(config)
    check_promoted(config, promoted(config)).refuse()
    Pipeline(config, stopping).run()
    return 0


def _check_sections(config: Config) -> None:
    if problems := [*check_rules(config), *check_tables(config)]:
        raise ConfigError("; ".join(problems))


class Pipeline:
    def __init__(self, config: Config, stopping: threading.Event) -> None:
        self._config = config
        self._stopping = stopping
        self._metrics = Metrics(config)
        self._maintain_metrics = MaintainMetrics(self._metrics.registry)
        self._derive_metrics = DeriveMetrics(self._metrics.registry, config, self._metrics.objectives)
        describe_role(self._metrics.registry, "pipeline", config)
        self._lease = open_lease(config)
        self._lost = threading.Event()
        self._spark = SharedSpark(
            config, self._metrics, self._lease, lambda: stopping.is_set() or self._lost.is_set()
        )
        self._make_runner: Callable[..., Runner] = partial(SparkRunner, self._spark.session)
        self._catalog: Catalog | None = None
        self._runner: StepRunner | None = None
        self._problem = "starting"
        self._refused_views: dict[str, str] = {}
        """Views whose SQL is not valid, with the reason."""
        self._dependencies = Dependencies(
            {**checks_of(config, "wal", "catalog", "warehouse"), "spark": self._spark.problem}
        )
        self._control = Control(config, lambda *options: self._make_runner(*options), self._metrics)
        self._health = HealthServer(
            config.pipeline.listen,
            self._metrics.registry,
            self._problems,
            self._waiting,
            self._control,
            self._degraded,
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
            self._spark.end()
            self._close_catalog()
            self._metrics.leader.set(0)
            self._health.stop()
            telemetry.stop()

    def _acquired(self) -> bool:
        """Waits for the lease. Returns False if the pipeline stops first."""
        logged: str | None = None
        while not self._stopping.is_set():
            try:
                if self._lease.acquire():
                    return True
                reason = ""
            except FrazilError as error:
                if isinstance(error, Permanent):
                    raise
                reason = f"the lease cannot be acquired: {error}"
            self._problem = reason
            if reason != logged:  # not once per second
                if reason:
                    log.warning("lease not acquired; retrying", reason=reason)
                else:
                    log.info("lease held by another process; waiting to take over")
                logged = reason
            self._stopping.wait(_STANDBY_SECONDS)
        return False

    def _work(self) -> None:
        self._lost.clear()
        renewer = LeaseRenewer(self._lease, self._config.pipeline.lease_seconds / 3, self._on_lost)
        renewer.start()
        self._metrics.leader.set(1)
        try:
            if not self._opened(renewer):
                return
            self._control.open(self._health.url)
            while renewer.held and not self._stopping.wait(_POLL_SECONDS):
                pass
        finally:
            self._control.close()
            if self._runner is not None:
                self._runner.stop()
                self._runner = None  # /readyz must not report its problems any longer
            renewer.stop()
            self._metrics.stand_down()
            self._derive_metrics.stand_down()

    def _on_lost(self) -> None:
        """Cancels all jobs and stops Spark: the next holder needs the cluster's cores. Called in the
        thread of the renewer.
        """
        self._problem = f"the lease was lost: {self._lease.lost}"
        self._lost.set()
        if (runner := self._runner) is not None:
            runner.cancel()
        self._control.cancel()
        self._spark.end()
        log.warning("landing stopped: the lease was lost", reason=self._lease.lost)

    def _opened(self, renewer: LeaseRenewer) -> bool:
        """Opens the catalog and starts the steps. Retries until it succeeds, the pipeline stops or the lease
        is lost.
        """
        failures = 0
        while not self._stopping.is_set() and renewer.held:
            try:
                runner = StepRunner(self._steps(), self._metrics, self._spark.has_died)
            except FrazilError as error:
                if isinstance(error, Permanent):
                    raise
                self._problem = str(error)
                failures += 1
                pause = backoff_seconds(failures, BACKOFF_SECONDS, BACKOFF_SECONDS_MAX)
                log.warning("pipeline not started; retrying", reason=str(error), again_in_seconds=pause)
            else:
                self._problem, self._runner = "", runner
                runner.start()
                return True
            self._stopping.wait(pause)
        return False

    def _steps(self) -> list[Step]:
        """Returns the steps, landing first: if several steps of a table fail, /readyz reports the first."""
        config = self._config
        catalog = self._open_catalog()
        wal_upkeep: list[Step] = []
        clean_ups: dict[Signal, CleanUpStep] = {}
        reader: WalReader | None = None
        if config.wal.type != "kafka":
            store = open_store(config)
            reader = WalReader(store)
            for signal in SIGNALS:
                metadata_of = partial(_metadata_of, catalog, config.lake.namespace, signal)
                wal = TableWal(config, signal, store, metadata_of)
                clean_ups[signal] = CleanUpStep(wal, self._metrics)
                wal_upkeep += [clean_ups[signal], WatchStep(wal)]
        derivation = {step.deriver.source: step for step in self._derive_steps(catalog)}
        landing = [
            LandStep(
                config,
                Lander(
                    config,
                    signal,
                    catalog,
                    source_of(config, signal, reader),
                    self._make_runner(LandStep.pool),
                    self._metrics,
                    reader=reader,
                ),
                clean_ups.get(signal),
                derivation[signal].landed if signal in derivation else lambda: None,
            )
            for signal in SIGNALS
        ]
        steps = [*landing, *wal_upkeep, *derivation.values()]
        if config.maintain.enabled:
            steps.append(
                MaintainStep(config, self._make_runner, self._maintain_metrics, self._is_maintenance_paused)
            )
        return steps

    def _is_maintenance_paused(self) -> bool:
        """Returns whether a command runs that maintenance would disturb. A backfill can take hours."""
        return self._control.is_busy and self._control.operation != "backfill"

    def _derive_steps(self, catalog: Catalog) -> list[DeriveStep]:
        config = self._config
        if not config.derive.enabled:
            return []
        self._declare_views(catalog)
        steps = []
        for source in SIGNALS:
            runner = self._make_runner(DeriveStep.pool)
            deriver = Deriver(config, source, catalog, runner, self._derive_metrics)
            steps.append(DeriveStep(config, deriver, runner, lambda: self._control.is_busy))
        return steps

    def _declare_views(self, catalog: Catalog) -> None:
        """Shows every view of the configuration and the lake. One that is not valid stops nothing else."""
        queries, self._refused_views = checked_views(self._config)
        off = mark_off(self._config, catalog)
        for spec in known_views():
            if spec.derived is not None:
                self._derive_metrics.declare_view(spec.name, spec.derived.source, is_off=spec.name in off)
        for name, query in queries.items():
            self._derive_metrics.declare_view(name, query.source)
        for name, problem in self._refused_views.items():
            self._derive_metrics.declare_view(name, "")
            self._derive_metrics.failed(name)
            log.error("view refused", view=name, reason=problem)

    def _open_catalog(self) -> Catalog:
        config = self._config
        self._close_catalog()
        catalog = self._catalog = open_catalog(config)
        ensure_namespace(catalog, config.lake.namespace)
        try:
            recover_tables(catalog, config.lake.namespace)
        except DataLost as error:  # landing of this table fails with the same error; other tables land
            log.error("table not readable", reason=str(error))
        load_views(catalog, config.lake.namespace)
        check_promoted(config, promoted(config)).refuse()  # the first check may not have reached the catalog
        return catalog

    def _close_catalog(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    def _problems(self) -> dict[str, str]:
        """Returns the problems for /readyz. Those of a standby are the reasons why it could not take over."""
        found: dict[str, str] = {"pipeline": self._problem} if self._problem else {}
        runner = self._runner
        return found | ({} if runner is None else runner.problems) | self._dependencies.problems()

    def _waiting(self) -> dict[str, str]:
        runner = self._runner
        return {} if runner is None else runner.waiting

    def _degraded(self) -> dict[str, str]:
        runner = self._runner
        if runner is None:
            return {}
        refused = {name: f"rows are not derived: {problem}" for name, problem in self._refused_views.items()}
        return {**refused, **runner.degraded}


def _metadata_of(catalog: Catalog, namespace: str, signal: Signal) -> TableMetadata | None:
    with catalog_errors():
        table = table_or_none(catalog, namespace, signal)
    if table is None:
        return None
    checkpoint_of(table)  # raises DataLost if the table was rolled back: its segments may be needed again
    return table.metadata
