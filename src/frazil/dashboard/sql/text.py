"""Query texts: examples, titles, links and error excerpts."""

from __future__ import annotations

import re

_EXCERPT_CHARACTERS = 100
_SHARED_CHARACTERS_MAX = 6_000
"""Browsers, proxies and chats truncate longer URLs."""


def excerpt(sql: str, position: int) -> str:
    """Returns the line at `position` with a mark below it, for a fixed-width font."""
    position = max(0, min(position, len(sql)))
    before = sql[:position]
    line_number = before.count("\n") + 1
    begin = before.rfind("\n") + 1
    end = sql.find("\n", position)
    line = sql[begin : len(sql) if end < 0 else end]
    column = position - begin
    shift = max(0, column - _EXCERPT_CHARACTERS // 2)
    shown = line[shift : shift + _EXCERPT_CHARACTERS].replace("\t", " ")
    head = f"{line_number} | "
    lead, tail = ("…" if shift else ""), ("…" if shift + _EXCERPT_CHARACTERS < len(line) else "")
    return f"{head}{lead}{shown}{tail}\n{' ' * (len(head) + len(lead) + column - shift)}^"


def browser_offset(sql: str, position: int) -> int:
    """Converts a character offset of the API to UTF-16 units, which browsers use."""
    return len(sql[:position].encode("utf-16-le", "surrogatepass")) // 2


def title(sql: str, characters: int = 80) -> str:
    """Returns the query on one line, without comments."""
    line = re.sub(r"\s+", " ", re.sub(r"--[^\n]*", "", sql)).strip()
    return line if len(line) <= characters else line[: characters - 1] + "…"


def can_be_shared(sql: str) -> bool:
    """Returns whether the query fits into a URL."""
    return len(sql) <= _SHARED_CHARACTERS_MAX


EXAMPLES: dict[str, str] = {
    "What is failing right now?": """\
SELECT service_name,
       count(*) AS requests,
       count_if(status_code = 2) AS failed,
       round(100.0 * count_if(status_code = 2) / count(*), 2) AS failed_percent
FROM spans
WHERE time > now() - INTERVAL 1 HOUR AND kind IN (2, 5)  -- served or consumed
GROUP BY service_name
ORDER BY failed DESC, requests DESC""",
    "How slow is each operation?": """\
SELECT service_name || ' ' || name AS operation,
       round(quantile_cont(duration_nano / 1e6, 0.95), 1) AS p95_ms,
       round(quantile_cont(duration_nano / 1e6, 0.50), 1) AS p50_ms,
       count(*) AS requests
FROM spans
WHERE time > now() - INTERVAL 1 HOUR AND kind = 2
GROUP BY ALL
ORDER BY p95_ms DESC
LIMIT 20""",
    "Requests per minute, by service": """\
SELECT time_bucket(INTERVAL 1 MINUTE, time) AS minute,
       service_name,
       count(*) AS requests
FROM spans
WHERE time > now() - INTERVAL 1 HOUR AND kind = 2
GROUP BY ALL
ORDER BY minute""",
    "Which log messages are most frequent?": """\
SELECT service_name,
       regexp_replace(body, '[0-9a-f]{8,}|[0-9]+([.][0-9]+)?', '#', 'g') AS template,
       severity(max(severity_number)) AS severity,
       count(*) AS lines
FROM logs
WHERE time > now() - INTERVAL 1 HOUR
GROUP BY ALL
ORDER BY lines DESC
LIMIT 25""",
    "What did the failed traces log?": """\
WITH failed AS (
    SELECT trace_id, name
    FROM spans
    WHERE time > now() - INTERVAL 1 HOUR AND parent_span_id IS NULL AND status_code = 2
    ORDER BY time DESC
    LIMIT 20
)
SELECT logs.time, failed.name AS request, logs.service_name,
       severity(logs.severity_number) AS severity, logs.body, logs.trace_id
FROM logs JOIN failed USING (trace_id)
WHERE logs.time > now() - INTERVAL 2 HOUR
ORDER BY logs.trace_id, logs.time""",
    "Which exceptions do spans record?": """\
SELECT service_name,
       event.attributes['exception.type'] AS exception,
       count(*) AS times,
       any_value(event.attributes['exception.message']) AS message,
       arg_max(trace_id, time) AS trace_id  -- one to open
FROM (SELECT service_name, trace_id, time, unnest(events) AS event
      FROM spans
      WHERE time > now() - INTERVAL 1 HOUR)
WHERE event.name = 'exception'
GROUP BY ALL
ORDER BY times DESC""",
    "What is the latest memory use of each process?": """\
SELECT service_name, k8s_pod_name,
       round(arg_max(coalesce(value_double, value_int), time) / 1e6, 1) AS megabytes,
       max(time) AS at
FROM metrics
WHERE metric_name = 'process.memory.usage' AND time > now() - INTERVAL 15 MINUTE
GROUP BY service_name, k8s_pod_name, series_id
ORDER BY megabytes DESC""",
    "How late does data arrive?": """\
SELECT service_name,
       count(*) AS records,
       round(quantile_cont(epoch_ms(received_time - time), 0.5)) AS p50_ms,
       round(quantile_cont(epoch_ms(received_time - time), 0.99)) AS p99_ms
FROM logs
WHERE time > now() - INTERVAL 1 HOUR
GROUP BY service_name
ORDER BY p99_ms DESC""",
}
DEFAULT = EXAMPLES["Requests per minute, by service"]
