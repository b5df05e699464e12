"""Derives past days of a table again from its source, newest first, one replacing commit for each day.

The days that are left are kept in a property of the table: after a crash the pipeline derives them in the
background, or the next run of the command does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from rich.filesize import decimal as filesize

from frazil.config import Config
from frazil.config.derive import CARDINALITY_TABLE
from frazil.config.maintain import DAY_SECONDS
from frazil.errors import Conflict, Fenced, JobFailed, Refused
from frazil.lake.catalog import catalog_errors, table_or_none
from frazil.pipeline.derive.check import checked_views
from frazil.pipeline.derive.days import add_days, days_left, remove_days
from frazil.pipeline.derive.deriver import Deriver
from frazil.pipeline.derive.metrics import DeriveMetrics
from frazil.pipeline.derive.request import BackfillRequest
from frazil.pipeline.derive.survey import SurveyedDay, survey
from frazil.pipeline.runner import Runner
from frazil.tables import Signal, TableSpec, derived_specs
from frazil.times import backoff_seconds, day_text

_ATTEMPTS_MAX = 5
_NAMED_MAX = 20

Say = Callable[[str], None]


@dataclass
class Backfill:
    """The result of the command."""

    table: str
    source: str
    dry_run: bool
    days: Sequence[SurveyedDay]
    done: int = 0
    """Days that this command has derived."""
    by_others: list[int] = field(default_factory=list)
    """Days that the pipeline's background derived in the meantime."""
    seconds: float = 0.0

    @property
    def losing(self) -> list[SurveyedDay]:
        """The days that lose rows."""
        return [each for each in self.days if each.losses]

    def as_dict(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "source": self.source,
            "dry_run": self.dry_run,
            "days": [_as_dict(each) for each in self.days],
            "days_derived": self.done,
            "days_derived_by_others": [day_text(day) for day in self.by_others],
            "seconds": round(self.seconds, 3),
        }

    def text(self) -> str:
        rows = sum(each.source_rows.total() for each in self.days)
        if not self.days:
            return f"no rows of {self.source} or {self.table} on these days: nothing to derive"
        if not self.dry_run:
            others = f", {len(self.by_others)} of them by the pipeline" if self.by_others else ""
            done = f"{self.done + len(self.by_others)} days derived again{others}"
            return f"{self.table}: {done} from {rows:,} rows of {self.source} in {self.seconds:.1f} s"
        counted = "counted" if self.days[0].is_counted else f"rows of {self.table}"
        form = "{:10}  {:>16}  {:>8}  {:>10}  {:>16}"
        lines = [form.format("day", f"rows of {self.source}", "files", "bytes", counted)]
        for each in self.days:
            files, size = f"{each.source_files:,}", filesize(each.source_bytes)
            numbers = [f"{of.total():,}" for of in (each.source_rows, each.derived_rows)]
            lines.append(form.format(day_text(each.day), numbers[0], files, size, numbers[1]))
        if self.losing:
            lines.append(f"refused without --yes: {_losses_text(self)}")
        return "\n".join([*lines, "dry run: nothing was changed"])


def _as_dict(each: SurveyedDay) -> dict[str, Any]:
    return {
        "day": day_text(each.day),
        "source_rows": each.source_rows.total(),
        "source_files": each.source_files,
        "source_bytes": each.source_bytes,
        "derived_rows": each.derived_rows.total(),
        "losses": {tenant: {"had": had, "holds": held} for tenant, (had, held) in each.losses.items()},
    }


def _losses_text(found: Backfill) -> str:
    named = [
        f"{day_text(each.day)} {tenant} ({had:,} in {found.table}, {held:,} in {found.source})"
        for each in found.losing
        for tenant, (had, held) in each.losses.items()
    ]
    more = f" and {len(named) - _NAMED_MAX:,} more" if len(named) > _NAMED_MAX else ""
    return (
        f"{found.table} has more rows than {found.source} still holds on {len(found.losing)} days; the "
        f"others have been removed from {found.source}, or were counted twice: "
        f"{', '.join(named[:_NAMED_MAX])}{more}"
    )


