"""Renders the overall status for a terminal."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from frazil.client.text_format import bytes_text, seconds_text
from frazil.status.poll import NOTHING_LISTENS

_STYLES = {"ok": "green", "degraded": "yellow", "down": "bold red"}
_MARKS = {"ok": "●", "degraded": "▲", "down": "✗"}
_OBJECTIVES = {
    "ack": "ack p99",
    "freshness": "freshness",
    "landing_lag": "landing lag",
    "derive_lag": "derivation lag",
}
_UNKNOWN = "–"

Json = Mapping[str, Any]


def render_all_down(status: Json) -> RenderableType:
    """Render the polled addresses and what to do if no role is running."""
    addresses = ", ".join(f"{role['url']} ({role['name']})" for role in status["roles"])
    text = Text.assemble(("no role is running on ", "bold red"), addresses)
    for role in status["roles"]:
        for reason in role["reasons"]:
            if reason != NOTHING_LISTENS:
                text.append(f"\n  {role['name']}: {reason}", style="yellow")
    text.append(
        "\n→ start all roles on this machine with `make run` or `frazil up`"
        "\n→ for roles on other machines: use --url with the API, use --config with their configuration,"
        "\n  or list their addresses below `status:` in frazil.yaml",
        style="cyan",
    )
    return text


def render_status(status: Json) -> RenderableType:
    parts: list[RenderableType] = [_head(status), _roles(status["roles"])]
    stages: Json = status["stages"]
    now = float(status["at"])
    parts += ["", _received(stages), "", _landed(stages, now), ""]
    facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column()
    for name, text in _facts(status, stages, now):
        facts.add_row(name, text)
    parts.append(facts)
    return Group(*parts)


def _head(status: Json) -> Text:
    state = str(status["state"])
    clock = time.strftime("%H:%M:%S", time.localtime(status["at"]))
    labels = {"ok": "all roles ok", "degraded": "degraded", "down": "down"}
    head = Text.assemble(
        ("frazil ", "bold"), (labels.get(state, state), _STYLES.get(state, "")), (f"  {clock}", "dim")
    )
    if note := status.get("note"):
        head.append(f"\npolled the roles directly, because the API failed: {note}", style="yellow")
    return head


def _roles(roles: list[Json]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    for role in roles:
        state = str(role["state"])
        facts = [
            f"up {_age(role.get('up_seconds'))}" if role.get("up_seconds") is not None else "",
            _bytes(role.get("memory_bytes")) if role.get("memory_bytes") is not None else "",
            str(role.get("version") or ""),
        ]
        style = _STYLES.get(state, "")
        table.add_row(
            Text(f"{_MARKS.get(state, '?')} {role['name']}", style=style),
            Text(str(role["url"]), style="dim"),
            Text(state, style=style),
            Text("  ".join(fact for fact in facts if fact), style="dim"),
        )
        for reason in role["reasons"]:
            table.add_row("", "", Text("→", style=style, justify="right"), Text(str(reason), style=style))
    return table


def _received(stages: Json) -> Table:
    table = _columns("received", "records/s", "bytes/s", "ack p50", "ack p99", "refused/s")
    for name, received in stages["receive"]["signals"].items():
        refused = received["refused_per_second"]
        table.add_row(
            Text(name, style="bold"),
            _rate(received["records_per_second"]),
            _bytes(received["bytes_per_second"]),
            _seconds(received["ack"]["p50_seconds"]),
            _seconds(received["ack"]["p99_seconds"]),
            Text(_rate(refused), style="yellow" if refused else ""),
        )
    return table


def _landed(stages: Json, now: float) -> Table:
    table = _columns("landed", "waiting", "lag", "rows/s", "committed", "rows", "files", "size")
    for name, landed in stages["land"]["tables"].items():
        backlog: Json = stages["wal"]["signals"].get(name, {})
        lake: Json = stages["lake"]["tables"].get(name, {})
        table.add_row(
            Text(name, style="bold red" if landed["is_stopped"] else "bold"),
            _bytes(backlog.get("bytes")),
            _seconds(landed["lag_seconds"]),
            _rate(landed["rows_per_second"]),
            _ago(landed["last_commit_at"], now),
            _count(lake.get("rows")),
            _count(lake.get("files")),
            _bytes(lake.get("bytes")),
        )
    return table


def _columns(first: str, *numbers: str) -> Table:
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(first, min_width=8)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True, min_width=8)
    return table


def _facts(status: Json, stages: Json, now: float) -> Iterator[tuple[str, Text]]:
    for number, objective in enumerate(status["objectives"]):
        yield "" if number else "objectives", _objective(objective)
    refusals = {reason: rate for reason, rate in stages["receive"]["refusals"].items() if rate}
    if refusals:
        rates = ", ".join(f"{reason} {_rate(rate)}/s" for reason, rate in refusals.items())
        yield "refused", Text(rates, style="yellow")
    wal: Json = stages["wal"]
    stored: Json = wal["store"]
    yield (
        "WAL",
        Text(
            f"{_bytes(wal['backlog']['bytes'])} waiting in {_count(wal['backlog']['segments'])} segments, "
            f"store p50 {_seconds(stored['p50_seconds'])}, p99 {_seconds(stored['p99_seconds'])}",
            style="red" if wal["failures_per_second"] else "",
        ),
    )
    query: Json = stages["query"]
    latency: Json = query["latency"]
    yield (
        "queries",
        Text(
            f"{_rate(query['per_second'])}/s, p50 {_seconds(latency['p50_seconds'])}, "
            f"p95 {_seconds(latency['p95_seconds'])}, {_count(query['running'])} running, "
            f"{_count(query['waiting'])} waiting"
        ),
    )
    for number, text in enumerate(_derived(stages["derive"]["tables"], now)):
        yield "" if number else "derivation", text
    yield "maintenance", _maintenance(stages["maintain"], now)


def _objective(objective: Json) -> Text:
    kept, ratio = bool(objective["kept"]), objective["kept_ratio"]
    style = "green" if kept else "bold red"
    text = Text.assemble(
        (f"{'✓' if kept else '✗'} ", style), _OBJECTIVES.get(str(objective["name"]), str(objective["name"]))
    )
    text.append(f" {_seconds(objective['value'])}", style=style)
    text.append(f" of {_seconds(objective['target'])}")
    if ratio is not None:
        text.append(f", met {100 * ratio:.4g} % of the time", style="dim")
    return text


def _derived(tables: Json, now: float) -> Iterator[Text]:
    """Yield a line for all tables together, then the tables of which there is more to say."""
    states: dict[str | None, list[str]] = {}
    for name, table in tables.items():
        states.setdefault(table["state"], []).append(name)
    if not tables or set(states) == {"off"}:
        yield Text("off")
        return
    if set(states) == {None}:
        yield Text(_UNKNOWN)
        return
    last = _largest(table["last_commit_at"] for table in tables.values())
    yield Text(
        f"{len(states.get('ok', ()))} of {len(tables) - len(states.get('off', ()))} tables up to date, "
        f"lag {_seconds(_largest(table['lag_seconds'] for table in tables.values()))}, "
        f"{_rate(_source_rate(tables))} rows/s, "
        f"committed {_ago(last, now)}"
    )
    for state in ("stopped", "failing"):
        for name in states.get(state, ()):
            yield Text(f"{name} {state}: {tables[name]['reason'] or 'see the log'}", style="red")
    for name in states.get("late", ()):
        yield Text(f"{name} is {_seconds(tables[name]['lag_seconds'])} behind", style="yellow")
    for name in states.get("catching_up", ()):
        days = tables[name]["days_left"]
        yield Text(f"{name}: {_count(days)} past day{'' if days == 1 else 's'} left")
    for name, table in tables.items():
        if tenants := table.get("limited_tenants"):
            yield Text(
                f"{name}: {_count(tenants)} tenant{'' if tenants == 1 else 's'} at the limit", style="yellow"
            )
        if ratio := table.get("unmatched_ratio"):
            of_bound = f"{math.floor(100 * ratio)} % of derive.unmatched_spans_per_day_max"
            yield Text(f"{name}: a tenant has {of_bound} today", style="yellow")
    if waiting := states.get("waiting"):
        yield Text(f"waiting for first data: {', '.join(waiting)}", style="dim")
    if off := states.get("off"):
        yield Text(f"off: {', '.join(off)}", style="dim")


def _source_rate(tables: Json) -> float | None:
    """Return the derived rows of all sources. Each row counts once, however many tables it goes to."""
    rates: dict[str, float] = {}
    for table in tables.values():
        if (rate := table["rows_per_second"]) is not None:
            rates[table["source"]] = max(rate, rates.get(table["source"], 0.0))
    return sum(rates.values()) if rates else None


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _maintenance(maintain: Json, now: float) -> Text:
    text = Text()
    for name, task in maintain["tasks"].items():
        failed = task["runs"].get("failed", 0)
        text.append(", " if text else "")
        text.append(f"{name} {_ago(task['last_at'], now)}")
        if failing := ", ".join(task.get("failing", ())):
            text.append(f" ({_count(failed)} failed, most recently {failing})", style="red")
        elif failed:
            text.append(f" ({_count(failed)} failed)", style="dim")
    waiting = sum(each["bytes"] or 0 for each in maintain["waiting"].values())
    text.append("; " if text else "no task has run yet; ")
    text.append(f"{_bytes(waiting)} to compact" if waiting else "nothing to compact")
    return text


def _rate(value: float | None) -> str:
    if value is None:
        return _UNKNOWN
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def _count(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:,.0f}"


def _bytes(value: float | None) -> str:
    return _UNKNOWN if value is None else bytes_text(value)


def _seconds(value: float | None) -> str:
    return _UNKNOWN if value is None else seconds_text(value)


def _age(seconds: float | None) -> str:
    if seconds is None:
        return _UNKNOWN
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.{0 if seconds >= 10 * length else 1}f} {unit}"
    return f"{seconds:.0f} s"


def _ago(at: float | None, now: float) -> str:
    return _UNKNOWN if at is None else f"{_age(max(0.0, now - at))} ago"
