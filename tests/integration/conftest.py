"""One receiver for all tests that leave it as it was; those with needs of their own start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.receiver import Receiver, running_receiver

REQUEST_BYTES_MAX = 8 << 20
ORIGIN = "https://app.example.com"


@pytest.fixture(scope="session")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    """No keys, plain text, requests of up to 8 MiB."""
    settings = {
        "receive": {
            "http": {"cors_origins": [ORIGIN]},
            "limits": {"request_bytes_max": REQUEST_BYTES_MAX, "records_per_request_max": 1_000},
        },
        "wal": {"group_wait_seconds": 0.01},
    }
    with running_receiver(tmp_path_factory.mktemp("receiver"), settings) as running:
        yield running
