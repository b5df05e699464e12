"""Templates of log lines: what is left of a line when its values are masked, with counts and an example.

`templates_of` masks identifiers and numbers of every distinct line by one RE2 expression. What else a template needs
(quoted values, runs of masks, white space) is done to the distinct results, which are few.

Two promises: a template has no ASCII digits, and replacing digits of a line by other digits does not change its template.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from frazil.tables.columns import TIMESTAMP, Column, TableSpec
from frazil.tables.derived.combine import Groups, Values
from frazil.tables.derived.rollup import RESOLUTION_COLUMN, bucket_column, tenant_column
from frazil.tables.derived.rules import ANY, KEY, MAX, MIN, RESOLUTIONS, SUM, Derived, Merge

MASK = "<*>"
LINE_CHARS_MAX = 512
"""How much of a line is read, the most characters of an example and of a template."""
CUT_TEMPLATE_CHARS_MAX = 256
"""The most characters of the template of a longer line. Where a line is cut depends on the length of its values;
where its template is cut must not.
"""
TEMPLATES_MAX = 1000
"""The most templates per tenant, service and minute of one landing."""
OTHER, OTHER_ID = "(other)", 0
"""The template and id of lines beyond `TEMPLATES_MAX`."""

_CUT = "…"
_MONTH = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_WEEKDAY = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*"
_START = r"(?:\b|_)"
_NUMBER = r"[0-9]+(?:[A-Za-z]+[0-9][0-9A-Za-z]*|[A-Za-zµμ]{1,4}\b|[a-zµμ]+)?"
_NUMBERS = rf"{_NUMBER}(?:[-.:,_+/]{_NUMBER})*"
IDENTIFIERS = "|".join(
    (
        _START + r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",  # UUID
        r"\beyJ[\w-]+(?:\.[\w-]+)*",  # JSON web token
        r"\b[\w.+-]+@(?:[\w-]+\.)+[A-Za-z]{2,}\b",  # e-mail address
        r"\b[0-9a-fA-F]{1,4}(?:::?[0-9a-fA-F]{1,4}){3,7}\b",  # IPv6 or MAC address
        rf"\b(?:{_WEEKDAY},? +)?(?:[0-9]{{1,2}}[-/ ])?{_MONTH}[-/ ]+{_NUMBERS}",  # a date with the month's name
        r"\b[A-Za-z0-9+/]{20,}(?:==|=$)",  # base64
        _START + r"[A-Za-z]*[0-9]+[A-Za-z]+[0-9](?:[A-Za-z0-9-]|\.[0-9])*",  # 7d9f8b6c4-x7k2p, 1m30.5s
        _START + r"[0-9a-fA-F]{8,}(?:\b|_)",  # hexadecimal digits
        _START + r"(?:[a-z]+[0-9]+[a-z][a-z0-9]*|[A-Z]+[0-9]+[A-Z][A-Z0-9]*)\b",  # x7kpq
        rf"(?:\B[-+])?{_NUMBERS}",  # -12.5ms, 10MiB, 10.0.0.1:80, 2026-11-18T19:21:07.123Z; of worker-12 and h2 the digits
    )
)  # fmt: skip
"""Matches the values of a line, except quoted text.

