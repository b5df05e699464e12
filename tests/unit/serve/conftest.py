from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from frazil.config import Config, LogConfig
from frazil.log import configure_logging
from frazil.serve.app import create_app
from tests.support.serve.requests import Client
from tests.support.serve.stand_in import StandIn


@pytest.fixture(autouse=True)
def log() -> Iterator[io.StringIO]:
    """What the API logs, as it does in earnest."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logging(LogConfig(), stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()


@pytest.fixture
def queries() -> StandIn:
    return StandIn()


@pytest.fixture
def asking(tmp_path: Path, queries: StandIn) -> Callable[..., Client]:
    """The API over the stand-in, with settings laid over the defaults."""

    def start(**settings: Any) -> Client:
        config = Config.model_validate({"data_dir": str(tmp_path), **settings})
        queries.config = config
        return Client(create_app(config, queries))  # type: ignore[arg-type]

    return start


@pytest.fixture
def client(asking: Callable[..., Client]) -> Client:
    """Without keys: everyone on this machine may ask."""
    return asking()
