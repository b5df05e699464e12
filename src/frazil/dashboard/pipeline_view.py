"""Prepares the response of `GET /api/v1/status` for the Pipeline page."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frazil.dashboard.format import format_count, format_elapsed, format_size

Status = Mapping[str, Any]
Formatter = Callable[[float | None], str]


@dataclass(frozen=True)
class Card:
    """One stage: a headline figure, and further figures below it."""

    title: str
    headline: str
    unit: str
    lines: Sequence[tuple[str, str]]
    problem: str | None = None
    note: str | None = None


def cards(status: Status) -> list[Card]:
    """Returns a card per stage, in the order of the data flow."""
    stages = status["stages"]
    return [
        _receive(stages["receive"]),
        _wal(stages["wal"]),
        _land(stages["land"], status["at"]),
        _lake(stages["lake"], status.get("tables") or ()),
        _maintain(stages["maintain"], stages["lake"], status["at"]),
        _query(stages["query"]),
    ]


def _rate(value: float | None, written: Formatter = format_count) -> str:
    return "–" if value is None else f"{written(value)}/s"


def _two(first: float | None, second: float | None, written: Formatter) -> str:
    return f"{written(first)} · {written(second)}"


def _since(time: float | None, now: float) -> str:
    return "–" if time is None else f"{format_elapsed(max(0.0, now - time))} ago"


def _largest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _receive(stage: Mapping[str, Any]) -> Card:
    total, ack = stage["total"], stage["total"]["ack"]
    refused = total["refused_per_second"]
    reasons = ", ".join(f"{reason} {_rate(rate)}" for reason, rate in stage["refusals"].items() if rate)
    return Card(
        "Receive",
        _rate(total["records_per_second"]),
        "records",
        [
            ("requests", _rate(total["requests_per_second"])),
            ("bytes", _rate(total["bytes_per_second"], format_size)),
            ("p50 · p99", _two(ack["p50_seconds"], ack["p99_seconds"], format_elapsed)),
            ("refused", _rate(refused)),
        ],
        f"refused requests: {reasons}" if reasons else None,
    )


def _wal(stage: Mapping[str, Any]) -> Card:
    backlog = stage["backlog"]
    failing = stage["failures_per_second"]
    return Card(
        "Write-ahead log",
        format_size(backlog["bytes"]),
        "not landed yet",
        [
            ("oldest", format_elapsed(backlog["age_seconds"])),
            ("segments", format_count(backlog["segments"])),
            ("writes", _rate(stage["segments_per_second"])),
            ("store p99", format_elapsed(stage["store"]["p99_seconds"])),
        ],
        f"failed writes: {_rate(failing)}" if failing else None,
    )


def _land(stage: Mapping[str, Any], now: float) -> Card:
    tables = stage["tables"]
    stopped = [name for name, table in tables.items() if table["is_stopped"]]
    last = _largest([table["last_commit_at"] for table in tables.values()])
    problem = f"landing stopped, operator action required: {', '.join(stopped)}" if stopped else None
    if problem is None and not stage["has_leader"]:
        problem = "no pipeline holds the lease"
    return Card(
        "Land",
        _rate(_total([table["rows_per_second"] for table in tables.values()])),
        "rows",
        [
            ("lag", format_elapsed(_largest([table["lag_seconds"] for table in tables.values()]))),
            ("last commit", _since(last, now)),
            ("commit p95", format_elapsed(stage["commit"]["p95_seconds"])),
            ("set aside", format_count(_total([table["set_aside"] for table in tables.values()]))),
        ],
        problem,
    )


def _lake(stage: Mapping[str, Any], tables: Sequence[Mapping[str, Any]]) -> Card:
    measured = stage["tables"].values()
    cost = _total([table["monthly_cost"] for table in measured])
    rows = _total([table["rows"] for table in measured])
    if rows is None:
        rows = _total([table.get("rows") for table in tables])
    return Card(
        "Tables",
        format_count(rows),
        "rows",
        [
            ("bytes", format_size(_total([table["bytes"] for table in measured]))),
            ("files", format_count(_total([table["files"] for table in measured]))),
            ("small files", format_count(_total([table["small_files"] for table in measured]))),
            ("cost/month", "–" if cost is None else f"≈ ${cost:,.2f}"),
        ],
    )


def _maintain(stage: Mapping[str, Any], lake: Mapping[str, Any], now: float) -> Card:
    tasks, waiting = stage["tasks"], stage["waiting"].values()
    small = _total([table["small_files"] for table in lake["tables"].values()])
    due_bytes = _total([table["bytes"] for table in waiting])
    failing = [
        f"{name} on {', '.join(task['failing'])}" for name, task in tasks.items() if task.get("failing")
    ]
    merged = (tasks.get("compact") or {}).get("last_at")
    return Card(
        "Maintain",
        format_size(due_bytes),
        "to merge now",
        [
            ("lag", format_elapsed(_largest([table["lag_seconds"] for table in waiting]))),
            ("last merge", _since(merged, now)),
            ("runs", format_count(sum(sum(task["runs"].values()) for task in tasks.values()))),
            ("failed", format_count(sum(task["runs"].get("failed", 0) for task in tasks.values()))),
        ],
        f"failed: {'; '.join(failing)}" if failing else None,
        f"{format_count(small)} small files: {SMALL_FILES}" if small and not due_bytes else None,
    )


SMALL_FILES = "merged when enough of them are there, or when their day is over"


def _query(stage: Mapping[str, Any]) -> Card:
    latency = stage["latency"]
    failed = {name: rate for name, rate in stage["outcomes"].items() if name == "defect" and rate}
    return Card(
        "Query",
        _rate(stage["per_second"]),
        "queries",
        [
            ("p50 · p95", _two(latency["p50_seconds"], latency["p95_seconds"], format_elapsed)),
            ("running · queued", _two(stage["running"], stage["waiting"], format_count)),
            ("cache hits", _rate(stage["cached_per_second"])),
            ("killed workers", format_count(stage["workers_killed"])),
        ],
        "internal errors: see the log of the API" if failed else None,
    )


OBJECTIVES = {
    "ack": ("Ack, p99", "Time from receiving a request to acknowledging it, once its data is durable."),
    "freshness": (
        "Freshness",
        "Time from acknowledgement until SQL queries see the data, in the slowest table.",
    ),
    "landing_lag": ("Landing lag", "Age of the oldest data that has not landed in its table."),
    "derive_lag": (
        "Derivation lag",
        "Time since the landing of the oldest rows that are not in a derived table yet.",
    ),
}


def history_rows(status: Status, name: str) -> list[dict[str, Any]]:
    """Returns one row per point of the history's series of that name."""
    history = status.get("history") or {"times": [], "series": []}
    times = [dt.datetime.fromtimestamp(at, dt.UTC) for at in history["times"]]
    return [
        {"time": time, "of": series["of"] or "all", "value": value}
        for series in history["series"]
        if series["name"] == name
        for time, value in zip(times, series["values"], strict=True)
        if value is not None
    ]


