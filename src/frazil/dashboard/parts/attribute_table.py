"""Attributes with their types: close together, to be read and copied."""

from __future__ import annotations

import html
from collections.abc import Sequence
from urllib.parse import urlencode

import streamlit as st

from frazil.dashboard.traces.read import Attribute

_VALUE_CHARS_MAX = 4_000
_SOUGHT_CHARS_MAX = 200
_SOUGHT_TYPES = ("string", "int", "bool")
_STYLE = """<style>
table.attributes{width:100%;table-layout:fixed;border-collapse:collapse;font-size:.82rem;margin:0}
table.attributes td{border:0;border-bottom:1px solid rgba(128,140,150,.22);padding:.22rem .5rem .22rem 0;
  vertical-align:top;overflow-wrap:anywhere}
table.attributes td:nth-child(1){width:36%;opacity:.75}
table.attributes td:nth-child(2){white-space:pre-wrap}
table.attributes td:nth-child(3){width:4.2rem;opacity:.55;text-align:right;padding-right:0}
table.attributes a{text-decoration:none;opacity:.0;margin-left:.4rem}
table.attributes tr:hover a,table.attributes a:focus{opacity:1}
</style>"""


def attribute_table(title: str, listed: Sequence[Attribute], *, is_sought: bool = False) -> None:
    """With `is_sought` each leads to the traces that have the same."""
    if not listed:
        st.caption(f"{title}: none")
        return
    st.caption(title)
    rows = attribute_rows(listed, is_sought=is_sought)
    st.html(f'{_STYLE}<table class="attributes" data-testid="attributes"><tbody>{rows}</tbody></table>')


def attribute_rows(listed: Sequence[Attribute], *, is_sought: bool) -> str:
    """As HTML, in which nothing that was sent is more than text."""
    return "".join(_row(item, is_sought) for item in listed)


def _row(item: Attribute, is_sought: bool) -> str:
    value = html.escape(item.text[:_VALUE_CHARS_MAX])
    if len(item.text) > _VALUE_CHARS_MAX:
        value += f" … ({len(item.text):,} characters)"
    link = _link(item) if is_sought else ""
    return f"<tr><td>{html.escape(item.key)}</td><td>{value}{link}</td><td>{item.type}</td></tr>"


def _link(item: Attribute) -> str:
    if (
        item.type not in _SOUGHT_TYPES
        or not 0 < len(item.text) <= _SOUGHT_CHARS_MAX
        or set(item.key) & {"=", ":"}
    ):
        return ""  # the API takes the first of either for the end of the key
    address = html.escape(f"traces?{urlencode({'attr': f'{item.key}={item.text}'})}")
    return f'<a href="{address}" target="_self" title="Find traces with this attribute">⌕</a>'
