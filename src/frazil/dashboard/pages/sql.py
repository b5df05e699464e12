"""Ask anything: SQL over all tables.

A link has the question in `q`. It is shown and not run, unless `run=1` is there too: then it runs once,
within the limits of every question (it can only read). What a person runs is put into the address, without
`run`: who opens it decides.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlencode, urlsplit

import pyarrow as pa
import streamlit as st

from frazil.dashboard import format as words
from frazil.dashboard.api_client import ApiError, Rows
from frazil.dashboard.asking import Asking
from frazil.dashboard.errors import show_trouble
from frazil.dashboard.parts.sql_editor import Mark, sql_editor
from frazil.dashboard.sql import quick_chart, result_table
from frazil.dashboard.sql import text as sql_text
from frazil.dashboard.sql.chart import show_chart
from frazil.dashboard.sql.examples import DEFAULT, EXAMPLES
from frazil.dashboard.view import View

_HISTORY_MAX = 20
_PATIENCE_SECONDS = 0.6
"""An answer that comes this soon is shown at once, without a sign of waiting before it."""
_LOOK_AGAIN_SECONDS = 0.7
_TABLES_FRESH_SECONDS = 60
_MIMES = {"csv": "text/csv", "parquet": "application/vnd.apache.parquet", "json": "application/json"}
_EDITOR = "sql_editor"


@dataclass
class _Desk:
    """What lies on this session's desk."""

    sql: str = DEFAULT
    version: int = 0
    """Rises when `sql` is to replace what the editor holds."""
    seen: str | None = None
    """The question of the address, as last written or read."""
    asking: Asking | None = None
    history: list[tuple[dt.datetime, str]] = field(default_factory=list)

    def put(self, sql: str) -> None:
        self.sql, self.version = sql, self.version + 1

    def run(self, view: View, sql: str) -> None:
        self.stop()
        self.sql = sql
        self.asking = Asking(view.api, sql, result_table.ROWS_SHOWN_MAX + 1)
        self.history = [(dt.datetime.now(dt.UTC), sql), *(old for old in self.history if old[1] != sql)]
        del self.history[_HISTORY_MAX:]

    def stop(self) -> None:
        if self.asking is not None and not self.asking.wait(0):
            with contextlib.suppress(ApiError):  # it ends by the server's limits then
                self.asking.stop()

    @property
    def is_running(self) -> bool:
        return self.asking is not None and not self.asking.wait(0)


def page(view: View) -> None:
    desk: _Desk = st.session_state.setdefault("sql_desk", _Desk())
    _read_address(view, desk)
    if desk.asking is not None:
        desk.asking.wait(_PATIENCE_SECONDS)
    head, tools = st.columns([2, 3], vertical_alignment="bottom")
    head.title("SQL")
    with tools.container(horizontal=True, horizontal_alignment="right"):
        _show_tools(view, desk)
    sql_editor(
        desk.sql,
        desk.version,
        _tables(view),
        _mark(desk),
        is_running=desk.is_running,
        key=_EDITOR,
        on_run=partial(_on_run, view, desk),
        on_draft=partial(_on_draft, desk),
    )
    if desk.asking is None:
        st.caption(
            "One SELECT statement in DuckDB's SQL dialect. Results include data that has not landed yet. The "
            "time range in the sidebar does not apply: use `time > now() - INTERVAL 1 HOUR`."
        )
    elif desk.is_running:
        _show_waiting(desk)
    else:
        _show_answer(view, desk.asking)


def _read_address(view: View, desk: _Desk) -> None:
    given = st.query_params.get("q")
    if given is not None and given != desk.seen:
        desk.seen = given
        desk.put(given)
        desk.asking = None
    if st.query_params.get("run") == "1":
        del st.query_params["run"]
        if given:
            desk.run(view, given)
    if given is None and desk.seen is not None:  # back from another page
        st.query_params["q"] = desk.seen