Measured for lines of 100 characters: 0.7 µs a line. With one capture 4.5 µs; matching whole runs of values 18 µs.
"""

_DOUBLE, _SINGLE = r'"(?:[^"\\]|\\(?s:.))*"', r"'(?:[^'\\]|\\(?s:.))*'"
_QUOTED = rf'{_DOUBLE}|\B{_SINGLE}\B|"[^"]*{_CUT}$'
_HAS_KEYS = rf'[{{,]\s*(?:{_DOUBLE}|{_SINGLE})\s*:|\w="'
"""Matches lines of JSON, of `key="value"`, and printed dictionaries."""
_KEPT_KEYS = (
    r"(?:[\w.@-]*[._@-])?(?:msg|message|text|title|event|name|key|level|lvl|severity|logger|module|component|type|kind"
    r"|error|err|exception|reason|status|state|action|method|operation|op)"
)
"""The keys whose quoted values stay, because these say what the line is about."""
_KEPT = "\N{INFORMATION SEPARATOR ONE}"
"""Stands for the quote before a value that stays."""
_RUN = r"<\*>(?:[\s,;.:/_+-]*<\*>)+"

Longs = npt.NDArray[np.int64]


def templates_of(lines: pa.Array) -> pa.DictionaryArray:
    """Returns the template of each line, which must have been `cut`."""
    masked = pc.replace_substring_regex(lines, IDENTIFIERS, MASK).dictionary_encode()
    templates = _finished(masked.dictionary).dictionary_encode()
    return pa.DictionaryArray.from_arrays(templates.indices.take(masked.indices), templates.dictionary)


def _finished(masked: pa.Array) -> pa.Array:
    found = pc.replace_substring_regex(masked, _QUOTED, MASK)
    has_keys = pc.match_substring_regex(masked, _HAS_KEYS)
    if pc.any(has_keys).as_py():
        found = pc.replace_with_mask(found, has_keys, _values_masked(masked.filter(has_keys)))
    found = pc.replace_substring_regex(found, _RUN, MASK)
    found = pc.ascii_trim_whitespace(pc.replace_substring_regex(found, r"\s+", " "))
    short = pc.replace_substring_regex(
        pc.utf8_slice_codeunits(found, 0, CUT_TEMPLATE_CHARS_MAX - 1), r"…+$", ""
    )
    was_cut = pc.ends_with(found, _CUT)
    found = pc.if_else(was_cut, pc.binary_join_element_wise(short, _CUT, ""), found)
    return pc.utf8_slice_codeunits(found, 0, LINE_CHARS_MAX)


def _values_masked(lines: pa.Array) -> pa.Array:
    """Masks the quoted values of keys, except those of `_KEPT_KEYS`."""
    key = rf"""(?i)((?:^|[^\w.@-])["']?{_KEPT_KEYS}["']?\s*[:=]\s*)["']"""
    otlp_key = rf"""(?i)("key":{_KEPT}{_KEPT_KEYS}","value":\{{"stringValue":)["']"""
    for pattern in (key, otlp_key):
        lines = pc.replace_substring_regex(lines, pattern, rf"\1{_KEPT}")
    lines = pc.replace_substring_regex(lines, rf"([:=\[]\s*)(?:{_DOUBLE}|{_SINGLE})", rf"\1{MASK}")
    return pc.replace_substring(lines, _KEPT, '"')


def cut(lines: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Returns the lines cut to `LINE_CHARS_MAX` characters, and the same with a mark at the end of those cut."""
    lines = lines.cast(pa.string())
    if (pc.max(pc.binary_length(lines)).as_py() or 0) <= LINE_CHARS_MAX:
        whole = _array(lines)
        return whole, whole
    is_cut = _array(pc.greater(pc.utf8_length(lines), LINE_CHARS_MAX))
    short = _array(pc.utf8_slice_codeunits(lines, 0, LINE_CHARS_MAX))
    return short, pc.if_else(is_cut, pc.binary_join_element_wise(short, _CUT, ""), short)


def log_pattern_rows(logs: pa.Table) -> pa.Table:
    """Returns a row for each template and minute. Kept templates are those with the most records, then least id."""
    logs = logs.filter(pc.is_valid(logs.column("body")))
    if logs.num_rows == 0:
        return LOG_PATTERNS.arrow_schema.empty_table()
    lines, marked = cut(logs.column("body"))
    is_bytes = pc.fill_null(pc.equal(logs.column("body_type"), "bytes"), False)
    if pc.any(is_bytes).as_py():
        marked = pc.if_else(_array(is_bytes), MASK, marked)
    marked = marked.dictionary_encode()
    templates = templates_of(marked.dictionary)
    codes = templates.indices.take(marked.indices)
    times = _array(logs.column("time").cast(pa.int64())).to_numpy()
    owners = [_array(logs.column(name)) for name in ("tenant_id", "service_name")]
    severity, minutes = _array(logs.column("severity_number")), pa.array(times // 60_000_000)
    coded = pa.DictionaryArray.from_arrays(codes, templates.dictionary)
    groups = Groups.of([*owners, minutes, coded, severity], logs.num_rows)
    of_group = codes.to_numpy()[groups.first].astype(np.int64)
    records = np.bincount(groups.of_row)
    ids = _ids(templates.dictionary)
    owner_of_group = [each.take(pa.array(groups.first)) for each in (*owners, minutes)]
    is_other = _beyond_bound(owner_of_group, ids[of_group], records)
    kept = pa.concat_arrays([templates.dictionary, pa.array([OTHER])])
    example = _earliest(groups, times, lines)
    traced = _earliest(groups, times, _array(logs.column("trace_id").cast(pa.string())))
    for places in (example, traced):
        places[is_other] = -1
    first, last = groups.reduce(np.minimum, times), groups.reduce(np.maximum, times)
    made = {
        "tenant_id": owner_of_group[0],
        "service_name": owner_of_group[1],
        "severity_number": severity.take(pa.array(groups.first)),
        "pattern_id": pa.array(np.where(is_other, OTHER_ID, ids[of_group])),
        "time": _times(first),
        "template": kept.take(pa.array(np.where(is_other, len(kept) - 1, of_group))),
        "records": pa.array(records),
        "first_time": _times(first),
        "last_time": _times(last),
        "example": _taken(lines, example),
        "example_trace_id": _taken(logs.column("trace_id").cast(pa.string()), traced),
        "example_trace_time": _taken(_times(times), traced),
    }
    return pa.table(made)


def _beyond_bound(owner_of_group: list[pa.Array], ids: Longs, records: Longs) -> npt.NDArray[np.bool_]:
    """Returns which groups have a template that is not among the `TEMPLATES_MAX` of its tenant, service and minute."""
    templates = Groups.of([*owner_of_group, pa.array(ids)], len(ids))
    owners = Groups.of([each.take(pa.array(templates.first)) for each in owner_of_group], templates.count)
    if np.bincount(owners.of_row).max() <= TEMPLATES_MAX:
        return np.zeros(len(ids), np.bool_)
    total = templates.reduce(np.add, records).astype(np.int64)
    order = np.lexsort((ids[templates.first], -total, owners.of_row))
    sorted_owners = owners.of_row[order]
    place = np.arange(len(order)) - np.searchsorted(sorted_owners, sorted_owners)
    is_other = np.empty(len(order), np.bool_)
    is_other[order] = place >= TEMPLATES_MAX
    found: npt.NDArray[np.bool_] = is_other[templates.of_row]
    return found


def _earliest(groups: Groups, times: Longs, values: pa.Array) -> Longs:
    """Returns the earliest row of each group that has a value, of equally early ones that with the least value; -1 if
    there is none.
    """
    usable = values.is_valid().to_numpy(zero_copy_only=False)
    usable_times = np.where(usable, times, np.iinfo(np.int64).max)
    earliest = groups.reduce(np.minimum, usable_times)
    rows = np.flatnonzero(usable & (usable_times == earliest[groups.of_row]))
    owners = groups.of_row[rows]
    ranks = pc.rank(values.take(pa.array(rows)), "ascending", tiebreaker="dense").to_numpy()
    order = np.lexsort((ranks, owners))
    found = np.full(groups.count, -1, np.int64)
    found[owners[order][::-1]] = rows[order][::-1]  # of several, the last one assigned stays: the least
    return found


def _ids(templates: pa.Array) -> Longs:
    hashes = [xxhash.xxh3_64_intdigest(text) for text in templates.cast(pa.binary()).to_pylist()]
    return np.array(hashes, np.uint64).view(np.int64)


def _taken(values: pa.Array | pa.ChunkedArray, rows: Longs) -> pa.Array:
    return _array(values).take(pa.array(rows, mask=rows < 0))


def _times(micros: Values) -> pa.Array:
    return pa.array(micros).cast(pa.timestamp("us")).cast(TIMESTAMP)


def _array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


LOG_PATTERNS = TableSpec(
    "log_patterns",
    "Templates of log lines with counts and an example, in buckets of 1 minute, 5 minutes, 1 hour and 1 day. A template "
    "is a line whose numbers, dates, identifiers, addresses and quoted values are replaced by `<*>`. One landing counts "
    "at most 1,000 templates per tenant, service and minute, those with the most records; other records count as "
    "`(other)`. A minute that lands in several parts may have more. Records without a body are not counted.",
    (
        tenant_column("logs", "records"),
        RESOLUTION_COLUMN,
        Column("service_name", pa.string(), "logs.service_name", "Service", "hot", coded=True, merge=KEY),
        Column("severity_number", pa.int32(), "logs.severity_number", "Severity, as in `logs`", "hot", merge=KEY),
        Column("pattern_id", pa.int64(), "logs.body", "A hash of the template; 0 for `(other)`", "hot", required=True, merge=KEY),
        bucket_column("logs"),
        Column("template", pa.string(), "logs.body", "Template of the lines, made of their first 512 characters", "hot", coded=True, merge=ANY),
        Column("records", pa.int64(), "logs", "Number of records", "hot", merge=SUM),
        Column("first_time", TIMESTAMP, "logs.time", "Exact time of the first record", merge=MIN),
        Column("last_time", TIMESTAMP, "logs.time", "Exact time of the last record", merge=MAX),
        Column("example", pa.string(), "logs.body", "First 512 characters of the first record's body; NULL for `(other)`", coded=True, merge=Merge("first", by="first_time")),
        Column("example_trace_id", pa.string(), "logs.trace_id", "Trace of the first record that has one; NULL for `(other)`", coded=True, merge=Merge("first", by="example_trace_time")),
        Column("example_trace_time", TIMESTAMP, "logs.time", "Exact time of the record that `example_trace_id` comes from", merge=MIN),
    ),
    sort_by=("resolution", "service_name", "severity_number", "pattern_id", "time"),
    derived=Derived(
        "logs",
        ("service_name", "severity_number", "body", "body_type", "trace_id"),
        log_pattern_rows,
        RESOLUTIONS,
        kept_days=((60, 14), (300, 60), (3600, 90), (86_400, 90)),
    ),
)  # fmt: skip
