"""Logins: as long as they are used, and no longer than they should."""

from __future__ import annotations

from frazil.dashboard import app_state as module
from frazil.dashboard.app_state import Sessions


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_token_stands_for_its_key_until_it_is_ended() -> None:
    sessions = Sessions(60)
    ours, theirs = sessions.begin("fz_ours"), sessions.begin("fz_theirs")
    assert ours != theirs
    assert "fz_" not in ours
    assert (sessions.key_of(ours), sessions.key_of(theirs)) == ("fz_ours", "fz_theirs")
    sessions.end(ours)
    sessions.end(ours)
    sessions.end(None)
    assert (sessions.key_of(ours), sessions.key_of(theirs)) == (None, "fz_theirs")
    assert sessions.key_of(None) is None
    assert sessions.key_of("guessed") is None


def test_a_login_lasts_as_long_as_it_is_used() -> None:
    clock = Clock()
    sessions = Sessions(60, clock)
    used, left = sessions.begin("used"), sessions.begin("left")
    for _ in range(3):
        clock.now += 50
        assert sessions.use(used) == "used"
    assert sessions.key_of(left) is None
    clock.now += 61
    assert sessions.key_of(used) is None


def test_to_ask_for_a_key_is_no_use() -> None:
    """Pages that refresh by themselves do so all night."""
    clock = Clock()
    sessions = Sessions(60, clock)
    token = sessions.begin("left")
    clock.now = 50
    assert sessions.key_of(token) == "left"
    clock.now = 61
    assert sessions.key_of(token) is None
    assert sessions.use(token) is None


def test_there_is_a_bound_and_the_longest_unused_goes_first(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "_SESSIONS_MAX", 3)
    clock = Clock()
    sessions = Sessions(1000, clock)
    tokens = []
    for number in range(4):
        clock.now += 1
        tokens.append(sessions.begin(str(number)))
    assert [sessions.key_of(token) for token in tokens] == [None, "1", "2", "3"]