TABLE_COLUMNS: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], Any]]] = {
    "table": ("Table", lambda table: table["name"]),
    "rows": ("Rows", lambda table: table.get("rows")),
    "tail": ("Not landed yet", lambda table: table.get("tail_rows")),
    "files": ("Files", lambda table: _health(table, "files")),
    "bytes": ("Size", lambda table: _mb(_health(table, "bytes"))),
    "small": ("Small files", lambda table: _health(table, "small_files")),
    "overlap": ("Overlap (avg)", lambda table: _health(table, "files_per_moment")),
    "waiting": ("To merge", lambda table: _mb(_health(table, "waiting_bytes"))),
    "snapshots": ("Snapshots", lambda table: _health(table, "snapshots")),
    "cost": ("Est. cost/month", lambda table: _health(table, "monthly_cost")),
}


def table_rows(status: Status) -> list[dict[str, Any]]:
    """Returns one row per table. Views are omitted."""
    return [
        {name: read(table) for name, (_, read) in TABLE_COLUMNS.items()}
        for table in status.get("tables") or ()
        if table.get("health") is not None
    ]


DERIVED_COLUMNS = {
    "table": "Table",
    "source": "From",
    "state": "State",
    "lag": "Lag",
    "rate": "Rows derived/s",
    "commit": "Last commit",
}
"""Title by column."""
_DERIVE_STATES: Mapping[str | None, str] = {
    None: "unknown",
    "off": "off",
    "stopped": "stopped",
    "failing": "failing",
    "late": "behind",
    "waiting": "no data yet",
    "ok": "up to date",
}


def derived_rows(status: Status) -> list[dict[str, Any]]:
    """Returns one row per derived table."""
    return [
        {
            "table": name,
            "source": table["source"],
            "state": _derive_state(table),
            "lag": format_elapsed(table["lag_seconds"]),
            "rate": table["rows_per_second"] if table["state"] not in (None, "off") else None,
            "commit": _since(table["last_commit_at"], status["at"]),
        }
        for name, table in status["stages"]["derive"]["tables"].items()
    ]


def _derive_state(table: Mapping[str, Any]) -> str:
    state = table["state"]
    if state == "catching_up":
        days = int(table["days_left"])
        return f"{days} past day{'' if days == 1 else 's'} left"
    return _DERIVE_STATES[state]


def derive_problems(status: Status) -> list[str]:
    """Returns a sentence for each derived table that fails, is behind, or is near a bound of a tenant."""
    problems = []
    for name, table in status["stages"]["derive"]["tables"].items():
        if table["state"] in ("stopped", "failing"):
            problems.append(f"{name} is not derived: {table['reason'] or 'see the log of the pipeline'}")
        elif table["state"] == "late":
            problems.append(f"{name} is {format_elapsed(table['lag_seconds'])} behind its source")
        if tenants := int(table.get("limited_tenants") or 0):
            those = "1 tenant is" if tenants == 1 else f"{tenants} tenants are"
            problems.append(
                f"new rows of {name} are not written today: {those} at `derive.series_per_day_max`"
            )
        if ratio := table.get("unmatched_ratio"):
            problems.append(
                f"a tenant has {math.floor(100 * ratio)} % of `derive.unmatched_spans_per_day_max` in {name} "
                "today; beyond it, spans do not wait for the other side of their call"
            )
    return problems


LEDGER_COLUMNS = {
    "table": ("Table", None),
    "durable": ("Acknowledged rows", None),
    "landed": ("Landed rows", None),
    "removed": (
        "Deleted rows",
        "Removed by retention, erasure or the merging of identical spans",
    ),
    "waiting": ("Not landed yet", "Rows; with Kafka, messages"),
    "set_aside": ("Set aside", "Segments or messages that could not be read"),
    "streams": ("Streams", None),
    "segments": ("Segments", None),
    "bytes": ("Size of segments", None),
}
"""Title and help by column."""


def ledger_rows(ledger: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns one row per table."""
    return [
        {name: name_of_table if name == "table" else figures.get(name) for name in LEDGER_COLUMNS}
        for name_of_table, figures in ledger["tables"].items()
    ]


def _health(table: Mapping[str, Any], name: str) -> Any:
    """Returns the figure of all tenants if it is known, else that of the own tenant."""
    health = table.get("health") or {}
    return (health.get("whole") or health).get(name)


def _mb(count_bytes: float | None) -> float | None:
    return None if count_bytes is None else count_bytes / 1e6
