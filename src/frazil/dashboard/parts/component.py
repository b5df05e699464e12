"""Registers a browser component with Streamlit: NAME.js and, if it has a style, NAME.css in this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

_FOLDER = Path(__file__).parent


def component(name: str, html: str) -> Any:
    """Returns the function that mounts the component. Call it once, when a module is imported."""
    scripts = (_FOLDER / "dom.js", _FOLDER / f"{name}.js")
    return st.components.v2.component(
        f"frazil_{name}",
        html=html,
        css=style.read_text(encoding="utf-8") if (style := _FOLDER / f"{name}.css").exists() else None,
        js="".join(script.read_text(encoding="utf-8") for script in scripts),
    )
