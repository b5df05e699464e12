"""Manifests with other paths in them, and nothing else changed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from frazil.serve.iceberg.avro import AvroInvalid, rewrite
from tests.support.serve.avro_files import avro_file

INT64 = st.integers(-(2**63), 2**63 - 1)
PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": INT64,
    "float": st.binary(min_size=4, max_size=4),
    "double": st.binary(min_size=8, max_size=8),
    "string": st.text(),
    "bytes": st.binary(),
}


@st.composite
def fields(draw: st.DrawFn, name: str, depth: int, inside_list: bool) -> dict[str, Any]:
    """A field; if it is of a type that holds paths or lengths, it may be one that is to be changed."""
    schema = draw(schemas(depth, inside_list))
    field = {"name": name, "type": schema}
    plain = schema[1] if isinstance(schema, list) else schema
    if plain in ("string", "long") and not inside_list and draw(st.booleans()):
        field["field-id"] = 100 if plain == "string" else 501
    return field


@st.composite
def schemas(draw: st.DrawFn, depth: int = 3, inside_list: bool = False) -> Any:
    kinds = ["primitive", "optional"] + (["record", "array", "map", "fixed"] if depth else [])
    kind = draw(st.sampled_from(kinds))
    if kind == "record":
        count = draw(st.integers(0, 4))
        made = [draw(fields(f"f{number}", depth - 1, inside_list)) for number in range(count)]
        return {"type": "record", "name": f"r{draw(st.integers(0, 10**9))}", "fields": made}
    if kind == "array":
        return {"type": "array", "items": draw(schemas(depth - 1, True))}
    if kind == "map":
        return {"type": "map", "values": draw(schemas(depth - 1, True))}
    if kind == "fixed":
        return {"type": "fixed", "name": f"x{draw(st.integers(0, 10**9))}", "size": draw(st.integers(0, 20))}
    plain = draw(st.sampled_from(sorted(PRIMITIVES)))
    return ["null", plain] if kind == "optional" and plain != "null" else plain


def values(schema: Any) -> st.SearchStrategy[Any]:
    if isinstance(schema, list):
        return st.none() | values(schema[1])
    if isinstance(schema, str):
        return PRIMITIVES[schema]
    match schema["type"]:
        case "record":
            return st.fixed_dictionaries({f["name"]: values(f["type"]) for f in schema["fields"]})
        case "array":
            return st.lists(values(schema["items"]), max_size=4)
        case "map":
            return st.dictionaries(st.text(), values(schema["values"]), max_size=4)
        case _:
            return st.binary(min_size=schema["size"], max_size=schema["size"])


@st.composite
def files(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    made = [draw(fields(f"f{number}", 3, False)) for number in range(draw(st.integers(1, 5)))]
    schema = {"type": "record", "name": "root", "fields": made}
    return schema, draw(st.lists(values(schema), max_size=5))


def changed(schema: Any, value: Any) -> Any:
    """What the rewrite must make of a value: done on values, not on bytes."""
    if not isinstance(schema, dict) or schema["type"] != "record":
        return value
    out = {}
    for field in schema["fields"]:
        found = value[field["name"]]
        edit = EDITS.get(field.get("field-id", 0))
        out[field["name"]] = edit(found) if edit and found is not None else changed(field["type"], found)
    return out


EDITS: Mapping[int, Any] = {100: lambda text: f"s3://{text}", 501: lambda number: -(number // 3)}


@given(files(), st.sampled_from(["null", "deflate", "zstandard"]))
def test_the_rewrite_changes_the_fields_it_should_and_no_other_byte(file: Any, codec: str) -> None:
    schema, records = file
    expected = avro_file(schema, [changed(schema, record) for record in records], codec)
    assert rewrite(avro_file(schema, records, codec), EDITS) == expected


@given(files(), st.data())
def test_a_damaged_manifest_is_refused_and_never_anything_worse(file: Any, data: st.DataObject) -> None:
    schema, records = file
    whole = bytearray(avro_file(schema, records, "deflate"))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(AvroInvalid):
        rewrite(bytes(whole), EDITS)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with contextlib.suppress(AvroInvalid):
        rewrite(bytes(whole[:cut]), EDITS)
