"""The SQL editor with the list of tables: see sql_editor.js."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frazil.dashboard.parts.component import component

_HTML = """
<div class="frame">
  <div class="pane">
    <div class="editor">
      <pre class="paint" aria-hidden="true"></pre>
      <textarea class="text" spellcheck="false" autocapitalize="off" autocomplete="off" wrap="soft"
                aria-label="SQL" data-testid="sql-text"></textarea>
    </div>
    <div class="bar">
      <button type="button" class="run" data-testid="sql-run">Run</button>
      <span class="hint"></span>
    </div>
  </div>
  <div class="pane side">
    <input class="filter" type="search" placeholder="Filter tables and columns" aria-label="Filter columns"
           data-testid="sql-filter">
    <div class="tree" role="tree" data-testid="sql-tables"></div>
  </div>
</div>
"""
_mount = component("sql_editor", _HTML)


@dataclass(frozen=True)
class Mark:
    """The position of an error in the query, in UTF-16 units."""

    offset: int
    message: str


def sql_editor(
    sql: str,
    version: int,
    tables: Sequence[Mapping[str, Any]],
    mark: Mark | None,
    *,
    is_running: bool,
    key: str,
    on_run: Callable[[], None],
    on_draft: Callable[[], None],
) -> None:
    """Shows the editor. The browser holds the text while the user types; `sql` replaces the text when
    `version` changes.

    `st.session_state[key]` has `run` (the text to run, once) and `draft` (the text when the editor lost
    focus).
    """
    _mount(
        key=key,
        data={
            "sql": sql,
            "version": version,
            "tables": tables,
            "mark": None if mark is None else {"offset": mark.offset, "message": mark.message},
            "running": is_running,
        },
        on_run_change=on_run,
        on_draft_change=on_draft,
    )
