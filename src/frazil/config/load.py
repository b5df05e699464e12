"""Loads the configuration from `frazil.yaml` and the environment, and reports all problems at once."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from frazil.config.model import Config
from frazil.config.source import (
    ENV_CONFIG,
    ConfigProblem,
    ConfigTree,
    Key,
    container_of,
    dotted,
    field_at,
    is_optional,
    model_of,
    read_environment,
    read_yaml,
    variable_for,
)
from frazil.config.values import format_bytes, format_value
from frazil.errors import ConfigError

DEFAULT_FILE = Path("frazil.yaml")


def load_config(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """Load the configuration from a file and the environment. The environment takes precedence.

    The file is `path`, the value of FRAZIL_CONFIG, or ./frazil.yaml if it exists, in this order.
    Raises ConfigError, which lists every problem with its location and a suggestion.
    """
    environ = os.environ if environ is None else environ
    tree = ConfigTree(_file(path, environ))
    if tree.file is not None:
        read_yaml(tree, _text(tree.file))
    read_environment(tree, environ)
    _empty_sections(tree.values, Config)
    _resolve_views(tree)
    config: Config | None = None
    try:
        config = Config.model_validate(tree.values)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            tree.problems.append(_problem(tree, detail))
    if config is None or tree.problems:
        raise ConfigError(_report(tree.problems))
    return config


def _file(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    if path is None and environ.get(ENV_CONFIG):
        path = Path(environ[ENV_CONFIG])
        if not path.exists():
            raise ConfigError(f"{ENV_CONFIG}: file {path} does not exist\n    correct or unset the variable")
    if path is None:
        return DEFAULT_FILE if DEFAULT_FILE.exists() else None
    if not path.exists():
        raise ConfigError(
            f"{path}: file does not exist\n    create it with all defaults: `frazil config > {path}`"
        )
    return path


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not UTF-8 text (at byte {error.start})\n    save the file as UTF-8"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}\n    check its permissions") from None


def _empty_sections(values: dict[str, Any], model: type[BaseModel]) -> None:
    """Replace null, the YAML value of a section whose keys are all commented out, by the defaults."""
    for name, found in model.model_fields.items():
        inner = model_of(found.annotation)
        if container_of(found.annotation) is not None:
            if name in values and values[name] is None:
                del values[name]
        elif inner is not None and name in values:
            if values[name] is None and not is_optional(found.annotation):
                values[name] = {}
            if isinstance(values[name], dict):
                _empty_sections(values[name], inner)


def _resolve_views(tree: ConfigTree) -> None:
    """Make the paths of SQL files relative to the configuration file, if there is one."""
    views = tree.values.get("views")
    if tree.file is None or not isinstance(views, dict):
        return
    for view in views.values():
        if isinstance(view, dict) and isinstance(view.get("sql"), str):
            view["sql"] = str(tree.file.parent / view["sql"])


def _report(problems: list[ConfigProblem]) -> str:
    ordered = sorted(
        dict.fromkeys(problems), key=lambda problem: (problem.order, problem.location, problem.key)
    )
    if len(ordered) == 1:
        return str(ordered[0])
    return "\n".join([f"{len(ordered)} problems in the configuration:", *map(str, ordered)])


def _problem(tree: ConfigTree, detail: Any) -> ConfigProblem:
    key: Key = tuple(part for part in detail["loc"] if part != "[key]")
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown(tree, key, detail["input"])
    found = field_at(key)
    if kind == "missing":
        return tree.problem(key, "is required but not set", _example(tree, key, found))
    if kind == "frazil":
        if context["key"] is not None:
            return _cross_problem(tree, (*key, *context["key"].split(".")), context)
        what = context["what"] + _given(key, found, detail["input"])
        return tree.problem(key, what, context["hint"], at_key="[key]" in detail["loc"])
    what, hint = _describe(key, found, kind, detail)
    return tree.problem(key, what + _given(key, found, detail["input"]), hint or _example(tree, key, found))


def _cross_problem(tree: ConfigTree, key: Key, context: Any) -> ConfigProblem:
    value: Any = tree.values
    for part in key:
        value = value.get(part) if isinstance(value, dict) else None
    given = "" if value is None else _given(key, field_at(key), value)
    return tree.problem(key, context["what"] + given, context["hint"])


def _unknown(tree: ConfigTree, key: Key, value: Any) -> ConfigProblem:
    section, name = key[:-1], str(key[-1])
    parent = field_at(section) if section else None
    model = Config if not section else model_of(parent.annotation) if parent is not None else None
    names = list(model.model_fields) if model is not None else []
    close = difflib.get_close_matches(name, names, n=1)
    location = tree.locations.get(key)
    from_environment = location is not None and location.variable is not None
    if elsewhere := [other for other in _all_keys(Config, ()) if other[-1] == name]:
        hint = f"did you mean `{variable_for(elsewhere[0]) if from_environment else dotted(elsewhere[0])}`?"
    elif close:
        hint = f"did you mean `{variable_for((*section, close[0])) if from_environment else close[0]}`?"
    else:
        hint = f"valid keys: {', '.join(names)}"
    # The value of a misspelt key may be a secret.
    hidden = any(part in name + "".join(close) for part in ("secret", "password", "token", "key", "hash"))
    given = _hidden(value) if hidden else _shown(value)
    return tree.problem(key, f"unknown key (given {given})", hint, at_key=True)


def _all_keys(model: type[BaseModel], above: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, found in model.model_fields.items():
        yield (*above, name)
        inner = model_of(found.annotation)
        if inner is not None and container_of(found.annotation) is None:
            yield from _all_keys(inner, (*above, name))


_MESSAGES = {
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "must be a smaller number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be text; put it in quotes",
    "path_type": "must be a path",
    "model_type": "must be a section with keys",
    "model_attributes_type": "must be a section with keys",
    "dict_type": "must be a section with keys",
    "tuple_type": "must be a list",
    "frozen_set_type": "must be a list",
}


def _describe(key: Key, found: FieldInfo | None, kind: str, detail: Any) -> tuple[str, str | None]:
    if kind == "literal_error":
        allowed = _allowed(found.annotation) if found is not None else []
        close = difflib.get_close_matches(str(detail["input"]).lower(), allowed, n=1)
        hint = f"did you mean `{close[0]}`?" if close else None
        return f"must be one of {', '.join(allowed)}", hint
    if kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal"):
        return _range(key, found), None
    if kind in ("too_short", "string_too_short"):
        return "must not be empty", None
    if kind == "string_pattern_mismatch":
        return "has an invalid format", None
    if kind in ("model_type", "model_attributes_type", "dict_type") and found is not None:
        model = model_of(found.annotation)
        names = list(model.model_fields) if model is not None and isinstance(key[-1], str) else []
        return _MESSAGES[kind], f"valid keys: {', '.join(names)}" if names else None
    message = str(detail["msg"])
    return _MESSAGES.get(kind, message[:1].lower() + message[1:]), None


def _allowed(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    return [value for part in get_args(annotation) for value in _allowed(part)]


def _range(key: Key, found: FieldInfo | None) -> str:
    bounds: dict[str, Any] = {}
    for part in found.metadata if found is not None else []:
        for name in ("gt", "ge", "lt", "le"):
            if (bound := getattr(part, name, None)) is not None:
                is_size = "_bytes" in str(key[-1]) or str(key[-1]).startswith("bytes_")
                bounds[name] = format_bytes(bound) if is_size else f"{bound:g}"
    if "ge" in bounds and "le" in bounds:
        return f"must be between {bounds['ge']} and {bounds['le']}"
    words = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}
    return "must be " + " and ".join(f"{words[name]} {bound}" for name, bound in bounds.items())


def _given(key: Key, found: FieldInfo | None, value: Any) -> str:
    secret = found is not None and ("SecretStr" in str(found.annotation) or key[-1] == "hash")
    return f" (given {_hidden(value) if secret else _shown(value)})"


def _hidden(value: Any) -> str:
    return f"{len(value)} characters, not shown" if isinstance(value, str) else "not shown"


def _shown(value: Any) -> str:
    if isinstance(value, SecretStr):
        return "not shown"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a section"
    if isinstance(value, list | tuple):
        return "a list"
    text = f"{value:g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _example(tree: ConfigTree, key: Key, found: FieldInfo | None) -> str | None:
    if found is None or not isinstance(key[-1], str):
        return None
    value = found.examples[0] if found.examples else found.get_default(call_default_factory=True)
    if value is None or isinstance(value, BaseModel | frozenset | tuple | dict | list):
        return None
    text = f"[{value}]" if container_of(found.annotation) is not None else format_value(key[-1], value)
    location = tree.locations.get(key)
    if location is not None and location.variable is not None:
        return f"for example {location.variable}={text}"
    return f"for example `{key[-1]}: {text}`"