def backfill(
    config: Config,
    catalog: Catalog,
    request: BackfillRequest,
    runner: Runner,
    *,
    say: Say = lambda _: None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.time,
) -> Backfill:
    """Derives the days, and says which. `sleep` may raise Stopped.

    Raises Refused if the table would lose rows and the request does not allow that; then nothing is changed.
    """
    days = request.days(int(clock() // DAY_SECONDS))
    return _Backfilling(config, catalog, request, runner, say, sleep).run(days)


class _Backfilling:
    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        request: BackfillRequest,
        runner: Runner,
        say: Say,
        sleep: Callable[[float], None],
    ) -> None:
        self._catalog = catalog
        self._namespace = config.lake.namespace
        self._request = request
        self._say = say
        self._sleep = sleep
        self._spec, self._source = _checked(config, request.table)
        metrics = DeriveMetrics(CollectorRegistry())
        self._deriver = Deriver(config, self._source, catalog, runner, metrics, specs=[self._spec])

    def run(self, days: range) -> Backfill:
        begin = time.monotonic()
        self._load(self._source)
        if not self._request.dry_run:
            self._say("deriving the rows that have landed")
            while self._deriver.round() == "more":
                self._sleep(0)
        found = Backfill(self._spec.name, self._source, self._request.dry_run, self._survey(days))
        if found.dry_run:
            return found
        if found.losing and not self._request.yes:
            raise Refused(
                f"{_losses_text(found)}; choose other days, or add --yes to lose these rows (`frazil verify` "
                "says whether rows were counted twice)"
            )
        all_days = {each.day for each in found.days}
        add_days(self._catalog, self._load(), all_days, guarded=not self._request.yes)
        for number, each in enumerate(found.days, 1):
            since = time.monotonic()
            if self._derive(each.day):
                found.done += 1
                what = f"{each.source_rows.total():,} rows of {self._source}"
            else:
                found.by_others.append(each.day)
                what = "derived by the pipeline"
            seconds = time.monotonic() - since
            self._say(f"day {number} of {len(found.days)}: {day_text(each.day)}, {what}, {seconds:.1f} s")
        found.seconds = time.monotonic() - begin
        return found

    def _survey(self, days: range) -> list[SurveyedDay]:
        return survey(self._load(self._source), self._load(), self._spec, days)

    def _derive(self, day: int) -> bool:
        """Returns False if another process has derived the day."""
        name = self._spec.name
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            self._sleep(0)
            if day not in days_left(self._load().metadata):
                return False
            try:
                failed = self._deriver.rederive([name], {day})
            except (Conflict, Fenced) as error:
                if attempt == _ATTEMPTS_MAX:
                    raise
                self._say(f"{day_text(day)} is derived again: {error}")
                self._sleep(backoff_seconds(attempt, 0.5, 10))
                self._deriver.round()
                continue
            if failed:
                raise JobFailed(
                    f"{name} could not be derived for {day_text(day)}; the log has the reason (`table not "
                    "derived`). The pipeline tries the days that are left again"
                )
            remove_days(self._catalog, self._load(), {day})
            return True
        raise AssertionError("unreachable")

    def _load(self, name: str | None = None) -> Table:
        name = name or self._spec.name
        with catalog_errors():
            table = table_or_none(self._catalog, self._namespace, name)
        if table is None:
            raise Refused(f"the table {name} does not exist yet: nothing has landed, or nothing was derived")
        return table


def _checked(config: Config, name: str) -> tuple[TableSpec, Signal]:
    known = {spec.name: spec for spec in derived_specs()}
    spec = known.get(name)
    if spec is None or spec.derived is None:
        raise Refused(f"{name} is not a derived table; there are: {', '.join(known)}")
    if name == CARDINALITY_TABLE and not config.derive.cardinality_attributes:
        raise Refused(f"{name} is not derived: name attributes in derive.cardinality_attributes")
    if name in config.derive.disabled_tables:
        raise Refused(f"{name} is not derived: remove it from derive.disabled_tables")
    if spec.derived.view is not None:
        queries, problems = checked_views(config)
        query = queries.get(name)
        if query is None:
            raise Refused(problems.get(name, f"{name} is not derived: add it to `views`"))
        if not query.means(spec.derived.view):
            raise Refused(f"the SQL of {name} has changed, and its table holds rows of the earlier SQL")
    source: Signal = spec.derived.source  # type: ignore[assignment]
    return spec, source
