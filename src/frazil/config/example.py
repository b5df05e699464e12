"""The configuration as a file: every key with its default, what it does and what it costs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from frazil.config.model import Config
from frazil.config.source import container_of, model_of
from frazil.config.values import format_bytes

_HEAD = """\
# frazil.yaml: every key, with its default. Keep what you change, drop the rest.
# Each key can also come from the environment, which wins: FRAZIL_WAL__LOCAL__FREE_BYTES_MIN=1GiB
# (lists and sections as JSON). Sizes: 8388608, 8MiB, 8MB. Durations: 0.05, 50ms, 2s, 5m, 1h.
# Lines such as `#tls:`, without a space, and those below them are examples: remove the # to use them.
"""
_WIDTH = 100


def example_yaml() -> str:
    """The complete default configuration, commented. It loads as it is."""
    return _HEAD + "\n".join(_section(Config, "")) + "\n"


def _section(model: type[BaseModel], indent: str) -> Iterator[str]:
    for name, found in model.model_fields.items():
        if not indent:
            yield ""
        yield from _comment(found, indent)
        inner, container = model_of(found.annotation), container_of(found.annotation)
        default = found.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            yield f"{indent}{name}:"
            yield from _section(type(default), indent + "  ")
        elif container is dict and found.examples:
            yield from _disabled(indent, [f"{name}: {_value(name, found.examples[0])}"])
        elif inner is not None and container is tuple:
            yield from _disabled(indent, [f"{name}:", *_item(inner)])
        elif inner is not None:
            yield from _disabled(indent, [f"{name}:", *("  " + line for line in _example_of(inner))])
        elif default is None and found.examples:
            yield from _disabled(indent, [f"{name}: {_value(name, found.examples[0])}"])
        else:
            yield f"{indent}{name}: {_value(name, default)}"


def _example_of(model: type[BaseModel]) -> Iterator[str]:
    for name, found in model.model_fields.items():
        yield from _comment(found, "")
        default = found.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            yield f"{name}:"
            yield from ("  " + line for line in _example_of(type(default)))
        else:
            yield f"{name}: {_value(name, found.examples[0] if found.examples else default)}"


def _item(model: type[BaseModel]) -> Iterator[str]:
    yield "  -"
    yield from ("    " + line for line in _example_of(model))


def _disabled(indent: str, lines: list[str]) -> Iterator[str]:
    yield from (f"{indent}#{line}" for line in lines)


def _comment(found: FieldInfo, indent: str) -> Iterator[str]:
    for line in textwrap.wrap(found.description or "", _WIDTH - len(indent)):
        yield f"{indent}# {line}"


def _value(name: str, value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int) and "bytes" in name:
        return format_bytes(value)
    if isinstance(value, frozenset):
        return json.dumps(sorted(value))
    if isinstance(value, tuple | list | dict):
        return json.dumps(value)
    if isinstance(value, Path):
        # Path("./frazil-data") drops the dot that says where it is.
        return str(value) if value.is_absolute() else f"./{value}"
    return str(value)
