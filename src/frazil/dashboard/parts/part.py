"""How a part gets into the page: its own JavaScript and CSS, named as its module, after what all share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

_DOM = Path(__file__).with_name("dom.js")


def part(module: str, html: str) -> Any:
    """What mounts the part of `module`, a `__file__`. To be called once, when that is imported."""
    path = Path(module)
    return st.components.v2.component(
        f"frazil_{path.stem}",
        html=html,
        css=path.with_suffix(".css").read_text(encoding="utf-8"),
        js="".join(file.read_text(encoding="utf-8") for file in (_DOM, path.with_suffix(".js"))),
    )
