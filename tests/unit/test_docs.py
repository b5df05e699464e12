"""The documentation leads somewhere: its links, and the commands, make targets and keys that it names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command

from frazil.cli import app
from frazil.sql.functions import FUNCTIONS, TABLE_FUNCTIONS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
_FENCED = re.compile(r"^(```|~~~).*?^\1$", flags=re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def _prose(page: Path) -> str:
    """Without code blocks, whose brackets are not links."""
    return _FENCED.sub("", page.read_text())


@cache
def _anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings: the second of a name gets -1."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+)$", _prose(page), flags=re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = 0
        while (name := anchor if number == 0 else f"{anchor}-{number}") in found:
            number += 1
        found.add(name)
    return found


def _links(page: Path) -> Iterator[str]:
    for link in _LINK.findall(_prose(page)):
        if not link.startswith(("http://", "https://", "mailto:")):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_of_a_page_leads_somewhere(page: Path) -> None:
    lost = []
    for link in _links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in _anchors(target)):
            lost.append(link)
    assert lost == []


def test_the_index_names_every_page_and_every_decision_is_in_the_design() -> None:
    indexed = {(DOCS / link.partition("#")[0]).resolve() for link in _links(DOCS / "README.md")}
    pages = {*DOCS.glob("*.md"), DOCS / "frazil.example.yaml"} - {DOCS / "README.md"}
    assert {page.name for page in pages - indexed} == set()
    named = {(DOCS / link).resolve() for link in _links(DOCS / "design.md") if link.startswith("decisions/")}
    assert {page.name for page in set((DOCS / "decisions").glob("*.md")) - named} == set()


def test_every_sql_function_is_documented() -> None:
    listed = (DOCS / "querying.md").read_text().partition("## Functions\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(\w+)\([^)]*\)`", listed)) >= {
        each.name for each in (*FUNCTIONS, *TABLE_FUNCTIONS)
    }


def test_make_targets_that_pages_name_are_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"(?:`|^)make ([a-z][a-z-]*)", page.read_text(), flags=re.MULTILINE))
        assert named <= targets, page


def test_commands_that_pages_name_are_commands_of_frazil() -> None:
    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    for page in PAGES:
        text = page.read_text()
        code = [match.group() for match in _FENCED.finditer(text)]
        named = set(re.findall(r"(?:^|/bin/)frazil ([a-z][a-z-]+)", "\n".join(code), flags=re.MULTILINE))
        named |= set(re.findall(r"`frazil ([a-z][a-z-]+)", text))
        assert named <= known, page


def test_configuration_keys_that_pages_name_are_known() -> None:
    """Dotted keys in backticks, such as `land.bytes_min`. Those of Spark may be its own, and the page on
    self-observability has names of spans that look alike.
    """
    example = (DOCS / "frazil.example.yaml").read_text()
    sections = set(re.findall(r"^([a-z_]+):", example, flags=re.MULTILINE))
    words = set(re.findall(r"([a-z0-9_]+):", example))
    for page in (page for page in PAGES if page.name != "self-observability.md"):
        for key in re.findall(r"`([a-z_]+(?:\.[a-z0-9_]+)+)`", _prose(page)):
            section, *rest = key.split(".")
            if section in sections - {"spark"} and not key.endswith(
                (".py", ".md", ".db", ".yaml", ".secret")
            ):
                assert set(rest) <= words, f"{page.name}: {key}"


def test_the_sizing_table_is_what_its_arithmetic_gives() -> None:
    """Cores from the planned speeds, the lake from the planned bytes; both are on the same page."""
    table = (DOCS / "tuning.md").read_text().partition("### The arithmetic")[2].partition("### Memory")[0]
    rows = re.findall(r"^\| ([\d,]+) \|(.*)\|$", table, flags=re.MULTILINE)
    assert len(rows) >= 4
    scale = {"MB": 1e6, "GB": 1e9, "TB": 1e12}
    for rate_text, rest in rows:
        rate, cells = float(rate_text.replace(",", "")), [cell.strip() for cell in rest.split("|")]
        receive, land, merge, in_all = (float(cell) for cell in cells[:4])
        cores = rate / 100_000, rate / 120_000, rate * 1.5 / 150_000
        assert (receive, land, merge) == pytest.approx(cores, abs=0.006, rel=0.01)
        assert in_all == pytest.approx(sum(cores), rel=0.07)
        log, log_unit = cells[4].split()
        assert float(log) * scale[log_unit] == pytest.approx(rate * 80 * 660, rel=0.02)
        for cell, days in ((cells[5], 1), (cells[6], 30)):
            span, unit = cell.split()
            for shown, record_bytes in zip(span.split("–"), (44, 66), strict=True):
                stored = rate * 86_400 * days * record_bytes
                assert float(shown) * scale[unit] == pytest.approx(stored, rel=0.05), cell
                if days == 30:
                    price = dict(zip((44, 66), cells[7].replace(",", "").split("–"), strict=True))
                    assert float(price[record_bytes]) == pytest.approx(stored / 1e9 * 0.023, rel=0.02)
