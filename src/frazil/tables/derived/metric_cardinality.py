"""How many distinct values attributes of metrics have, as HyperLogLog registers in plain columns.

The 64-bit hash of a value has 11 bits that choose one of 2,048 registers. The rank is the place of the first 1 in
the other 53. A register holds the highest rank of its values. So the registers of two sets of rows merge by the
maximum, in any engine and in any order, and values that occur again change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from frazil.tables.columns import ATTRIBUTES, Column, TableSpec
from frazil.tables.derived.combine import Groups, whole
from frazil.tables.derived.rollup import bucket_column, tenant_column
from frazil.tables.derived.rules import KEY, MAX, Derived
from frazil.tables.hashing import Hashes

Ints = npt.NDArray[np.int32]
NAME = "metric_cardinality"
REGISTERS = 2048
SIGMA_TERMS = 20
"""Terms of the series in the estimate. Further ones are below 1e-200 if one register of 2,048 has a value."""
_RANK_BITS = 53
_HOUR_MICROS = 3_600_000_000
_MAPS = ("attributes", "resource_attributes")
_KEPT = ("tenant_id", "time", "metric_name")


def register_rows(metrics: pa.Table, attributes: Sequence[str] = ()) -> pa.Table:
    """Returns a row for each value of these attributes in a series and hour. The attributes of a series never
    change, so that the maps of one of its points an hour are read.
    """
    if attributes and metrics.num_rows:
        return pa.concat_tables(_parts(_one_per_series(metrics), attributes))
    fields = [METRIC_CARDINALITY.column(name) for name in (*_KEPT, "attribute", "register", "rank")]
    return pa.schema([(each.name, each.type) for each in fields]).empty_table()


def _one_per_series(metrics: pa.Table) -> pa.Table:
    micros = metrics.column("time").cast(pa.int64()).to_numpy()
    hours = pa.array(micros - micros % _HOUR_MICROS)
    keys = [whole(metrics.column(name)) for name in ("tenant_id", "series_id")]
    is_first = np.zeros(metrics.num_rows, np.bool_)
    is_first[Groups.of([*keys, hours], metrics.num_rows).first.to_numpy()] = True
    return metrics.select([*_KEPT, *_MAPS]).filter(pa.array(is_first))


def _parts(points: pa.Table, attributes: Sequence[str]) -> list[pa.Table]:
    maps = [whole(points.column(name)).cast(ATTRIBUTES) for name in _MAPS]
    parts = []
    for attribute in attributes:
        values = pc.coalesce(*(pc.map_lookup(each, attribute, "first") for each in maps))
        is_known = pc.is_valid(values)
        rows = points.select(_KEPT).filter(is_known)
        registers, ranks = registers_of(values.filter(is_known))
        made = {
            "attribute": pa.repeat(attribute, rows.num_rows).dictionary_encode(),
            "register": pa.array(registers),
            "rank": pa.array(ranks),
        }
        for name, column in made.items():
            rows = rows.append_column(name, column)
        parts.append(rows)
    return parts


def registers_of(values: pa.StringArray) -> tuple[Ints, Ints]:
    """Returns the register and the rank of each text. They are the same in every process and release."""
    encoded = values.dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    distinct: Hashes = np.fromiter(
        (xxhash.xxh3_64_intdigest(text.encode()) for text in texts), np.uint64, len(texts)
    )
    rest = distinct & np.uint64(2**_RANK_BITS - 1)
    _, bits = np.frexp(rest.astype(np.float64))  # exact below 2**53
    codes = encoded.indices.to_numpy()
    registers: Ints = (distinct >> np.uint64(_RANK_BITS)).astype(np.int32)[codes]
    ranks: Ints = (_RANK_BITS + 1 - bits).astype(np.int32)[codes]
    return registers, ranks


def estimate(registers: Ints, ranks: Ints) -> float:
    """Returns the number of distinct values, as the SQL function `merged_cardinality` does: the estimator of Ertl
    (2017), whose error is the same for few and many values.
    """
    highest = np.zeros(REGISTERS, np.int32)
    np.maximum.at(highest, registers, ranks)
    is_used = highest > 0
    if not is_used.any():
        return 0.0
    unused = 1 - float(is_used.mean())
    sigma = unused + sum(math.pow(unused, 2**k) * 2.0 ** (k - 1) for k in range(1, SIGMA_TERMS + 1))
    harmonic = float(np.sum(2.0 ** -highest[is_used])) + REGISTERS * sigma
    return REGISTERS**2 / (2 * math.log(2) * harmonic)


def with_attributes(spec: TableSpec, attributes: tuple[str, ...]) -> TableSpec:
    """Returns the table as it is derived for these attributes, if it is `metric_cardinality`; else the same."""
    if spec.name != NAME or spec.derived is None or not attributes:
        return spec
    derive = partial(register_rows, attributes=attributes)
    return replace(spec, derived=replace(spec.derived, derive=derive, columns=_COLUMNS))


_COLUMNS = ("metric_name", "series_id", *_MAPS)

METRIC_CARDINALITY = TableSpec(
    NAME,
    "How many distinct values chosen attributes have in each metric, in buckets of 1 hour and 1 day, as 2,048 registers of a "
    "HyperLogLog sketch (±2.3 %). Empty unless `derive.cardinality_attributes` names attributes. `merged_cardinality` counts.",
    (
        tenant_column("metrics", "points"),
        Column("resolution", pa.int32(), "frazil", "Length of the bucket in seconds: 3600 or 86400", "hot", required=True, merge=KEY),
        Column("metric_name", pa.string(), "metrics.metric_name", "Name of the metric", "hot", coded=True, merge=KEY),
        Column("attribute", pa.string(), "the configuration", "Name of the attribute: of the point, or else of the resource", "hot", coded=True, merge=KEY),
        bucket_column("metrics"),
        Column("register", pa.int32(), "hash of the value", "Register of the sketch: 0 to 2047. Registers without a value have no row", "hot", required=True, merge=KEY),
        Column("rank", pa.int32(), "hash of the value", "Highest rank of the values in the register: 1 to 54", merge=MAX),
    ),
    sort_by=("resolution", "metric_name", "attribute", "time", "register"),
    derived=Derived(
        "metrics",
        (),
        register_rows,
        (3600, 86_400),
        kept_days=((3600, 90), (86_400, 400)),
        once_per_seconds=3600,
    ),
)  # fmt: skip