def _write_address(desk: _Desk, sql: str) -> None:
    desk.seen = sql if sql_text.can_be_shared(sql) else None
    if desk.seen is None:
        st.query_params.pop("q", None)
    else:
        st.query_params["q"] = sql


def _on_run(view: View, desk: _Desk) -> None:
    sql = st.session_state[_EDITOR].run
    if sql and sql.strip():
        _write_address(desk, sql)
        desk.run(view, sql)


def _on_draft(desk: _Desk) -> None:
    draft = st.session_state[_EDITOR].draft
    if draft is not None:
        desk.sql = draft


def _tables(view: View) -> list[dict[str, Any]]:
    """Names, types and meanings alone. Without them the editor still works."""
    try:
        tables = view.api.get("tables", fresh_seconds=_TABLES_FRESH_SECONDS)["tables"]
    except ApiError as trouble:
        if trouble.is_about_the_key:
            raise
        return []
    return [
        {
            "name": table["name"],
            "doc": table["doc"],
            "note": "view" if table["is_view"] else f"{words.count(table['rows'])} rows",
            "columns": [
                {name: column[name] for name in ("name", "type", "doc")} for column in table["columns"]
            ],
        }
        for table in tables
    ]


def _mark(desk: _Desk) -> Mark | None:
    asking = desk.asking
    if asking is None or asking.trouble is None or asking.trouble.position is None or asking.sql != desk.sql:
        return None
    offset = sql_text.browser_offset(asking.sql, asking.trouble.position)
    return Mark(offset, asking.trouble.message)


def _show_tools(view: View, desk: _Desk) -> None:
    """A list that something was taken from closes: it is another one then."""
    with (
        st.container(key="sql_examples", width="content"),
        st.popover("Examples", icon=":material/lightbulb:", key=f"sql_examples_{desk.version}"),
    ):
        for number, (name, sql) in enumerate(EXAMPLES.items()):
            _take_button(view, desk, name, sql, f"sql_example_{number}", None)
    with (
        st.container(key="sql_history", width="content"),
        st.popover("History", icon=":material/history:", key=f"sql_history_of_{desk.version}"),
    ):
        if not desk.history:
            st.caption("Queries that you run in this session appear here.")
        for number, (at, sql) in enumerate(desk.history):
            name = f"{at:%H:%M:%S}  {sql_text.title(sql, 60)}"
            _take_button(view, desk, name, sql, f"sql_history_{number}", sql)
    with st.popover("Share", icon=":material/link:", key="sql_share"):
        _show_share(desk)


def _take_button(view: View, desk: _Desk, name: str, sql: str, key: str, help: str | None) -> None:
    def take() -> None:
        desk.put(sql)
        _write_address(desk, sql)
        desk.run(view, sql)

    shown = None if help is None else f"```sql\n{help.replace('```', '')}\n```"
    st.button(words.plain(name), key=key, on_click=take, type="tertiary", help=shown)


def _show_share(desk: _Desk) -> None:
    sql = desk.asking.sql if desk.asking is not None else desk.sql
    if not sql_text.can_be_shared(sql):
        st.caption("The query is too long for a link. Save it as a file.")
        return
    runs = st.toggle("Run when opened", key="sql_share_runs")
    place = urlsplit(st.context.url or "")
    address = f"{place.scheme}://{place.netloc}" if place.netloc else ""
    parameters = {"q": sql, "run": "1"} if runs else {"q": sql}
    st.code(f"{address}/sql?{urlencode(parameters)}", language=None, wrap_lines=True, height=120)
    st.caption("The query as last run. Readers see the data that their own key can read.")


