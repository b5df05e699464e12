from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog

from frazil.config import LogConfig
from frazil.log import configure_logging


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()


def lines(stream: io.StringIO, *loggers: str) -> list[dict[str, Any]]:
    """Those of the given loggers. Threads that earlier tests of this process left behind log to the same
    stream.
    """
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    return [line for line in found if line["logger"] in loggers]


def test_json_lines_have_time_level_logger_event_and_facts() -> None:
    stream = io.StringIO()
    configure_logging(LogConfig(format="json"), stream)
    structlog.get_logger("frazil.test").info("listening", address="127.0.0.1:1", facts={1: b"x"})
    (line,) = lines(stream, "frazil.test")
    time = datetime.fromisoformat(line.pop("timestamp"))
    assert time.tzinfo == UTC
    assert abs((datetime.now(UTC) - time).total_seconds()) < 60
    assert line == {
        "event": "listening",
        "level": "info",
        "logger": "frazil.test",
        "address": "127.0.0.1:1",
        "facts": {"1": "b'x'"},
    }


def test_the_standard_librarys_logging_comes_out_the_same_way() -> None:
    stream = io.StringIO()
    configure_logging(LogConfig(format="json"), stream)
    logging.getLogger("library").warning("slow %s", "disk", extra={"seconds": 2})
    (line,) = lines(stream, "library")
    assert (line["event"], line["level"], line["logger"], line["seconds"]) == (
        "slow disk",
        "warning",
        "library",
        2,
    )


def test_warnings_of_libraries_are_logged() -> None:
    stream = io.StringIO()
    configure_logging(LogConfig(format="json"), stream)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        logging.captureWarnings(True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert "old" in lines(stream, "py.warnings")[0]["event"]


def test_less_severe_messages_are_left_out() -> None:
    stream = io.StringIO()
    configure_logging(LogConfig(level="warning", format="json"), stream)
    structlog.get_logger("a").info("no")
    logging.getLogger("b").info("no")
    structlog.get_logger("a").warning("yes")
    assert [line["event"] for line in lines(stream, "a", "b")] == ["yes"]


def test_auto_is_for_people_on_a_terminal_and_json_elsewhere() -> None:
    terminal, file = Terminal(), io.StringIO()
    configure_logging(LogConfig(), terminal)
    structlog.get_logger("a").info("hello", n=1)
    configure_logging(LogConfig(), file)
    structlog.get_logger("a").info("hello", n=1)
    assert "\x1b[" in terminal.getvalue()
    assert "hello" in terminal.getvalue()
    assert lines(file, "a")[0]["n"] == 1


def test_configuring_again_does_not_print_twice() -> None:
    stream = io.StringIO()
    configure_logging(LogConfig(format="console"), stream)
    configure_logging(LogConfig(format="console"), stream)
    structlog.get_logger("a").info("once")
    assert stream.getvalue().count("once") == 1


@pytest.mark.parametrize("format", ["json", "console"])
def test_tracebacks_show_no_local_variables(format: Any) -> None:
    stream = io.StringIO()
    configure_logging(LogConfig(format=format), stream)
    payload = "".join(["hun", "ter2"])
    try:
        raise ValueError(len(payload))
    except ValueError:
        structlog.get_logger("a").exception("failed")
    assert "ValueError: 7" in stream.getvalue()
    assert "hunter2" not in stream.getvalue()


def test_what_py4j_says_of_a_jvm_that_died_is_left_to_who_used_the_jvm() -> None:
    stream = io.StringIO()
    configure_logging(LogConfig(format="json"), stream)
    path = "/lib/py4j/java_gateway.py"
    record = logging.LogRecord("root", logging.ERROR, path, 1, "Exception while sending command.", None, None)
    logging.getLogger().handle(record)
    logging.getLogger().error("another")
    assert [line["event"] for line in lines(stream, "root")] == ["another"]
