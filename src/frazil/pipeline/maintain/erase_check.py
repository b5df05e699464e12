"""What an erasure refuses before anything is touched."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from frazil.config import Config, tenant_id
from frazil.errors import QueryInvalid, QueryRefused, Refused
from frazil.lake.erased import erased_tenants
from frazil.pipeline.maintain.history import read_history
from frazil.query.predicate import Predicate, parse_predicate
from frazil.tables import SIGNALS, Signal, landed_spec
from frazil.wal.journal import promoted

_NAMED_MAX = 20


def checked_tables(names: Sequence[str]) -> tuple[Signal, ...]:
    """All, if none is named."""
    for name in names:
        if name not in SIGNALS:
            near = difflib.get_close_matches(name, SIGNALS, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise Refused(f"there is no table {name}; there are: {', '.join(SIGNALS)}{hint}")
    return tuple(signal for signal in SIGNALS if not names or signal in names)


def checked_predicates(
    config: Config, where: str, signals: Sequence[Signal], named: Sequence[str]
) -> dict[Signal, Predicate]:
    """One for each table: a column may have another place, or none, in each."""
    found: dict[Signal, Predicate] = {}
    errors: dict[Signal, QueryInvalid | QueryRefused] = {}
    for signal in signals:
        try:
            found[signal] = parse_predicate(where, landed_spec(signal, promoted(config)))
        except (QueryInvalid, QueryRefused) as error:
            errors[signal] = error
    if errors and (named or not found):
        raise next(iter(errors.values()))
    if errors:
        signal, reason = next(iter(errors.items()))
        fitting = " ".join(f"--table {name}" for name in found)
        raise Refused(
            f"the condition does not fit the table {signal}: {reason}. To erase where it does: {fitting}"
        )
    return found


def checked_tenant(config: Config, catalog: Catalog, tenant: str) -> None:
    """Known is who has a key, or has or had rows."""
    try:
        tenant_id(tenant)
    except Exception as error:
        raise Refused(f"{tenant!r} is no tenant's id: {error}") from None
    known = {key.tenant for key in config.auth.keys} or {config.tenants.default}
    if tenant in known:
        return
    for signal in SIGNALS:
        try:
            table = catalog.load_table((*config.lake.namespace.split("."), signal))
        except NoSuchTableError:
            continue
        known |= read_history(table, tenant).tenants | erased_tenants(table.metadata)
    if tenant not in known:
        near = difflib.get_close_matches(tenant, sorted(known), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        names = sorted(known)
        more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
        raise Refused(
            f"there is no tenant {tenant}: it has no key, and nothing of it has landed. There are: "
            f"{', '.join(names[:_NAMED_MAX])}{more}{hint}"
        )
