"""Checks of an erasure request, before anything is changed."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from frazil.config import Config, tenant_id
from frazil.errors import QueryInvalid, QueryRefused, Refused, SegmentCorrupt, SegmentUnknown
from frazil.lake.commits.commit import read_checkpoint
from frazil.lake.snapshots import erased_tenants
from frazil.pipeline.maintain.erase.history import read_history
from frazil.pipeline.maintain.predicates.match import Predicate, parse_predicate
from frazil.position import WalPosition, landing_position
from frazil.storage import Store
from frazil.tables import Signal, TableSpec, table_spec, table_specs
from frazil.tables.promoted import promoted
from frazil.wal.reader import WalReader

_NAMED_MAX = 20


def checked_tables(config: Config, names: Sequence[str]) -> tuple[TableSpec, ...]:
    """Returns the named tables; without names, all tables that support erasure. Raises Refused for others.

    Derived tables follow their sources. A condition on their own columns needs their name.
    """
    erasable = {name: spec for name, spec in table_specs(promoted(config)).items() if spec.erased == "rows"}
    for name in names:
        if name not in erasable:
            near = difflib.get_close_matches(name, erasable, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise Refused(f"there is no table {name}; there are: {', '.join(erasable)}{hint}")
    if names:
        return tuple(spec for name, spec in erasable.items() if name in names)
    return tuple(spec for spec in erasable.values() if spec.derived is None)


def checked_predicates(where: str, specs: Sequence[TableSpec], named: Sequence[str]) -> dict[str, Predicate]:
    """Returns the parsed condition for each table. Raises Refused if it is only valid for some of them."""
    found: dict[str, Predicate] = {}
    errors: dict[str, QueryInvalid | QueryRefused] = {}
    for spec in specs:
        try:
            found[spec.name] = parse_predicate(where, spec)
        except (QueryInvalid, QueryRefused) as error:
            errors[spec.name] = error
    if errors and (named or not found):
        raise next(iter(errors.values()))
    if errors:
        table, reason = next(iter(errors.items()))
        fitting = " ".join(f"--table {name}" for name in found)
        mark = "" if str(reason).endswith("?") else "."
        raise Refused(
            f"the condition is not valid for the table {table}: {reason}{mark} To erase from the others: "
            f"{fitting}"
        )
    return found


def checked_tenant(config: Config, catalog: Catalog, store: Store | None, tenant: str) -> None:
    """Raises Refused unless the tenant has an API key, has or had rows in a table, or has rows in the log."""
    try:
        tenant_id(tenant)
    except Exception as error:
        raise Refused(f"{tenant!r} is not a valid tenant id: {error}") from None
    known = {key.tenant for key in config.auth.keys} or {config.tenants.default}
    if tenant in known:
        return
    for spec in checked_tables(config, ()):
        position = WalPosition()
        with contextlib.suppress(NoSuchTableError):
            checkpoint = read_checkpoint(catalog, (*config.lake.namespace.split("."), spec.name))
            if spec.signal is not None:
                position = landing_position(checkpoint.position).wal
            known |= read_history(checkpoint.table, tenant).tenants
            known |= erased_tenants(checkpoint.table.metadata)
        if store is not None and spec.signal is not None and tenant not in known:
            known |= _waiting(config, store, spec.signal, position)
    if tenant not in known:
        near = difflib.get_close_matches(tenant, sorted(known), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        names = sorted(known)
        more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
        raise Refused(
            f"there is no tenant {tenant}: it has no API key and no rows. Known tenants: "
            f"{', '.join(names[:_NAMED_MAX])}{more}{hint}"
        )


def _waiting(config: Config, store: Store, signal: Signal, position: WalPosition) -> set[str]:
    reader, spec = WalReader(store), table_spec(signal, promoted(config))
    found: set[str] = set()
    for segment in reader.pending(signal, position):
        with contextlib.suppress(SegmentCorrupt, SegmentUnknown, FileNotFoundError):
            _, rows = reader.rows(segment.name, spec)
            found.update(rows["tenant_id"].unique().to_pylist())
    return found
