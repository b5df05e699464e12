"""Changes of a table that make no snapshot: of tags and properties, and snapshots that go."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AssertTableUUID, TableRequirement, TableUpdate

from frazil.errors import CatalogUnavailable, Conflict
from frazil.lake.catalog import full_name
from frazil.lake.commit import delete_old_metadata

_ATTEMPTS_MAX = 20
_PAUSE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 2.0

log = structlog.get_logger("frazil.lake")


class Step(NamedTuple):
    requirements: Sequence[TableRequirement]
    updates: Sequence[TableUpdate]


def change(
    catalog: Catalog,
    table: Table,
    step: Callable[[Table], Step | None],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> TableMetadata:
    """Commits what `step` says is still to be done, until it says None, or a commit stands. Returns the
    table's metadata as it then is.

    `step` is asked again, with the table as it then is, after a commit that was refused or whose answer was
    lost: whatever a lost one has done is then no longer to be done. It may raise.

    Raises CatalogUnavailable if none stands.
    """
    uuid, name = table.metadata.table_uuid, full_name(table)
    reason, pause = "", _PAUSE_SECONDS
    for _ in range(_ATTEMPTS_MAX):
        wanted = step(table)
        if wanted is None:
            return table.metadata
        requirements = (AssertTableUUID(uuid=uuid), *wanted.requirements)
        try:
            response = catalog.commit_table(table, requirements, tuple(wanted.updates))
        except CommitFailedException as error:
            reason = str(error)
            log.info("change refused; looking again", table=name, reason=reason)
        except Exception as error:  # whatever it was, the commit may have happened
            reason = repr(error)
            log.warning("outcome of a change is unknown; looking", table=name, reason=reason)
        else:
            delete_old_metadata(catalog, table, response.metadata)
            return response.metadata
        sleep(pause * random.uniform(0.5, 1))  # noqa: S311
        pause = min(pause * 2, _PAUSE_SECONDS_MAX)
        try:
            table = catalog.load_table(table.name())
        except NoSuchTableError:
            raise Conflict(name, "it was dropped meanwhile") from None
        except Exception as error:
            reason = repr(error)
            log.warning("catalog does not answer", table=name, reason=reason)
            continue  # what is committed next is checked against the table as it then is
        if table.metadata.table_uuid != uuid:
            raise Conflict(name, "another table has taken its place")
    raise CatalogUnavailable(f"{name} could not be changed in {_ATTEMPTS_MAX} attempts: {reason}")
