"""The calls between services as a table, and what a page says about the calls that it does not have."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from frazil.dashboard import theme
from frazil.dashboard.format import message_markdown, rate_unit
from frazil.dashboard.parts.services import KINDS
from frazil.dashboard.services.graph import Call, CallGraph
from frazil.dashboard.services.read import Calls
from frazil.dashboard.view import address

_ROWS_IN_VIEW = 12
_LINK_PIXELS, _SHARE_PIXELS = 60, 96


def show_connections(calls: Sequence[Call], *, key: str) -> None:
    number = st.column_config.NumberColumn
    unit, seconds = rate_unit(max((call.load.per_second for call in calls), default=0))
    st.dataframe(
        pd.DataFrame(
            {
                "caller": [call.caller.name for call in calls],
                "callee": [call.callee.name for call in calls],
                "kind": [KINDS.get(call.callee.kind, call.callee.kind) for call in calls],
                "protocol": [", ".join(call.protocols) for call in calls],
                "rate": [call.load.per_second * seconds for call in calls],
                "failed": [100 * call.load.error_share for call in calls],
                "p50": [call.load.p50_ms for call in calls],
                "p99": [call.load.p99_ms for call in calls],
                "traces": [address("traces", service=call.caller.name) for call in calls],
            }
        ),
        column_config={
            "caller": "Caller",
            "callee": "Callee",
            "kind": "Kind",
            "protocol": "Protocol",
            "rate": number(f"Calls/{unit}", format="%.3g"),
            "failed": st.column_config.ProgressColumn(
                "Failed", format="%.2f%%", min_value=0, max_value=100, width=_SHARE_PIXELS
            ),
            "p50": number("p50", format="%.1f ms", help="As the caller saw it"),
            "p99": number("p99", format="%.1f ms", help="As the caller saw it"),
            "traces": st.column_config.LinkColumn(
                "", display_text="traces", width=_LINK_PIXELS, help="Traces of the caller"
            ),
        },
        hide_index=True,
        width="stretch",
        height=theme.table_height(len(calls), _ROWS_IN_VIEW),
        key=key,
    )


def show_notes(calls: Calls) -> None:
    """Shows why the map has no calls, or lacks some."""
    table = calls.table
    if table.state == "off":
        older = " The map shows what was derived before." if calls.graph.calls else ""
        st.info(f"{table.note}{older}", icon=":material/hub:")
    elif table.note:
        st.info(table.note, icon=":material/hourglass:")
    for reason in calls.missing:
        st.warning(f"Incomplete map: {message_markdown(reason)}", icon=":material/warning:")


def show_left_out(shown: CallGraph, calls: Calls) -> None:
    """Shows how many nodes and calls the map does not have."""
    parts = []
    if shown.nodes_left_out:
        parts.append(f"{shown.nodes_left_out:,} other nodes")
    if left_out := shown.calls_left_out + calls.edges_left_out:
        parts.append(f"{left_out:,} other connections")
    if parts:
        st.caption(
            f"The map shows the nodes and connections with the most calls. {' and '.join(parts)} are not "
            "shown: search for a name to see them."
        )
