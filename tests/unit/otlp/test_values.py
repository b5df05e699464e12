"""Values as text and kinds: nothing is lost, nothing is guessed."""

from __future__ import annotations

import base64
import json
import math

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs

from frazil.otlp.encode import value
from frazil.otlp.json import any_value_to_json
from frazil.otlp.values import KINDS, Attributes, DuplicateOneof, Values, nesting, render
from frazil.otlp.wire import to_arrow
from frazil.tables import Promoted
from tests.support.otlp_canonical import canonical
from tests.support.otlp_requests import any_values, attribute_lists
from tests.support.otlp_wire import delimited, log_with_body, number

patient = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])


def records(items: list[LogRecord]) -> pa.StructArray:
    body = delimited(1, ResourceLogs(scope_logs=[ScopeLogs(log_records=items)]).SerializeToString())
    return to_arrow("logs", [body]).column(0).values.field("scope_logs").values.field("log_records").values


def rendered(values: list[AnyValue | None], depth_max: int = 32) -> Values:
    return render(records([LogRecord(body=item) for item in values]).field("body"), depth_max)


def lists_of(lists: list[list[KeyValue]]) -> Attributes:
    return Attributes(records([LogRecord(attributes=pairs) for pairs in lists]).field("attributes"), 32)


@patient
@given(st.lists(st.none() | any_values(), max_size=5))
def test_text_and_kind_give_the_value_back(values: list[AnyValue | None]) -> None:
    found = rendered(values)
    kinds = [0] * len(values) if found.kinds is None else list(found.kinds)
    for given_value, text, kind in zip(values, found.text.to_pylist(), kinds, strict=True):
        assert canonical(value(text, KINDS[kind])) == canonical(given_value or AnyValue())


def test_kinds_are_left_out_when_all_values_are_text_or_empty() -> None:
    assert rendered([AnyValue(string_value="a"), AnyValue(), None]).kinds is None
    assert rendered([AnyValue(string_value="a"), AnyValue(int_value=1)]).kinds is not None


@pytest.mark.parametrize(
    ("number_", "text"),
    [(0.1, "0.1"), (-0.0, "-0"), (math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")],
)
def test_doubles_have_one_spelling(number_: float, text: str) -> None:
    """Stored data and series ids depend on it."""
    assert rendered([AnyValue(double_value=number_)]).text.to_pylist() == [text]


def test_bytes_are_base64_and_integers_decimal() -> None:
    blob = bytes(range(256))
    values = [AnyValue(bytes_value=blob), AnyValue(bytes_value=b""), AnyValue(int_value=-(2**63))]
    assert rendered(values).text.to_pylist() == [base64.b64encode(blob).decode(), "", str(-(2**63))]


@patient
@given(any_values())
def test_nested_values_are_their_otlp_json(nested_value: AnyValue) -> None:
    if nested_value.WhichOneof("value") in ("array_value", "kvlist_value"):
        (text,) = rendered([nested_value]).text.to_pylist()
        assert json.loads(text) == any_value_to_json(nested_value)


def test_a_value_with_two_members_on_the_wire_is_reported_not_guessed() -> None:
    body = log_with_body(delimited(1, b"a") + number(3, 5))
    logs = to_arrow("logs", [body]).column(0).values.field("scope_logs").values.field("log_records").values
    with pytest.raises(DuplicateOneof):
        render(logs.field("body"), 32)


def test_nesting_counts_the_deepest_branch() -> None:
    value_ = AnyValue()
    value_.array_value.values.add(string_value="flat")
    value_.array_value.values.add().kvlist_value.values.add().value.array_value.values.add()
    assert nesting(value_) == 3
    assert nesting(AnyValue(string_value="x")) == 0


@patient
@given(st.lists(attribute_lists(1), min_size=1, max_size=5), st.data())
def test_repeated_maps_are_the_maps_of_their_owners(lists: list[list[KeyValue]], data: st.DataObject) -> None:
    found = lists_of(lists)
    owners = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=8))
    plain = found.maps().to_pylist()
    repeated = found.repeated_maps(pa.array(owners, pa.int32()).to_numpy())
    repeated.validate(full=True)
    assert repeated.to_pylist() == [plain[owner] for owner in owners]


@patient
@given(st.lists(attribute_lists(1), min_size=1, max_size=5))
def test_types_name_exactly_the_keys_that_are_not_text(lists: list[list[KeyValue]]) -> None:
    for pairs, types in zip(lists, lists_of(lists).types().to_pylist(), strict=True):
        kinds = {pair.key: pair.value.WhichOneof("value") for pair in pairs}
        expected = {k: v.removesuffix("_value") for k, v in kinds.items() if v not in (None, "string_value")}
        assert (json.loads(types) if types else {}) == expected


@patient
@given(st.lists(st.sampled_from([None, "string", "int", "double", "bool"]), min_size=1, max_size=8))
def test_a_promoted_column_is_null_where_its_key_is_absent_or_of_another_type(
    kinds: list[str | None],
) -> None:
    values = {"string": "x", "int": 7, "double": 0.5, "bool": True}
    lists = [
        [] if kind is None else [KeyValue(key="p", value=AnyValue(**{f"{kind}_value": values[kind]}))]  # type: ignore[arg-type]
        for kind in kinds
    ]
    if not any(lists):
        return
    found = lists_of([[KeyValue(key="other"), *pairs] for pairs in lists])
    assert found.promoted(Promoted("p", type="int")).to_pylist() == [7 if k == "int" else None for k in kinds]
    doubles = {"int": 7.0, "double": 0.5}
    assert found.promoted(Promoted("p", type="double")).to_pylist() == [doubles.get(k or "") for k in kinds]
    bools = [True if kind == "bool" else None for kind in kinds]
    assert found.promoted(Promoted("p", type="bool")).to_pylist() == bools
