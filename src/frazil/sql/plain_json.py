"""SQL that converts nested values, which are stored as OTLP/JSON, to plain JSON.

DuckDB's macros cannot recurse, but the conversion needs no recursion: `frazil.otlp.values` writes OTLP/JSON
in one form (no spaces, fixed order of fields), in which the text between two values tells what it closes:
`]}}` closes an array, `}` an entry of a key-value list, `}]}}` the last entry and its list. So one regular
expression splits the text into tokens, and each token is converted by itself. Strings are whole tokens, so
their content is never taken for structure. Text of any other form gives a token that makes the result invalid
JSON, thus NULL.

A function in Python would be simpler, but it would run Python in the sandboxed worker for every row, and the
planner, maintenance and the workers would all have to register it. Measured: 8 µs of CPU for a value of 12
tokens.
"""

from __future__ import annotations

_STRING = r'"(?:[^"\\]|\\.)*"'
_ARRAY = '{"arrayValue":{"values":['
_KVLIST = '{"kvlistValue":{"values":['
_NO_ENTRIES = r"(?:\{\},)*(?:\{\}\]\}\})?"
"""Entries without key and value at the beginning of a key-value list: in an array, `{}` is an empty value."""
_TOKENS = "|".join(
    (
        r'\{"(?:string|bytes)Value":' + _STRING + r"\}",
        r'\{"intValue":"-?[0-9]+"\}',
        r'\{"doubleValue":(?:[-+.0-9eE]+|"(?:NaN|-?Infinity)")\}',
        r'\{"boolValue":(?:true|false)\}',
        r'\{"(?:array|kvlist)Value":\{\}\}',
        r'\{"arrayValue":\{"values":\[',
        r'\{"kvlistValue":\{"values":\[' + _NO_ENTRIES,
        r'\{"key":' + _STRING + r',"value":',
        r'\{"key":' + _STRING,
        r'\{"value":',
        r"\{\}",
        r"\]\}\}",
        r"\}(?:,\{\})*(?:\]\}\})?",
        r",\]",  # DuckDB accepts JSON with a comma before `]`
        ",",
        "(?s:.)",
    )
)
_CONVERTED = f"""CASE
WHEN otlp_token = ',' THEN ','
WHEN starts_with(otlp_token, '}}') THEN
    replace(replace(substr(otlp_token, 2), ']}}}}', '}}'), '{{}}', '"":null')
WHEN otlp_token = ']}}}}' THEN ']'
WHEN starts_with(otlp_token, '{{"key":') THEN
    CASE WHEN ends_with(otlp_token, ',"value":') THEN substr(otlp_token, 8, length(otlp_token) - 16) || ':'
    ELSE substr(otlp_token, 8) || ':null' END
WHEN starts_with(otlp_token, '{{"intValue":"') THEN substr(otlp_token, 14, length(otlp_token) - 15)
WHEN starts_with(otlp_token, '{_ARRAY}') THEN '['
WHEN starts_with(otlp_token, '{_KVLIST}') THEN
    '{{' || replace(replace(substr(otlp_token, {len(_KVLIST) + 1}), ']}}}}', '}}'), '{{}}', '"":null')
WHEN otlp_token = '{{"arrayValue":{{}}}}' THEN '[]'
WHEN otlp_token = '{{"kvlistValue":{{}}}}' THEN '{{}}'
WHEN otlp_token = '{{"value":' THEN '"":'
WHEN otlp_token = '{{}}' THEN 'null'
WHEN starts_with(otlp_token, '{{"') THEN
    substr(otlp_token, instr(otlp_token, ':') + 1, length(otlp_token) - instr(otlp_token, ':') - 1)
ELSE chr(1) END"""
"""A key without a value is an entry with an empty value."""

PLAIN_JSON = f"""CASE
WHEN starts_with(text, '{{"kvlistValue":') OR starts_with(text, '{{"arrayValue":') THEN
    TRY_CAST(array_to_string(list_transform(
        regexp_extract_all(text, '{_TOKENS}'), lambda otlp_token: {_CONVERTED}), '') AS JSON)
ELSE TRY_CAST(text AS JSON) END"""
"""The body of the macro `plain_json(text)`."""

_PATH = r'(?:\.[^."\[\]*]+|\."(?:[^"\\*]|\\.)+"|\[[0-9]{1,9}\])*'
ATTR_JSON = f"""list_transform(
[CASE WHEN list_contains(map_keys(attributes), key) THEN key ELSE list_max(list_filter(map_keys(attributes),
    lambda attr_key: starts_with(key, attr_key || '.') OR starts_with(key, attr_key || '['))) END],
lambda attr_found: list_transform([attributes[attr_found]], lambda attr_value: json_extract(
    plain_json(attr_value),
    CASE WHEN regexp_full_match(substr(key, length(attr_found) + 1), '{_PATH}')
    THEN '$' || substr(key, length(attr_found) + 1) END))[1])[1]"""
"""The body of the macro `attr_json(attributes, key)`. Of several keys that `key` begins with, the longest is
the greatest, because each is a prefix of the others. A path that is not valid gives NULL.
"""
