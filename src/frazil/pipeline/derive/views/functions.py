"""The functions of Spark SQL that a view may use: those whose result depends on one row alone, and the
aggregates that merge.
"""

from __future__ import annotations

from frazil.tables.derived.view import ViewRule

AGGREGATES: dict[str, tuple[str, ViewRule]] = {
    "count": ("count", "sum"),
    "count_if": ("count_if", "sum"),
    "sum": ("sum", "sum"),
    "min": ("min", "min"),
    "max": ("max", "max"),
    "bool_or": ("bool_or", "max"),
    "any": ("bool_or", "max"),
    "some": ("bool_or", "max"),
    "bool_and": ("bool_and", "min"),
    "every": ("bool_and", "min"),
}
"""By name: the function that is called, and how its partial results merge."""

REFUSED: dict[str, str] = {
    **dict.fromkeys(("avg", "mean", "try_avg"), "select sum(x) and count(x), and divide in the query"),
    **dict.fromkeys(
        ("approx_count_distinct", "hll_sketch_agg"),
        "distinct counts do not merge: make x a key, and count keys in the query",
    ),
    **dict.fromkeys(
        (
            "percentile",
            "percentile_approx",
            "approx_percentile",
            "percentile_cont",
            "percentile_disc",
            "median",
        ),
        "quantiles do not merge: use span_metrics or metric_rollups, or count rows by ranges of x",
    ),
    **dict.fromkeys(
        ("stddev", "std", "stddev_samp", "stddev_pop", "variance", "var_samp", "var_pop"),
        "select count(x), sum(x) and sum(x * x), and compute it in the query",
    ),
    **dict.fromkeys(
        ("first", "first_value", "last", "last_value", "any_value", "max_by", "min_by", "mode"),
        "use min or max",
    ),
    **dict.fromkeys(
        ("collect_list", "collect_set", "array_agg", "listagg", "string_agg", "histogram_numeric"),
        "lists do not merge: make x a key",
    ),
    **dict.fromkeys(("try_sum",), "use sum: it is NULL if it does not fit"),
    **dict.fromkeys(
        (
            *(
                "rand",
                "randn",
                "random",
                "randstr",
                "uniform",
                "uuid",
                "shuffle",
                "monotonically_increasing_id",
            ),
            *("spark_partition_id", "input_file_name", "now", "current_timestamp", "current_date", "curdate"),
            *("current_time", "localtimestamp", "unix_timestamp", "current_user", "session_user", "user"),
            *("current_timezone", "current_catalog", "current_database", "current_schema", "version"),
        ),
        "its result does not depend on the row: a row must give the same result whenever it is derived",
    ),
    **dict.fromkeys(
        ("explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer", "stack"),
        "a row must stay one row: select a value, such as attributes['key']",
    ),
    **dict.fromkeys(
        ("row_number", "rank", "dense_rank", "lag", "lead", "ntile", "window", "session_window"),
        "a row must not depend on others: use date_trunc('minute', time) for buckets of time",
    ),
    **dict.fromkeys(("raise_error", "assert_true"), "one row could stop the view: filter with WHERE"),
    **dict.fromkeys(("rollup", "cube", "grouping", "grouping_id"), "group by each key: write GROUP BY ALL"),
    **dict.fromkeys(("reflect", "java_method", "try_reflect"), "it calls Java"),
}
"""Well-known functions that a view cannot use, and what to do instead."""

_TEXT = """
ascii base64 bit_length btrim char char_length character_length chr concat concat_ws contains elt endswith
find_in_set format_number format_string hex initcap instr lcase left length levenshtein locate lower lpad
ltrim luhn_check mask octet_length overlay parse_url position printf regexp regexp_count regexp_extract
regexp_instr regexp_like regexp_replace regexp_substr repeat replace reverse right rpad rtrim soundex space
split split_part startswith substr substring substring_index translate trim try_parse_url try_url_decode ucase
unbase64 unhex upper url_decode url_encode
"""
_NUMBERS = """
abs acos asin atan atan2 bin bround cbrt ceil ceiling conv cos cosh degrees exp expm1 factorial floor greatest
hypot least ln log log10 log1p log2 mod negative nullifzero pmod positive pow power radians rint round sign
signum sin sinh sqrt tan tanh try_add try_divide try_mod try_multiply try_subtract width_bucket zeroifnull
bit_count bit_get getbit shiftleft shiftright shiftrightunsigned
"""
_CONDITIONS = "coalesce if ifnull isnan isnotnull isnull nanvl nullif nvl nvl2"
_TIMES = """
date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc datediff day dayname
dayofmonth dayofweek dayofyear extract hour last_day make_date make_timestamp minute month monthname quarter
second timestamp_micros timestamp_millis timestamp_seconds to_date to_timestamp trunc try_make_timestamp
try_to_timestamp unix_date unix_micros unix_millis unix_seconds weekday weekofyear year
"""
_COLLECTIONS = """
array array_contains array_join array_max array_min array_position array_size cardinality element_at get
get_json_object json_array_length map_contains_key map_keys map_values named_struct size struct try_element_at
"""
_CASTS = "bigint boolean cast crc32 double float int md5 sha sha1 sha2 string try_cast typeof xxhash64 hash"
SCALARS = frozenset(
    name for names in (_TEXT, _NUMBERS, _CONDITIONS, _TIMES, _COLLECTIONS, _CASTS) for name in names.split()
)
"""Functions of one row: deterministic, without side effects, and independent of the clock and the session."""
