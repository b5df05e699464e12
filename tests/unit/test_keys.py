from __future__ import annotations

import hashlib
import hmac
import re

import pytest

from frazil.config import ApiKey
from frazil.errors import Unauthenticated
from frazil.keys import KeyRing, hash_key, new_key


def api_key(name: str, hash: str) -> ApiKey:
    return ApiKey(name=name, tenant=f"tenant-{name}", hash=hash)


def test_a_new_key_is_random_text_and_its_hash_fits_the_configuration() -> None:
    key, hash = new_key("shop")
    assert re.fullmatch(r"fz_[A-Za-z0-9_-]{43}", key)
    assert hash == "sha256:" + hashlib.sha256(key.encode()).hexdigest()
    assert api_key("a", hash).hash == hash
    assert new_key("shop")[0] != key


def test_a_key_for_no_valid_tenant_is_not_made() -> None:
    with pytest.raises(ValueError, match="tenant id"):
        new_key("../shop")


def test_each_key_is_recognised_as_itself() -> None:
    made = {name: new_key(name) for name in ("a", "b", "c")}
    ring = KeyRing(api_key(name, hash) for name, (_, hash) in made.items())
    assert ring
    for name, (key, _) in made.items():
        assert ring.identify(key).name == name
        assert ring.identify(key).tenant == f"tenant-{name}"


@pytest.mark.parametrize(
    "token", [None, "", "fz_wrong", "fz_" + "a" * 43, "x" * 10_000_000, "\udcff", "Ünïcode"]
)
def test_anything_else_is_refused(token: str | None) -> None:
    ring = KeyRing([api_key("a", new_key("a")[1])])
    with pytest.raises(Unauthenticated):
        ring.identify(token)


def test_the_hash_itself_is_no_key_and_no_message_repeats_the_token() -> None:
    _, hash = new_key("a")
    ring = KeyRing([api_key("a", hash)])
    for token in (hash, "fz_hunter2"):
        with pytest.raises(Unauthenticated) as caught:
            ring.identify(token)
        assert token not in str(caught.value)


def test_an_empty_ring_knows_nobody() -> None:
    assert not KeyRing([])
    with pytest.raises(Unauthenticated):
        KeyRing([]).identify(new_key("a")[0])


@pytest.mark.parametrize("position", [0, 1, 2])
def test_every_configured_key_is_compared_wherever_the_match_is(
    monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    made = [new_key("a") for _ in range(3)]
    ring = KeyRing(api_key(str(n), hash) for n, (_, hash) in enumerate(made))
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(b) or real(a, b))
    ring.identify(made[position][0])
    assert len(compared) == 3


def test_hashes_are_of_the_whole_key() -> None:
    assert hash_key("fz_a") != hash_key("fz_A")
