"""SQL that makes calls from halves, as `service_edges.settle_calls` does in memory. But a half near midnight is put together
with those of the other day, and one without another half is a call to its virtual node after five minutes.
"""

from __future__ import annotations

from frazil.tables.derived.pairs import SPREAD_SECONDS
from frazil.tables.derived.rules import PENDING_RESOLUTIONS, RESOLUTIONS, Dialect

UNMATCHED_SECONDS = 300
"""How long the half of a client waits for that of a server before it counts as a call to a virtual node."""

_SELECT = """\
WITH halves AS (
  SELECT * FROM {rows} WHERE resolution IN ({pending})
), clients AS (
  SELECT tenant_id, call_id, {first} AS found, max(calls) AS calls, max(errors) AS errors,
    max(duration_nano_max) AS duration, max({code}) AS code, max(received_time) AS received
  FROM halves WHERE side = 'client' GROUP BY tenant_id, call_id
), servers AS (
  SELECT tenant_id, call_id, callee, time, sum(calls) AS calls, sum(errors) AS errors
  FROM halves WHERE side = 'server' GROUP BY tenant_id, call_id, callee, time
), made AS (
  SELECT c.tenant_id, c.found.caller, coalesce(s.callee, c.found.callee) AS callee,
    CASE WHEN s.callee IS NOT NULL AND c.found.connection = 'external' THEN 'service' ELSE c.found.connection END AS connection,
    nullif(c.found.protocol, '') AS protocol, c.found.time AS time, coalesce(s.calls, 1) AS calls,
    CASE WHEN c.errors > 0 THEN coalesce(s.calls, 1) ELSE coalesce(s.errors, 0) END AS errors, c.duration, c.code
  FROM clients c LEFT JOIN servers s ON c.tenant_id = s.tenant_id AND c.call_id = s.call_id
    AND abs({server_seconds} - {client_seconds}) <= {spread}
  WHERE s.callee IS NOT NULL OR (c.calls > 0 AND c.received <= {now} - INTERVAL '{unmatched}' SECOND)
)
SELECT tenant_id, seconds AS resolution, caller, callee, connection, protocol, {bucket} AS time,
  CAST(calls AS BIGINT) AS calls, CAST(errors AS BIGINT) AS errors, CAST(duration AS DOUBLE) * calls AS duration_nano_sum,
  duration AS duration_nano_min, duration AS duration_nano_max,
  CASE WHEN code IS NOT NULL THEN {codes} END AS duration_codes,
  CASE WHEN code IS NOT NULL THEN {counts} END AS duration_counts
FROM made CROSS JOIN {resolutions}"""

_FIELDS = ("time", "caller", "callee", "connection")
_VALUES = f"(VALUES {', '.join(f'({seconds})' for seconds in RESOLUTIONS)})"
_DIALECTS = {
    "duckdb": {
        "first": f"min({{{', '.join(f'{name}: {name}' for name in _FIELDS)}, protocol: coalesce(protocol, '')}})",
        "code": "list_max(duration_codes)",
        "server_seconds": "epoch(s.time)",
        "client_seconds": "epoch(c.found.time)",
        "now": "now()",
        "bucket": "make_timestamptz(epoch_us(time) - epoch_us(time) % (CAST(seconds AS BIGINT) * 1000000))",
        "codes": "[code]",
        "counts": "[CAST(calls AS BIGINT)]",
        "resolutions": f"{_VALUES} AS resolutions(seconds)",
    },
    "spark": {
        "first": f"min(struct({', '.join(_FIELDS)}, coalesce(protocol, '') AS protocol))",
        "code": "array_max(duration_codes)",
        "server_seconds": "unix_seconds(s.time)",
        "client_seconds": "unix_seconds(c.found.time)",
        "now": "current_timestamp()",
        "bucket": "timestamp_seconds(unix_seconds(time) - unix_seconds(time) % seconds)",
        "codes": "array(code)",
        "counts": "array(CAST(calls AS BIGINT))",
        "resolutions": f"{_VALUES} AS resolutions(seconds)",
    },
    "trino": {
        "first": f"min(CAST(ROW({', '.join(_FIELDS)}, coalesce(protocol, '')) AS ROW(time timestamp(6) with time zone, "
        "caller varchar, callee varchar, connection varchar, protocol varchar)))",
        "code": "array_max(duration_codes)",
        "server_seconds": "to_unixtime(s.time)",
        "client_seconds": "to_unixtime(c.found.time)",
        "now": "current_timestamp",
        "bucket": "from_unixtime(CAST(to_unixtime(time) AS BIGINT) - CAST(to_unixtime(time) AS BIGINT) % seconds)",
        "codes": "ARRAY[code]",
        "counts": "ARRAY[CAST(calls AS BIGINT)]",
        "resolutions": f"{_VALUES} AS resolutions (seconds)",
    },
}


def completed_calls(dialect: Dialect, rows: str) -> str:
    """Returns a SELECT of the calls that follow from halves, at each resolution. `rows` is a FROM item."""
    return _SELECT.format(
        rows=rows,
        pending=", ".join(map(str, PENDING_RESOLUTIONS)),
        spread=SPREAD_SECONDS,
        unmatched=UNMATCHED_SECONDS,
        **_DIALECTS[dialect],
    )
