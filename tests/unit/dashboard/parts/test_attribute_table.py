from __future__ import annotations

from frazil.dashboard.parts.traces import attribute_rows
from frazil.dashboard.traces.read import Attribute

HOSTILE = '<img src=x onerror="alert(1)">&'
ESCAPED = "&lt;img src=x onerror=&quot;alert(1)&quot;&gt;&amp;"


def test_text_of_strangers_stays_text() -> None:
    rows = attribute_rows([Attribute(HOSTILE, HOSTILE, "string")], has_links=False)
    assert rows == f"<tr><td>{ESCAPED}</td><td>{ESCAPED}</td><td>string</td></tr>"


def test_a_plain_value_leads_to_the_traces_that_have_it() -> None:
    rows = attribute_rows([Attribute("http.route", '/a b"&', "string")], has_links=True)
    assert 'href="traces?attr=http.route%3D%2Fa+b%22%26"' in rows


def test_what_cannot_be_asked_for_leads_nowhere() -> None:
    listed = [
        Attribute("list", "[1]", "array"),
        Attribute("none", "", "string"),
        Attribute("long", "x" * 201, "string"),
        Attribute("a=b", "x", "string"),
    ]
    assert "<a " not in attribute_rows(listed, has_links=True)


def test_a_value_that_nobody_could_read_is_cut_and_says_so() -> None:
    rows = attribute_rows([Attribute("k", "x" * 5_000, "string")], has_links=True)
    assert f"<td>{'x' * 4_000} … (5,000 characters)</td>" in rows
