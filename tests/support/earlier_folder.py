"""A data folder as an earlier release left it, kept in tests/data.

`python -m tests.support.earlier_folder NAME` makes one with the code that is checked out: landed and merged
rows, erased rows, a tag, a segment that cannot be read, and segments that wait. Table metadata holds absolute
paths, so the folder is made and used under one fixed path.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from frazil.tables import SIGNALS
from tests.support.integration.clients import post
from tests.support.integration.messages import request
from tests.support.receiver import Receiver, running_receiver
from tests.support.spark.land_process import PROMPT, SMALL_SPARK, PipelineProcess, running_pipeline

DATA = Path(__file__).parents[1] / "data"
HOME = Path("/tmp/frazil-earlier-release")
ROUNDS, RECORDS = 4, 25
SETTINGS = {"land": PROMPT, "spark": SMALL_SPARK, "maintain": {"compact": {"enabled": False}}}


def frazil(config_path: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "frazil", "--config", str(config_path), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=config_path.parent)
    assert ended.returncode == 0, (arguments, ended.stdout, ended.stderr)
    return ended.stdout


def _send(receiver: Receiver, service: str) -> None:
    for signal in SIGNALS:
        body = request(signal, service, RECORDS).SerializeToString()
        assert post(receiver, signal, body).status_code == 200


def _until_landed(pipeline: PipelineProcess, rows: int) -> None:
    pipeline.until(f"{rows} rows", lambda: pipeline.metric("frazil_landed_rows_total") >= rows)


def _spoil(folder: Path) -> None:
    """The newest segment of logs loses its end."""
    segments = (folder / "data" / "wal" / "logs").rglob("*.parquet")
    newest = max(segments, key=lambda path: path.stat().st_mtime)
    newest.write_bytes(newest.read_bytes()[:-100])


def make(folder: Path) -> None:
    batch = RECORDS * len(SIGNALS)
    with running_receiver(folder, SETTINGS) as receiver:
        config = receiver.config_path
        with running_pipeline(config) as pipeline:
            for number in range(ROUNDS):
                _send(receiver, f"round-{number}")
                _until_landed(pipeline, (number + 1) * batch)
            assert pipeline.stop() == 0
        frazil(config, "maintain", "compact")
        frazil(config, "erase", "--tenant", "default", "--where", "service_name = 'round-1'", "--yes")
        frazil(config, "tag", "create", "before")
        _send(receiver, "spoiled")
        _spoil(folder)
        with running_pipeline(config) as pipeline:
            _until_landed(pipeline, batch - RECORDS)
            pipeline.until("set aside", lambda: pipeline.metric("frazil_land_set_aside_total") >= 1)
            assert pipeline.stop() == 0
        _send(receiver, "waiting")
        assert receiver.stop() == 0
    for left in ("tmp", "spark", "run"):
        shutil.rmtree(folder / "data" / left, ignore_errors=True)


@contextmanager
def unpacked(name: str, folder: Path) -> Iterator[Path]:
    """The configuration of the folder, which is unpacked to `folder` and reached by its fixed path."""
    if HOME.is_symlink() and not HOME.exists():  # a test that was killed has left it
        HOME.unlink()
    HOME.symlink_to(folder, target_is_directory=True)
    try:
        with tarfile.open(DATA / f"{name}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        path = HOME / "frazil.yaml"
        settings = {"data_dir": str(HOME / "data"), "log": {"format": "json"}, **SETTINGS}
        path.write_text(yaml.safe_dump(settings))
        yield path
    finally:
        HOME.unlink()


def main(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        HOME.symlink_to(folder, target_is_directory=True)
        try:
            make(HOME)
            DATA.mkdir(exist_ok=True)
            with tarfile.open(DATA / f"{name}.tar.xz", "w:xz") as archive:
                archive.add(HOME / "data", "data")
        finally:
            HOME.unlink()


if __name__ == "__main__":
    main(sys.argv[1])
