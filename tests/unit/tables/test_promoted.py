"""Which columns of a file or segment were filled as they would be now."""

from __future__ import annotations

import pytest

from frazil.tables import DEFAULT_PROMOTED, Fill, Promoted
from frazil.tables.promoted import file_suffix, fingerprint_of

RENAMED = {
    "deployment_environment_name": ("deployment.environment.name", "deployment.environment"),
    "http_request_method": ("http.request.method", "http.method"),
    "http_response_status_code": ("http.response.status_code", "http.status_code"),
    "db_system_name": ("db.system.name", "db.system"),
    "rpc_system": ("rpc.system.name", "rpc.system"),
}
NOW = Fill.of(DEFAULT_PROMOTED)


def test_renamed_attributes_are_known_by_both_names_the_new_one_first() -> None:
    found = {item.column: item.attributes for item in DEFAULT_PROMOTED if item.older}
    assert found == RENAMED


def test_what_was_filled_in_the_same_way_is_filled() -> None:
    assert NOW.unfilled(NOW.fingerprint) == frozenset()
    assert Fill.of(reversed(DEFAULT_PROMOTED)).fingerprint == NOW.fingerprint


def test_files_without_a_fingerprint_lack_what_only_older_names_give() -> None:
    assert NOW.unfilled("") == frozenset(RENAMED)


@pytest.mark.parametrize(
    "now",
    [
        Promoted("cart.id", older=("basket.id",)),
        Promoted("basket.id", name="cart_id"),
        Promoted("cart.id", "resource"),
        Promoted("cart.id", type="int"),
    ],
)
def test_a_column_whose_attributes_have_changed_is_unfilled_and_the_others_are_not(now: Promoted) -> None:
    before = Fill.of((*DEFAULT_PROMOTED, Promoted("cart.id")))
    fill = Fill.of((*DEFAULT_PROMOTED, now), before.properties)
    assert fill.unfilled(before.fingerprint) == {"cart_id"}
    assert fill.unfilled(fill.fingerprint) == frozenset()


def test_a_bloom_filter_does_not_change_how_a_column_is_filled() -> None:
    before = Fill.of((*DEFAULT_PROMOTED, Promoted("cart.id")))
    now = Fill.of((*DEFAULT_PROMOTED, Promoted("cart.id", bloom=True)))
    assert (now.fingerprint, now.properties) == (before.fingerprint, before.properties)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"http_request_method": 7}'])
def test_a_fingerprint_of_which_nothing_is_known_says_nothing_of_any_column(text: str) -> None:
    properties = {} if not text else {"frazil.promoted.0123456789ab": text}
    assert Fill.of(DEFAULT_PROMOTED, properties).unfilled("0123456789ab") == set(NOW.promoted)


def test_a_name_carries_the_fingerprint() -> None:
    assert fingerprint_of(f"s3://lake/data/7-00000{file_suffix(NOW.fingerprint)}") == NOW.fingerprint
    assert file_suffix("") == ".parquet"
    for path in ("/data/0-1.parquet", "/data/a.p01.parquet", "/data/a.p0123456789ab.parquet.tmp"):
        assert fingerprint_of(path) == ""
