"""What an erasure refuses before anything is touched."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from frazil.config import Config, tenant_id
from frazil.errors import QueryInvalid, QueryRefused, Refused, SegmentCorrupt, SegmentUnknown
from frazil.lake.commit import read_checkpoint
from frazil.lake.erased import erased_tenants
from frazil.pipeline.maintain.erase.history import read_history
from frazil.pipeline.maintain.predicates.match import Predicate, parse_predicate
from frazil.tables import SIGNALS, Signal, landed_spec, table_spec
from frazil.wal.journal import promoted
from frazil.wal.position import Position
from frazil.wal.reader import WalReader
from frazil.wal.store import Store

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


def checked_tenant(config: Config, catalog: Catalog, store: Store | None, tenant: str) -> None:
    """Known is who has a key, or has or had rows in a table, or has some in the write-ahead log."""
    try:
        tenant_id(tenant)
    except Exception as error:
        raise Refused(f"{tenant!r} is no tenant's id: {error}") from None
    known = {key.tenant for key in config.auth.keys} or {config.tenants.default}
    if tenant in known:
        return
    for signal in SIGNALS:
        position = Position()
        with contextlib.suppress(NoSuchTableError):
            checkpoint = read_checkpoint(catalog, (*config.lake.namespace.split("."), signal))
            position = Position.from_text(checkpoint.position)
            known |= read_history(checkpoint.table, tenant).tenants
            known |= erased_tenants(checkpoint.table.metadata)
        if store is not None and tenant not in known:
            known |= _waiting(config, store, signal, position)
    if tenant not in known:
        near = difflib.get_close_matches(tenant, sorted(known), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        names = sorted(known)
        more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
        raise Refused(
            f"there is no tenant {tenant}: it has no key, and no rows. There are: "
            f"{', '.join(names[:_NAMED_MAX])}{more}{hint}"
        )


def _waiting(config: Config, store: Store, signal: Signal, position: Position) -> set[str]:
    """Whose rows have not landed yet."""
    reader, spec = WalReader(store), table_spec(signal, promoted(config))
    found: set[str] = set()
    for segment in reader.pending(signal, position):
        with contextlib.suppress(SegmentCorrupt, SegmentUnknown, FileNotFoundError):
            _, rows = reader.rows(segment.name, spec)
            found.update(rows["tenant_id"].unique().to_pylist())
    return found
