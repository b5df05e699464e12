"""SQL: an editor, results and charts.

The URL has the query in `q`. A link with `run=1` runs the query once, within the limits of every query;
without it the query is only shown. When a user runs a query, it is written to the URL without `run`.
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

from frazil.dashboard import theme
from frazil.dashboard.api_client import ApiError, SqlResult
from frazil.dashboard.format import escape_markdown, format_count, format_elapsed, format_size
from frazil.dashboard.parts.sql_editor import Mark, sql_editor
from frazil.dashboard.sql import quick_chart, result_table
from frazil.dashboard.sql import text as sql_text
from frazil.dashboard.sql.background_query import BackgroundQuery
from frazil.dashboard.sql.chart import show_result_chart
from frazil.dashboard.view import View, show_error

_HISTORY_MAX = 20
_WAIT_SECONDS = 0.6
"""A result within this time is shown without a progress bar before it."""
_POLL_SECONDS = 0.7
_TABLES_CACHE_SECONDS = 60
_MIMES = {"csv": "text/csv", "parquet": "application/vnd.apache.parquet", "json": "application/json"}
_EDITOR = "sql_editor"
_ROWS_IN_VIEW = 13


@dataclass
class _PageState:
    sql: str = sql_text.DEFAULT
    version: int = 0
    """Incremented when `sql` is to replace the text of the editor."""
    url_sql: str | None = None
    """The query in the URL, as last written or read."""
    query: BackgroundQuery | None = None
    history: list[tuple[dt.datetime, str]] = field(default_factory=list)

    def replace_text(self, sql: str) -> None:
        self.sql, self.version = sql, self.version + 1

    def run(self, view: View, sql: str) -> None:
        self.stop()
        self.sql = sql
        self.query = BackgroundQuery(view.api, sql, result_table.ROWS_SHOWN_MAX + 1)
        self.history = [(dt.datetime.now(dt.UTC), sql), *(old for old in self.history if old[1] != sql)]
        del self.history[_HISTORY_MAX:]

    def stop(self) -> None:
        if self.query is not None and not self.query.wait(0):
            with contextlib.suppress(ApiError):  # then the limits of the server end it
                self.query.stop()

    @property
    def is_running(self) -> bool:
        return self.query is not None and not self.query.wait(0)


def page(view: View) -> None:
    state: _PageState = st.session_state.setdefault("sql_state", _PageState())
    _read_address(view, state)
    if state.query is not None:
        state.query.wait(_WAIT_SECONDS)
    head, tools = st.columns([2, 3], vertical_alignment="bottom")
    head.title("SQL")
    with tools.container(horizontal=True, horizontal_alignment="right"):
        _show_tools(view, state)
    tables = _tables(view)
    sql_editor(
        state.sql,
        state.version,
        tables,
        _mark(state),
        is_running=state.is_running,
        key=_EDITOR,
        on_run=partial(_on_run, view, state),
        on_draft=partial(_on_draft, state),
    )
    if state.query is None:
        st.caption(
            "One SELECT statement in DuckDB's SQL dialect. Results include data that has not landed yet. The "
            "time range in the sidebar does not apply: use `time > now() - INTERVAL 1 HOUR`."
        )
    elif state.is_running:
        _show_waiting(state)
    else:
        _show_outcome(view, state, state.query)


def _read_address(view: View, state: _PageState) -> None:
    given = st.query_params.get("q")
    if given is not None and given != state.url_sql:
        state.url_sql = given
        state.replace_text(given)
        state.query = None
    if st.query_params.get("run") == "1":
        del st.query_params["run"]
        if given:
            state.run(view, given)
    if given is None and state.url_sql is not None:  # back from another page
        st.query_params["q"] = state.url_sql


def _write_address(state: _PageState, sql: str) -> None:
    state.url_sql = sql if sql_text.can_be_shared(sql) else None
    if state.url_sql is None:
        st.query_params.pop("q", None)
    else:
        st.query_params["q"] = sql


def _on_run(view: View, state: _PageState) -> None:
    sql = st.session_state[_EDITOR].run
    if sql and sql.strip():
        _write_address(state, sql)
        state.run(view, sql)


def _on_draft(state: _PageState) -> None:
    draft = st.session_state[_EDITOR].draft
    if draft is not None:
        state.sql = draft


def _tables(view: View) -> list[dict[str, Any]]:
    """Returns names, types and descriptions of tables, and of functions as one more group. If the request
    fails, shows why, and the editor still works.
    """
    try:
        found = view.api.get("tables", cache_seconds=_TABLES_CACHE_SECONDS)
    except ApiError as error:
        if error.is_auth_error:
            raise
        show_error(error, view.retry_seconds)
        return []
    tables = [
        {
            "name": table["name"],
            "is_table": True,
            "doc": table["doc"],
            "note": "view" if table["is_view"] else f"{format_count(table['rows'])} rows",
            "columns": [
                {name: column[name] for name in ("name", "type", "doc")} for column in table["columns"]
            ],
        }
        for table in found["tables"]
    ]
    functions = {
        "name": "functions",
        "is_table": False,
        "doc": "SQL functions of frazil. All functions of DuckDB can be used too.",
        "note": "",
        "columns": [
            {"name": each["name"], "type": each["arguments"], "doc": each["doc"]}
            for each in found.get("functions", ())
        ],
    }
    return [*tables, functions]


def _mark(state: _PageState) -> Mark | None:
    query = state.query
    if query is None or query.error is None or query.error.position is None or query.sql != state.sql:
        return None
    offset = sql_text.browser_offset(query.sql, query.error.position)
    return Mark(offset, query.error.message)


def _show_tools(view: View, state: _PageState) -> None:
    """Shows examples, history and sharing. A popover closes when a query is chosen: its key changes."""
    with (
        st.container(key="sql_examples", width="content"),
        st.popover("Examples", icon=":material/lightbulb:", key=f"sql_examples_{state.version}"),
    ):
        for number, (name, sql) in enumerate(sql_text.EXAMPLES.items()):
            _query_button(view, state, name, sql, f"sql_example_{number}", None)
    with (
        st.container(key="sql_history", width="content"),
        st.popover("History", icon=":material/history:", key=f"sql_history_of_{state.version}"),
    ):
        if not state.history:
            st.caption("Queries that you run in this session appear here.")
        for number, (at, sql) in enumerate(state.history):
            name = f"{at:%H:%M:%S}  {sql_text.title(sql, 60)}"
            _query_button(view, state, name, sql, f"sql_history_{number}", sql)
    with st.popover("Share", icon=":material/link:", key="sql_share"):
        _show_share(state)


def _query_button(view: View, state: _PageState, name: str, sql: str, key: str, help: str | None) -> None:
    def choose() -> None:
        state.replace_text(sql)
        _write_address(state, sql)
        state.run(view, sql)

    shown = None if help is None else f"```sql\n{help.replace('```', '')}\n```"
    st.button(escape_markdown(name), key=key, on_click=choose, type="tertiary", help=shown)


def _show_share(state: _PageState) -> None:
    sql = state.query.sql if state.query is not None else state.sql
    if not sql_text.can_be_shared(sql):
        st.caption("The query is too long for a link. Save it as a file.")
        return
    runs = st.toggle("Run when opened", key="sql_share_runs")
    url = urlsplit(st.context.url or "")
    address = f"{url.scheme}://{url.netloc}" if url.netloc else ""
    parameters = {"q": sql, "run": "1"} if runs else {"q": sql}
    st.code(f"{address}/sql?{urlencode(parameters)}", language=None, wrap_lines=True, height=120)
    st.caption("A link to the query as last run. Other users see only the data that their own key can read.")


@st.fragment(run_every=_POLL_SECONDS)
def _show_waiting(state: _PageState) -> None:
    query = state.query
    if query is None or query.wait(0):
        st.rerun()
    phase, percent = query.progress()
    left, right = st.columns([5, 1], vertical_alignment="center")
    label = {"waiting": "Waiting for a free worker", "planning": "Planning", "running": "Running"}[phase]
    done = "" if percent is None or percent <= 0 else f", {percent:.0f} %"
    left.progress(min(1.0, max(percent or 0.0, 0.0) / 100), f"{label}: {format_elapsed(query.seconds)}{done}")
    if right.button("Stop", key="sql_stop", icon=":material/stop_circle:", width="stretch"):
        try:
            query.stop()
        except ApiError as error:
            query.error = error
        st.rerun()


def _show_outcome(view: View, state: _PageState, query: BackgroundQuery) -> None:
    if query.error is not None:
        show_error(query.error, key="sql_outcome", on_retry=partial(state.run, view, query.sql))
        if query.error.position is not None:
            st.code(sql_text.excerpt(query.sql, query.error.position), language=None)
    elif query.result is not None:
        _show_result(view, query, query.result)
    else:
        st.info(f"Stopped after {format_elapsed(query.seconds)}.", icon=":material/stop_circle:")


def _show_result(view: View, query: BackgroundQuery, result: SqlResult) -> None:
    table = result_table.shown(result.table)
    summary, files = st.columns([3, 2], vertical_alignment="center")
    summary.caption(_summary(table.num_rows, result, query.seconds))
    if table.num_rows:
        with files.container(horizontal=True, horizontal_alignment="right"):
            _show_downloads(view, query.sql)
    if table.num_rows < result.table.num_rows:
        st.caption(
            f":material/info: The first {table.num_rows:,} rows are shown. A download has all rows, up to "
            "the limits of the server."
        )
    if missing := result.stats.get("missing"):
        st.warning(escape_markdown("Incomplete result: " + "; ".join(missing)), icon=":material/warning:")
    choice = quick_chart.choose(table)
    if choice is None:
        _show_table(table, query, result)
        return
    as_table, as_chart = st.tabs(["Table", "Chart"])
    with as_table:
        _show_table(table, query, result)
    with as_chart:
        show_result_chart(table, choice)


def _summary(count_shown: int, result: SqlResult, seconds: float) -> str:
    stats = result.stats
    is_cut = result.table.num_rows > result_table.ROWS_SHOWN_MAX
    count = f"More than {count_shown:,} rows" if is_cut else _many(result.table.num_rows, "row")
    read = [f"{_many(stats.get('files', 0), 'file')} of {stats.get('files_total', 0):,}"]
    if stats.get("bytes"):
        read.append(f"({format_size(stats['bytes'])})")
    if stats.get("tail_rows"):
        read.append(f"and {_many(stats['tail_rows'], 'row')} that had not landed yet")
    return f"**{count}** in **{format_elapsed(seconds)}**. Read {' '.join(read)}."


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _show_downloads(view: View, sql: str) -> None:
    """Shows download buttons, which run the query again."""
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


def _show_table(table: pa.Table, query: BackgroundQuery, result: SqlResult) -> None:
    traces = result_table.trace_columns(table, result.table.column_names)
    cells = result_table.as_cells(table, traces)
    link = st.column_config.LinkColumn(display_text=result_table.TRACE_LINK_TEXT)

    @st.fragment
    def grid() -> None:
        state = st.dataframe(
            cells,
            hide_index=True,
            height=theme.table_height(cells.num_rows, _ROWS_IN_VIEW),
            column_config=dict.fromkeys(traces, link),
            placeholder="NULL",
            on_select="rerun",
            selection_mode="single-cell",
            key=f"sql_rows_{query.id}",
        )
        chosen = state.selection.cells
        if not chosen:
            st.caption("Click a cell to read its complete value below.")
            return
        row, column = chosen[0]
        text = result_table.full_text(result.table, row, column)
        st.caption(f"Row {row + 1:,}, {escape_markdown(column)}")
        with st.container(key="sql_value"):
            st.code(text, language=None, wrap_lines=True)

    grid()
