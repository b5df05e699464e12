"""A query result for Python programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from frazil.client.layout import Grid
from frazil.client.text_format import cell_text
from frazil.query.model import ResultColumn, Stats

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

_REPR_ROWS = 10
_REPR_WIDTH = 110


class Result:
    """All rows of a result as an Arrow table, with conversions."""

    def __init__(self, table: pa.Table, stats: Stats) -> None:
        self._table = table
        self.stats = stats

    @property
    def columns(self) -> list[str]:
        return list(self._table.column_names)

    def arrow(self) -> pa.Table:
        return self._table

    def pandas(self) -> pd.DataFrame:
        """Convert to pandas. Maps become dictionaries."""
        return self._table.to_pandas(maps_as_pydicts="lossy")

    def polars(self) -> pl.DataFrame:
        """Convert to polars. Before polars 2, maps become lists of structs with `key` and `value`."""
        try:
            import polars
        except ImportError:
            raise ImportError("polars is not installed: pip install polars") from None
        return polars.DataFrame(self._table)

    def rows(self) -> list[tuple[Any, ...]]:
        return list(self)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for batch in self._table.to_batches(max_chunksize=10_000):
            yield from zip(*(column.to_pylist(maps_as_pydicts="lossy") for column in batch), strict=True)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __repr__(self) -> str:
        shown = Result(self._table.slice(0, _REPR_ROWS), self.stats)
        columns = [ResultColumn(field.name, str(field.type)) for field in self._table.schema]
        grid = Grid(columns, [[cell_text(value) for value in row] for row in shown], _REPR_WIDTH)
        lines = [grid.plain(line) for line in grid.lines()]
        more = len(self) - _REPR_ROWS
        lines.append(f"… {more:,} more rows" if more > 0 else f"{len(self):,} rows")
        return "\n".join(lines)
