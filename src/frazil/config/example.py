"""Prints the configuration as a YAML file: every key with its description and default."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from frazil.config.model import Config
from frazil.config.source import container_of, model_of
from frazil.config.values import format_value

_HEAD = """\
# frazil.yaml: all keys with their defaults. Keep the keys that you change and delete the rest.
# Environment variables take precedence: FRAZIL_WAL__LOCAL__FREE_BYTES_MIN=1GiB (lists and sections as
# JSON). Sizes: 8388608, 8MiB, 8MB. Durations: 0.05, 50ms, 2s, 5m, 1h.
# Lines with # and no space, such as `#tls:`, are examples: remove the # to use them.
"""
_WIDTH = 100


def example_yaml() -> str:
    """Return the complete default configuration with comments, as valid YAML."""
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
            yield from _disabled(indent, [f"{name}: {format_value(name, found.examples[0])}"])
        elif inner is not None and container is tuple:
            yield from _disabled(indent, [f"{name}:", *_item(inner)])
        elif inner is not None:
            yield from _disabled(indent, [f"{name}:", *("  " + line for line in _example_of(inner))])
        elif default is None and found.examples:
            yield from _disabled(indent, [f"{name}: {format_value(name, found.examples[0])}"])
        else:
            yield f"{indent}{name}: {format_value(name, default)}"


def _example_of(model: type[BaseModel]) -> Iterator[str]:
    for name, found in model.model_fields.items():
        yield from _comment(found, "")
        default = found.get_default(call_default_factory=True)
        if isinstance(default, BaseModel):
            yield f"{name}:"
            yield from ("  " + line for line in _example_of(type(default)))
        else:
            yield f"{name}: {format_value(name, found.examples[0] if found.examples else default)}"


def _item(model: type[BaseModel]) -> Iterator[str]:
    yield "  -"
    yield from ("    " + line for line in _example_of(model))


def _disabled(indent: str, lines: list[str]) -> Iterator[str]:
    yield from (f"{indent}#{line}" for line in lines)


def _comment(found: FieldInfo, indent: str) -> Iterator[str]:
    for line in textwrap.wrap(found.description or "", _WIDTH - len(indent)):
        yield f"{indent}# {line}"
