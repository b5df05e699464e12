"""A whole pipeline in a thread, whose Spark tasks run in this process."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from frazil.config import Config
from frazil.pipeline import run as pipeline_run
from tests.components.process import wait_until
from tests.support.fault.land_wal import Content, table_content
from tests.support.local_runner import LocalRunner


class Running:
    def __init__(self, data_dir: Path, **settings: Any) -> None:
        self.config = Config.model_validate(
            {
                "data_dir": data_dir,
                "land": {"wal_grace_seconds": 600, "age_max_seconds": 0, "poll_interval_seconds": 0.05},
                "maintain": {"compact": {"interval_seconds": 0.05}},
                "pipeline": {"listen": "127.0.0.1:0"},
                **settings,
            }
        )
        self.stopping = threading.Event()
        self.pipeline = pipeline_run.Pipeline(self.config, self.stopping)
        self.pipeline._make_runner = lambda *_: LocalRunner()
        self._thread = threading.Thread(target=self.pipeline.run)
        self._thread.start()

    def has_landed(self, content: Content) -> bool:
        return wait_until(lambda: table_content(self.config.data_dir) == content, seconds_max=60)

    def stop(self) -> float:
        """Returns the seconds that it took."""
        begin = time.monotonic()
        self.stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        return time.monotonic() - begin
