"""The query of a view: a derived table that a user declares in Spark SQL. It is stored in the table itself, so that
every process knows the table without the configuration that declared it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

ViewRule = Literal["key", "sum", "min", "max"]
VIEW = "frazil.view"
"""Table property (JSON): the query, with the types of its columns."""
VIEW_STATE = "frazil.view.state"
"""Table property: `off` if the pipeline's configuration no longer has the view."""
OFF, ON = "off", "on"
_VERSION = 1


@dataclass(frozen=True)
class ViewColumn:
    """One column of the result. A key has `expression`; other columns have `function`, its `argument`, and perhaps
    a `filter`: the condition of rows that the function sees.
    """

    name: str
    rule: ViewRule
    expression: str
    function: str = ""
    argument: str = ""
    filter: str = ""
    type: str = ""
    """Name of the SQL type; empty until Spark has analysed the query."""


@dataclass(frozen=True)
class ViewQuery:
    """A checked query. All texts are Spark SQL without comments."""

    source: str
    alias: str
    """The name by which the query calls the source."""
    reads: tuple[str, ...]
    """Columns of the source."""
    columns: tuple[ViewColumn, ...]
    where: str = ""
    kept_days: int = 90

    @property
    def sql(self) -> str:
        """The query as one statement."""
        items = ", ".join(f"{each.expression} AS {each.name}" for each in self.columns)
        source = self.source if self.alias == self.source else f"{self.source} AS {self.alias}"
        return f"SELECT {items} FROM {source}{f' WHERE {self.where}' * bool(self.where)} GROUP BY ALL"  # noqa: S608

    def means(self, other: ViewQuery) -> bool:
        """Returns whether both compute the same rows. Types are compared if both have them."""
        return _untyped(self) == _untyped(other) and all(
            "" in (mine.type, theirs.type) or mine.type == theirs.type
            for mine, theirs in zip(self.columns, other.columns, strict=True)
        )

    def to_text(self) -> str:
        return json.dumps({"version": _VERSION, "sql": self.sql, **asdict(self)})


def _untyped(query: ViewQuery) -> ViewQuery:
    return replace(query, columns=tuple(replace(each, type="") for each in query.columns), kept_days=0)


def view_query(properties: Mapping[str, str]) -> ViewQuery | None:
    """Returns the query in a table's properties; None if the table is no view. Raises ValueError if this release cannot
    read it.
    """
    text = properties.get(VIEW)
    if text is None:
        return None
    try:
        return _read(json.loads(text))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{VIEW} is not valid: {error!r}") from None


def _read(found: Mapping[str, Any]) -> ViewQuery:
    if found["version"] != _VERSION:
        raise ValueError(f"{VIEW} has version {found['version']}; upgrade frazil")
    return ViewQuery(
        source=str(found["source"]),
        alias=str(found["alias"]),
        reads=tuple(map(str, found["reads"])),
        columns=tuple(ViewColumn(**each) for each in found["columns"]),
        where=str(found["where"]),
        kept_days=int(found["kept_days"]),
    )
