"""Reads YAML and environment variables into one tree of values with their source locations."""

from __future__ import annotations

import json
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from frazil.config.model import Config

ENV_PREFIX = "FRAZIL_"
ENV_CONFIG = "FRAZIL_CONFIG"
ENV_API_KEY = "FRAZIL_API_KEY"
"""The key of the client commands: `--api-key`."""

Key = tuple[str | int, ...]


@dataclass(frozen=True)
class ConfigProblem:
    location: str
    key: str
    what: str
    hint: str | None = None
    order: tuple[int, int, int] = (0, 0, 0)

    def __str__(self) -> str:
        head = ": ".join(part for part in (self.location, self.key, self.what) if part)
        return head if self.hint is None else f"{head}\n    {self.hint}"


@dataclass(frozen=True)
class SourceLocation:
    """Source of a value: an environment variable, or (line, column) of the key and of the value."""

    variable: str | None = None
    key_mark: tuple[int, int] = (0, 0)
    value_mark: tuple[int, int] = (0, 0)


@dataclass
class ConfigTree:
    """Unvalidated values, the source location of each, and the problems found while reading."""

    file: Path | None = None
    values: dict[str, Any] = field(default_factory=dict)
    locations: dict[Key, SourceLocation] = field(default_factory=dict)
    problems: list[ConfigProblem] = field(default_factory=list)

    def problem(self, key: Key, what: str, hint: str | None = None, *, at_key: bool = False) -> ConfigProblem:
        """Return a problem with `key`, at the nearest known location."""
        for length in range(len(key), 0, -1):
            location = self.locations.get(key[:length])
            if location is None:
                continue
            if location.variable is not None:
                return ConfigProblem(location.variable, dotted(key), what, hint, (1, 0, 0))
            line, column = location.key_mark if at_key or length < len(key) else location.value_mark
            return ConfigProblem(f"{self.file}:{line}:{column}", dotted(key), what, hint, (0, line, column))
        return ConfigProblem(str(self.file or "configuration"), dotted(key), what, hint)


def dotted(key: Key) -> str:
    """Format `('auth', 'keys', 0, 'hash')` as `auth.keys[0].hash`."""
    text = ""
    for part in key:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def variable_for(key: Iterable[str | int]) -> str:
    return ENV_PREFIX + "__".join(str(part).upper() for part in key)


