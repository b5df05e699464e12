"""Pipeline: the status of frazil itself, with roles, objectives, stages and tables."""

from __future__ import annotations

import datetime as dt
import html
from typing import Any

import altair as alt
import pandas as pd
import streamlit as st

from frazil.dashboard import pipeline_view, theme
from frazil.dashboard.api_client import ApiError
from frazil.dashboard.format import (
    escape_markdown,
    format_count,
    format_duration,
    format_elapsed,
    format_size,
)
from frazil.dashboard.view import View, show_error, show_fragment

_CACHE_SECONDS = 4.0
_STATES = {"ok": theme.GOOD, "degraded": theme.CAUTION, "down": theme.BAD}
_CHARTS = (
    ("received_records_per_second", "Records received/s", ",.3~s"),
    ("landed_rows_per_second", "Rows landed/s", ",.3~s"),
    ("backlog_bytes", "Not landed yet (bytes)", ",.3~s"),
    ("landing_lag_seconds", "Landing lag (s)", ",.3~f"),
    ("ack_p99_seconds", "Ack p99 (s)", ",.3~f"),
    ("queries_per_second", "Queries/s", ",.3~f"),
)
_LINE_COLOURS = {"logs": "#0e93b5", "spans": "#8e6bd8", "metrics": "#e07b39", "all": "#0e93b5"}
_STYLE = """<style>
.fz-flows{container-type:inline-size}
.fz-flow{display:grid;grid-template-columns:repeat(6,1fr);gap:.5rem;margin:.2rem 0}
@container (max-width:960px){.fz-flow{grid-template-columns:repeat(3,1fr)}}
@container (max-width:460px){.fz-flow{grid-template-columns:repeat(2,1fr)}}
.fz-card{border:1px solid rgba(128,150,165,.35);border-radius:.5rem;padding:.55rem .65rem;min-width:0}
.fz-card h4{margin:0;padding:0;font-size:.8rem;font-weight:600;opacity:.75}
.fz-card b{font-size:1.25rem;font-weight:600;white-space:nowrap}
.fz-card small{opacity:.7}
.fz-card b+small{margin-left:.3rem}
.fz-card dl~small{display:block;margin-top:.3rem;font-size:.75rem;line-height:1.35}
.fz-card dl{margin:.35rem 0 0;padding:0;display:grid;grid-template-columns:1fr auto;gap:.05rem .3rem;
font-size:.75rem;line-height:1.5}
.fz-card dt{opacity:.7;font-weight:400;margin:0;padding:0}
.fz-card dd{margin:0!important;padding:0;text-align:right;white-space:nowrap}
.fz-card p{margin:.3rem 0 0;font-size:.78rem;color:#e5484d}
.fz-roles{display:flex;flex-wrap:wrap;gap:.5rem 1.6rem;align-items:baseline;font-size:.9rem}
.fz-roles i{display:inline-block;width:.65em;height:.65em;border-radius:50%;margin-right:.45em}
.fz-roles small{opacity:.7;margin-left:.35em}
</style>"""


def page(view: View) -> None:
    st.title("Pipeline")
    st.html(_STYLE)
    show_fragment(_draw, view)
    _ledger(view)


def _draw(view: View) -> None:
    try:
        status = view.api.get("status", cache_seconds=_CACHE_SECONDS)
    except ApiError as error:
        if error.code != "forbidden":
            raise
        st.info(
            "This page covers all tenants: it needs a key with the role `admin`. The other pages show your "
            "tenant's data.",
            icon=":material/lock:",
        )
        return
    _roles(status)
    _objectives(status)
    cards = "".join(_card(card) for card in pipeline_view.cards(status))
    st.html(f'<div class="fz-flows"><div class="fz-flow">{cards}</div></div>')
    _charts(status)
    _tables(status)
    _derived(status)


def _roles(status: dict[str, Any]) -> None:
    marks = []
    for role in status["roles"]:
        facts = [format_elapsed(role["up_seconds"]), format_size(role["memory_bytes"])]
        detail = " · ".join(fact for fact in facts if fact != "–") or html.escape(role["url"])
        colour = _STATES[role["state"]]
        name = html.escape(role["name"])
        marks.append(f'<span><i style="background:{colour}"></i>{name}<small>{detail}</small></span>')
    st.html(f'<div class="fz-roles">{"".join(marks)}</div>')
    for role in status["roles"]:
        if role["state"] != "ok":
            reasons = escape_markdown("; ".join(role["reasons"]) or "no reason given")
            show = st.error if role["state"] == "down" else st.warning
            show(f"**{role['name']}** is {role['state']}: {reasons}", icon=":material/warning:")


def _objectives(status: dict[str, Any]) -> None:
    shown = [each for each in status["objectives"] if each["name"] in pipeline_view.OBJECTIVES]
    for column, each in zip(st.columns(max(1, len(shown))), shown, strict=True):
        title, meaning = pipeline_view.OBJECTIVES[each["name"]]
        ratio = "" if each["kept_ratio"] is None else f", met {each['kept_ratio']:.1%} of the time"
        value = None if each["value"] is None else each["value"] * 1000
        column.metric(
            title,
            format_duration(value),
            delta=f"objective {format_duration(each['target'] * 1000)}{ratio}",
            delta_color="normal" if each["kept"] else "inverse",
            delta_arrow="off",
            help=meaning,
            border=True,
        )


