"""What docs/quickstart.md has people type, typed: the log sent by curl, and the Python program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc

from tests.support.receiver import Receiver

PAGE = Path(__file__).parents[2] / "docs" / "quickstart.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)


def typed(script: str, receiver: Receiver, folder: Path) -> str:
    """With this receiver's port and this environment's Python; what it prints."""
    script = script.replace("http://127.0.0.1:4318", receiver.http)
    done = subprocess.run(
        ["bash", "-euc", script.replace(".venv/bin/python", sys.executable)],
        cwd=folder,
        env={**os.environ, "NO_PROXY": "127.0.0.1", "PYTHONWARNINGS": "error"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_the_log_that_is_sent_by_hand_is_durable(receiver: Receiver, tmp_path: Path) -> None:
    [sending] = [block for block in blocks("sh") if block.startswith("curl")]
    assert typed(sending, receiver, tmp_path) == "{}"
    rows = receiver.rows("logs")
    found = rows.filter(pc.equal(rows["service_name"], "quickstart"))
    assert found["body"].to_pylist() == ["hello from the quick start"]


def test_the_python_program_sends_a_log_within_its_span(receiver: Receiver, tmp_path: Path) -> None:
    [program] = blocks("python")
    (tmp_path / "hello.py").write_text(program)
    [settings] = [block for block in blocks("sh") if block.startswith("export OTEL")]
    typed(f"{settings}.venv/bin/python hello.py", receiver, tmp_path)
    logs, spans = receiver.rows("logs"), receiver.rows("spans")
    log = logs.filter(pc.equal(logs["service_name"], "my-service")).to_pylist()
    span = spans.filter(pc.equal(spans["service_name"], "my-service")).to_pylist()
    assert [(each["body"], each["span_id"]) for each in log] == [("hello from Python", span[0]["span_id"])]
    assert [each["name"] for each in span] == ["greet"]