def model_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model in an annotation: `Model`, `Model | None`, `tuple[Model, ...]`, `dict[str, Model]`."""
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation if issubclass(annotation, BaseModel) else None
    for part in get_args(annotation):
        if (model := model_of(part)) is not None:
            return model
    return None


def is_optional(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType) and type(None) in get_args(annotation)


def container_of(annotation: Any) -> type | None:
    """Return `tuple`, `frozenset` or `dict` if the annotation, ignoring `| None`, is one of these."""
    if is_optional(annotation):
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    origin = get_origin(annotation)
    return origin if origin in (tuple, frozenset, dict) else None


def field_at(key: Key) -> FieldInfo | None:
    """Return the field of a key. List indices and mapping keys are skipped."""
    model: type[BaseModel] | None = Config
    found: FieldInfo | None = None
    skip = False
    for part in key:
        if skip or isinstance(part, int):
            skip = False
            continue
        found = model.model_fields.get(part) if model is not None else None
        if found is None:
            return None
        model = model_of(found.annotation)
        skip = container_of(found.annotation) is dict
    return found


def read_yaml(tree: ConfigTree, text: str) -> None:
    """Fill `tree` from YAML text."""
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return
        if not isinstance(root, yaml.MappingNode):
            what = "must be a mapping of sections, such as `log: {level: debug}`"
            tree.problems.append(_at_mark(tree, root.start_mark, what))
            return
        values = _values(tree, loader, root, (), ())
        tree.values = values if isinstance(values, dict) else {}
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = f"not valid YAML: {error.problem or error.context}"
        if error.context and error.problem:
            what += f" ({error.context})"
        tree.problems.append(_at_mark(tree, mark, what, _yaml_hint(text, mark)))
    except yaml.YAMLError as error:
        tree.problems.append(
            ConfigProblem(str(tree.file), "", f"not valid YAML: {str(error).splitlines()[0]}")
        )


def _at_mark(tree: ConfigTree, mark: Any, what: str, hint: str | None = None, key: Key = ()) -> ConfigProblem:
    if mark is None:
        return ConfigProblem(str(tree.file), dotted(key), what, hint)
    line, column = mark.line + 1, mark.column + 1
    return ConfigProblem(f"{tree.file}:{line}:{column}", dotted(key), what, hint, (0, line, column))


def _yaml_hint(text: str, mark: Any) -> str | None:
    if mark is None:
        return None
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "indent with spaces, not tabs"
    if line[mark.column : mark.column + 1] in ("@", "`"):
        return "put the value in quotes"
    # Only the key: the value may be a secret.
    return (
        f"check the line of `{line.split(':')[0].strip()}` and the line before it" if line.strip() else None
    )


def _values(tree: ConfigTree, loader: Any, node: Any, key: Key, above: tuple[int, ...]) -> Any:
    if id(node) in above:
        raise yaml.composer.ComposerError(None, None, "an alias refers to a part of itself", node.start_mark)
    above = (*above, id(node))
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            _record_location(tree, (*key, index), item, item)
            items.append(_values(tree, loader, item, (*key, index), above))
        return items
    if isinstance(node, yaml.MappingNode):
        _check_duplicates(tree, node, key)
        loader.flatten_mapping(node)
        mapping = {}
        for name_node, item in node.value:
            name = str(name_node.value)
            _record_location(tree, (*key, name), name_node, item)
            mapping[name] = _values(tree, loader, item, (*key, name), above)
        return mapping
    try:
        return loader.construct_object(node)
    except ValueError as error:  # such as a date with a 13th month
        raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from None


def _record_location(tree: ConfigTree, key: Key, name_node: Any, node: Any) -> None:
    tree.locations[key] = SourceLocation(
        None,
        (name_node.start_mark.line + 1, name_node.start_mark.column + 1),
        (node.start_mark.line + 1, node.start_mark.column + 1),
    )


def _check_duplicates(tree: ConfigTree, node: Any, key: Key) -> None:
    first: dict[str, int] = {}
    for name_node, _ in node.value:
        name = str(name_node.value)
        if name in first and name != "<<":
            what = f"is set twice, first in line {first[name]}"
            hint = "remove one, or merge them"
            tree.problems.append(_at_mark(tree, name_node.start_mark, what, hint, (*key, name)))
        first.setdefault(name, name_node.start_mark.line + 1)


def read_environment(tree: ConfigTree, environ: Mapping[str, str]) -> None:
    """Override values of the file with FRAZIL_… environment variables."""
    given = {
        tuple(name.removeprefix(ENV_PREFIX).lower().split("__")): name
        for name in environ
        if name.startswith(ENV_PREFIX) and name not in (ENV_CONFIG, ENV_API_KEY)
    }
    # Sections before their keys, so that the more specific variable takes precedence.
    for key, name in sorted(given.items(), key=lambda pair: (len(pair[0]), pair[0])):
        found = field_at(key)
        if found is None:
            # Validation reports the unknown key, with a suggestion.
            _put(tree, key, environ[name], name)
            continue
        if any(_is_container(key[:length]) for length in range(1, len(key))):
            what = "cannot be set individually from the environment"
            hint = f"set all of {dotted(key[:-1])} as JSON"
            tree.problems.append(ConfigProblem(name, dotted(key), what, hint, (1, 0, 0)))
            continue
        value: Any = environ[name]
        if is_optional(found.annotation) and value.strip() == "null":
            value = None
        elif model_of(found.annotation) is not None or container_of(found.annotation) is not None:
            try:
                value = json.loads(value)
            except ValueError as error:
                hint = f"for example {name}='{_json_example(found)}'"
                what = f"must be JSON: {error}"
                tree.problems.append(ConfigProblem(name, dotted(key), what, hint, (1, 0, 0)))
                continue
        _put(tree, key, value, name)


def _is_container(key: Key) -> bool:
    found = field_at(key)
    return found is not None and container_of(found.annotation) is not None


def _json_example(found: FieldInfo) -> str:
    kind = container_of(found.annotation)
    model = model_of(found.annotation)
    if found.examples:
        example = found.examples[0]
        return json.dumps(example if kind is dict else [example])
    if model is None:
        return json.dumps(sorted(found.get_default(call_default_factory=True) or []))
    item = {
        name: part.examples[0] if part.examples else str(part.get_default(call_default_factory=True))
        for name, part in model.model_fields.items()
        if part.is_required()
    }
    return json.dumps([item] if kind is tuple else item)


def _put(tree: ConfigTree, key: tuple[str, ...], value: Any, variable: str) -> None:
    section = tree.values
    for length, part in enumerate(key[:-1], start=1):
        inner = section.get(part)
        if not isinstance(inner, dict):
            inner = section[part] = {}
            tree.locations[key[:length]] = SourceLocation(variable)
        section = inner
    section[key[-1]] = value
    for old in [location for location in tree.locations if location[: len(key)] == key]:
        del tree.locations[old]
    tree.locations[key] = SourceLocation(variable)
