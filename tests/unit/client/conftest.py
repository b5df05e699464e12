from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.client_api import Api, serving


@pytest.fixture
def api() -> Iterator[Api]:
    with serving(Api()) as api:
        yield api


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration of this machine's is read, and no history of its user's written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
