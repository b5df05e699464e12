"""A proxy before a component: slow, refusing, or losing answers, as the test commands."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from .process import ComponentDiedError, dies_with_parent, end, wait_until

ConditionalPuts = Literal["passed", "ignored", "racy"]


class FaultyProxy:
    """An HTTP/1.1 proxy in a process of its own; this is its remote control, usable from any thread.

    Every request is read whole, held for `latency_seconds`, and only then sent on to the target.
    """

    def __init__(
        self,
        target_host: str,
        target_port: int,
        *,
        folder: Path,
        latency_seconds: float = 0.0,
        conditional_puts: ConditionalPuts = "passed",
        race_gap_seconds: float = 0.0,
    ) -> None:
        self._target = (target_host, target_port)
        self._settings = {
            "latency_seconds": latency_seconds,
            "conditional_puts": conditional_puts,
            "race_gap_seconds": race_gap_seconds,
        }
        self._log = folder / "proxy.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._one_command_at_a_time = threading.Lock()
        self.host = "127.0.0.1"
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def __enter__(self) -> FaultyProxy:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        host, port = self._target
        script = Path(__file__).with_name("proxy_process.py")
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                dies_with_parent([sys.executable, "-I", "-S", script, host, str(port)]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        try:
            self.port = self._read()["port"]
            for name, value in self._settings.items():
                self._command("set", name=name, value=value)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            end(process)
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()  # type: ignore[union-attr]

    def refuse(self) -> None:
        """The target is down: connects are refused, open connections reset. The port stays ours."""
        self._command("refuse")

    def resume(self) -> None:
        self._command("resume")

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        self.refuse()
        try:
            yield
        finally:
            self.resume()

    @property
    def latency_seconds(self) -> float:
        return float(self._settings["latency_seconds"])

    @latency_seconds.setter
    def latency_seconds(self, seconds: float) -> None:
        self._command("set", name="latency_seconds", value=seconds)
        self._settings["latency_seconds"] = seconds

    def drop_response_once(self, method: str = "PUT", how: Literal["close", "hang"] = "close") -> None:
        """The next such request takes effect at the target, but its response never reaches the client.

        The connection is closed, or kept silent until the client gives up.
        """
        self._command("drop", method=method, how=how)

    def answer(self, status: int, *, method: str = "PUT", body: str = "", times: int = 1) -> None:
        """The next such requests are answered by the proxy; the target never sees them."""
        self._command("answer", method=method, status=status, body=body, times=times)

    def count(self, method: str) -> int:
        """Requests of this method that arrived whole."""
        return int(self._command("counts")["requests"].get(method, 0))

    def dropped(self, method: str) -> int:
        """Responses of this method that were lost on purpose."""
        return int(self._command("counts")["dropped"].get(method, 0))

    def wait_for_count(self, method: str, at_least: int, *, seconds_max: float = 30.0) -> None:
        if not wait_until(lambda: self.count(method) >= at_least, seconds_max=seconds_max):
            raise TimeoutError(f"{self.count(method)} {method} requests in {seconds_max} s, not {at_least}")

    def _command(self, do: str, **arguments: Any) -> dict[str, Any]:
        with self._one_command_at_a_time:
            if self._process is None or self._process.stdin is None:
                raise ComponentDiedError("proxy", "is not running", self._log)
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._read()
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer

    def _read(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ComponentDiedError("proxy", "ended", self._log)
        return dict(json.loads(line))