def _card(card: pipeline_view.Card) -> str:
    rows = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in card.lines)
    problem = f"<p>{html.escape(card.problem)}</p>" if card.problem else ""
    note = f"<small>{html.escape(card.note)}</small>" if card.note else ""
    return (
        f'<div class="fz-card"><h4>{html.escape(card.title)}</h4><b>{html.escape(card.headline)}</b>'
        f"<small>{html.escape(card.unit)}</small><dl>{rows}</dl>{problem}{note}</div>"
    )


def _charts(status: dict[str, Any]) -> None:
    for first in range(0, len(_CHARTS), 3):
        for column, (name, title, form) in zip(st.columns(3), _CHARTS[first : first + 3], strict=True):
            with column.container(border=True):
                st.markdown(f"**{title}**")
                _line(status, name, form)
    theme.legend({name: _LINE_COLOURS[name] for name in ("logs", "spans", "metrics")})


def _line(status: dict[str, Any], name: str, form: str) -> None:
    rows = pipeline_view.history_rows(status, name)
    data = pd.DataFrame(rows, columns=["time", "of", "value"])
    names = sorted(set(data["of"])) or ["all"]
    start, end = _ends(rows)
    chart = (
        alt.Chart(data)
        .mark_line()
        .encode(
            x=theme.time_axis("time", start, end),
            y=alt.Y("value:Q", title=None, axis=alt.Axis(format=form, tickCount=4)),
            color=alt.Color("of:N", legend=None, scale=theme.colour_scale(names, _LINE_COLOURS)),
            tooltip=[
                alt.Tooltip("of:N", title="signal"),
                theme.time_tooltip("time", start, end),
                alt.Tooltip("value:Q", format=form),
            ],
        )
    )
    theme.show_chart(chart, height=130, key=f"pipeline-{name}")


def _ends(rows: list[dict[str, Any]]) -> tuple[dt.datetime | None, dt.datetime | None]:
    times = [row["time"] for row in rows]
    return (min(times), max(times)) if len(set(times)) > 1 else (None, None)


def _tables(status: dict[str, Any]) -> None:
    rows = pipeline_view.table_rows(status)
    if not rows:
        return
    st.subheader("Tables")
    number = st.column_config.NumberColumn
    titles = {name: title for name, (title, _) in pipeline_view.TABLE_COLUMNS.items()}
    st.dataframe(
        pd.DataFrame(rows),
        column_config={
            **titles,
            "rows": number(titles["rows"], format="localized"),
            "tail": number(
                titles["tail"],
                format="localized",
                help="Acknowledged rows not in the table yet; queries include them",
            ),
            "bytes": number(titles["bytes"], format="%.1f MB"),
            "overlap": number(
                titles["overlap"],
                format="%.1f",
                help="Average number of files that cover one point in time; 1 is best",
            ),
            "small": number(
                titles["small"], help=f"Below the compaction target: {pipeline_view.SMALL_FILES}"
            ),
            "waiting": number(
                titles["waiting"], format="%.1f MB", help="Size of the small files that are to be merged now"
            ),
            "cost": number(titles["cost"], format="$%.4f", help="Estimate from maintain.storage_price"),
        },
        hide_index=True,
        width="stretch",
        key="pipeline-tables",
    )


def _derived(status: dict[str, Any]) -> None:
    rows = pipeline_view.derived_rows(status)
    if not rows:
        return
    st.subheader("Derived tables")
    if all(row["state"] == "off" for row in rows):
        st.caption("Derivation is off (`derive.enabled`). Rows that were derived before can be queried.")
        return
    for problem in pipeline_view.derive_problems(status):
        st.warning(escape_markdown(problem), icon=":material/warning:")
    titles = pipeline_view.DERIVED_COLUMNS
    st.dataframe(
        pd.DataFrame(rows, columns=list(titles)),
        column_config={
            **titles,
            "lag": st.column_config.TextColumn(
                titles["lag"], help="Time since the landing of the oldest rows that are not derived yet"
            ),
            "rate": st.column_config.NumberColumn(
                titles["rate"], format="%.1f", help="Rows of the source, in the last minute"
            ),
        },
        hide_index=True,
        width="stretch",
        key="pipeline-derived",
    )


def _ledger(view: View) -> None:
    """Runs only on request: it reads every position and counts rows."""
    st.subheader("Ledger")
    st.caption(
        "Checks that every acknowledged row is counted once: in its table, not landed yet, set aside, or "
        "deleted by a rule."
    )
    if not st.button("Verify row counts", key="balance", icon=":material/balance:"):
        return
    try:
        with st.spinner("Counting…"):
            ledger = view.api.get("status", {"ledger": "true", "history": "false"})["ledger"]
    except ApiError as error:
        show_error(error)
        return
    if ledger is None or ledger["state"] != "ready":
        reason = (ledger or {}).get("error") or "The rows are still being counted. Try again in a moment."
        st.warning(escape_markdown(reason), icon=":material/hourglass:")
        return
    if ledger["ok"]:
        durable = sum(table["durable"] for table in ledger["tables"].values())
        rows, seconds = format_count(durable), f"{ledger['seconds']:.1f} s"
        st.success(f"All rows accounted for: {rows} rows, checked in {seconds}.", icon=":material/check:")
    for problem in ledger["problems"]:
        st.error(escape_markdown(str(problem)), icon=":material/error:")
    number = st.column_config.NumberColumn
    config = {
        name: number(title, help=help, format="bytes" if name == "bytes" else "localized")
        for name, (title, help) in pipeline_view.LEDGER_COLUMNS.items()
        if name != "table"
    }
    st.dataframe(
        pd.DataFrame(pipeline_view.ledger_rows(ledger)),
        column_config={"table": "Table", **config},
        hide_index=True,
        width="stretch",
        key="pipeline-ledger",
    )
