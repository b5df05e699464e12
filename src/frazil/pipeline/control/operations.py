"""The commands that a pipeline can run, as functions of its catalog and runners. A command without a
pipeline runs the same functions on its own Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import Catalog

from frazil.config import Config
from frazil.errors import Refused
from frazil.lease import open_lease
from frazil.pipeline.control.protocol import Operation, backfill_request, erase_request
from frazil.pipeline.derive.backfill import backfill
from frazil.pipeline.maintain.background import LEASE, hold_lease, wait_for_lease
from frazil.pipeline.maintain.erase.erase import erase
from frazil.pipeline.maintain.tag_tables import tag_tables
from frazil.pipeline.metrics import Metrics
from frazil.pipeline.runner import Runner

Say = Callable[[str], None]


@dataclass(frozen=True)
class Workplace:
    """What an operation works with."""

    config: Config
    catalog: Catalog
    runner: Runner
    metrics: Metrics
    sleep: Callable[[float], None] = time.sleep
    """May raise Stopped."""


def perform(operation: Operation, body: Mapping[str, Any], place: Workplace, say: Say) -> dict[str, Any]:
    """Runs the operation. Returns its result as JSON values. Raises FrazilError."""
    if operation == "tag":
        return _tag(body, place, say)
    if operation == "backfill":
        return _backfill(body, place, say)
    return _erase(body, place, say)


def _tag(body: Mapping[str, Any], place: Workplace, say: Say) -> dict[str, Any]:
    name = body.get("name")
    if not isinstance(name, str):
        raise Refused("the request to tag has no name")
    return tag_tables(place.config, place.catalog, place.runner, place.metrics, name, say=say).as_dict()


def _backfill(body: Mapping[str, Any], place: Workplace, say: Say) -> dict[str, Any]:
    request = backfill_request(body)
    found = backfill(place.config, place.catalog, request, place.runner, say=say, sleep=place.sleep)
    is_ok = request.yes or not (found.dry_run and found.losing)
    return {"report": found.as_dict(), "text": found.text(), "ok": is_ok}


def _erase(body: Mapping[str, Any], place: Workplace, say: Say) -> dict[str, Any]:
    request = erase_request(body)

    def run() -> dict[str, Any]:
        erasure = erase(
            place.config,
            place.catalog,
            request,
            place.runner,
            say=say,
            sleep=place.sleep,
            metrics=place.metrics,
        )
        is_ok = not erasure.blockers if erasure.dry_run else erasure.is_proven
        return {"report": erasure.as_dict(), "text": erasure.text(), "ok": is_ok}

    if request.dry_run:
        return run()
    lease = open_lease(place.config, LEASE)
    wait_for_lease(lease, say, place.sleep)
    with hold_lease(lease, place.config.pipeline.lease_seconds):
        return run()