@st.fragment(run_every=_LOOK_AGAIN_SECONDS)
def _show_waiting(desk: _Desk) -> None:
    asking = desk.asking
    if asking is None or asking.wait(0):
        st.rerun()
    state, percent = asking.progress()
    left, right = st.columns([5, 1], vertical_alignment="center")
    phases = {
        "waiting": "Waiting for a free worker",
        "planning": "Planning",
        "running": "Running",
    }
    done = "" if percent is None or percent <= 0 else f", {percent:.0f} %"
    left.progress(
        min(1.0, max(percent or 0.0, 0.0) / 100), f"{phases[state]}: {words.ago(asking.seconds)}{done}"
    )
    if right.button("Stop", key="sql_stop", icon=":material/stop_circle:", width="stretch"):
        try:
            asking.stop()
        except ApiError as trouble:
            asking.trouble = trouble
        st.rerun()


def _show_answer(view: View, asking: Asking) -> None:
    if asking.trouble is not None:
        show_trouble(asking.trouble)
        if asking.trouble.position is not None:
            st.code(sql_text.excerpt(asking.sql, asking.trouble.position), language=None)
    elif asking.rows is not None:
        _show_rows(view, asking, asking.rows)
    else:
        st.info(f"Stopped after {words.ago(asking.seconds)}.", icon=":material/stop_circle:")


def _show_rows(view: View, asking: Asking, rows: Rows) -> None:
    table = result_table.shown(rows.table)
    said, files = st.columns([3, 2], vertical_alignment="center")
    said.caption(_summary(table.num_rows, rows, asking.seconds))
    if table.num_rows:
        with files.container(horizontal=True, horizontal_alignment="right"):
            _show_downloads(view, asking.sql)
    if table.num_rows < rows.table.num_rows:
        st.caption(
            f":material/info: The first {table.num_rows:,} rows are shown. A download has all rows, up to the "
            "limits of the server."
        )
    if missing := rows.stats.get("missing"):
        st.warning(words.plain("Incomplete result: " + "; ".join(missing)), icon=":material/warning:")
    choice = quick_chart.choose(table)
    if choice is None:
        _show_table(table)
        return
    as_table, as_chart = st.tabs(["Table", "Chart"])
    with as_table:
        _show_table(table)
    with as_chart:
        show_chart(table, choice)


def _summary(count_shown: int, rows: Rows, seconds: float) -> str:
    stats = rows.stats
    is_cut = rows.table.num_rows > result_table.ROWS_SHOWN_MAX
    count = f"More than {count_shown:,} rows" if is_cut else _many(rows.table.num_rows, "row")
    read = [f"{_many(stats.get('files', 0), 'file')} of {stats.get('files_total', 0):,}"]
    if stats.get("bytes"):
        read.append(f"({words.size(stats['bytes'])})")
    if stats.get("tail_rows"):
        read.append(f"and {_many(stats['tail_rows'], 'row')} that had not landed yet")
    return f"**{count}** in **{words.ago(seconds)}**. Read {' '.join(read)}."


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _show_downloads(view: View, sql: str) -> None:
    """The question is asked again, whole, when one clicks."""
    for format in ("csv", "parquet", "json"):
        st.download_button(
            format.upper() if format != "parquet" else "Parquet",
            _file(view, sql, format),
            file_name=f"frazil.{format}",
            mime=_MIMES[format],
            on_click="ignore",
            key=f"sql_download_{format}",
            icon=":material/download:",
            help="Re-runs the query and downloads all rows",
        )


def _file(view: View, sql: str, format: str) -> Callable[[], bytes]:
    return lambda: view.api.download(sql, (), format)


def _show_table(table: pa.Table) -> None:
    times = [
        name
        for name, kind in zip(table.column_names, table.schema.types, strict=True)
        if pa.types.is_timestamp(kind)
    ]
    time = st.column_config.DatetimeColumn(format="YYYY-MM-DD HH:mm:ss.SSS", timezone="UTC")
    st.dataframe(
        table,
        hide_index=True,
        height=min(460, 38 + 35 * max(1, table.num_rows)),
        column_config=dict.fromkeys(times, time),
        key="sql_rows",
    )
