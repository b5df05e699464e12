"""A process that serves on 127.0.0.1: started, waited for until it answers, ended with its `with` block."""

from __future__ import annotations

import contextlib
import functools
import http.client
import itertools
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

READY_SECONDS_MAX = 60.0
END_SECONDS_MAX = 5.0
PAUSE_SECONDS_MAX = 0.5
STARTS_MAX = 3

# The child asks the kernel to be killed with its parent and then becomes the program. A wrapper and not
# preexec_fn: forking a test process that runs gRPC's and tokio's threads can hang, spawning one cannot.
# The signal follows the *thread* that started the process: start components from a thread that outlives them.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent ended before the component began")
os.execvp(sys.argv[2], sys.argv[2:])
"""


class ComponentDiedError(Exception):
    """A component ended or stayed silent; carries the end of its log."""

    def __init__(self, name: str, why: str, log: Path) -> None:
        tail = log.read_text(errors="replace")[-2000:] if log.exists() else "(no log)"
        super().__init__(f"{name} {why}; {log} ends with:\n{tail}")


def free_port() -> int:
    """A port that was free a moment ago. Another program may take it, so starts are tried again.

    Clients cannot take it: the kernel gives them ports above these. Workers of pytest-xdist do not take it
    from each other: each has ports of its own, and returns a port again only after all others.
    """
    return next(port for port in _ports() if _is_free(port))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@functools.cache
def _ports() -> Iterator[int]:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    first_of_clients = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    own = range(10_000 + worker, first_of_clients, workers)
    start = random.randrange(len(own))  # other test runs on this machine begin elsewhere
    return itertools.cycle([*own[start:], *own[:start]])


def dies_with_parent(command: Sequence[str | Path]) -> list[str]:
    """The command, wrapped so that the kernel kills it when the calling thread's process ends."""
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *map(str, command)]


def answers(
    port: int, path: str = "/", statuses: Callable[[int], bool] = lambda status: status < 500
) -> bool:
    """Whether an HTTP server on 127.0.0.1 gives this path an acceptable answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return statuses(connection.getresponse().status)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def end(process: subprocess.Popen[bytes], seconds_max: float = END_SECONDS_MAX) -> None:
    """Ends exactly this process: asked first, killed if it does not listen."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def wait_until(
    condition: Callable[[], bool], *, seconds_max: float, give_up: Callable[[], bool] = lambda: False
) -> bool:
    """Asks again and again, ever less often, until the condition holds (True) or the time is over (False).

    A condition that takes long, such as a read of a table, is asked less often: it would take the CPU time
    of the processes that are to fulfil it.
    """
    deadline = time.monotonic() + seconds_max
    pause_seconds = 0.005
    while True:
        begin = time.monotonic()
        if condition():
            return True
        asked = time.monotonic()
        if give_up() or asked > deadline:
            return False
        time.sleep(max(pause_seconds, min(2 * (asked - begin), PAUSE_SECONDS_MAX)))
        pause_seconds = min(pause_seconds * 1.5, 0.1)


@contextlib.contextmanager
def serving(
    name: str,
    folder: Path,
    command: Callable[[int], Sequence[str | Path]],
    *,
    ready: Callable[[int], bool],
    environment: Mapping[str, str] | None = None,
) -> Iterator[int]:
    """Runs `command(port)` until the block ends and yields the port; output goes to `folder/<name>.log`.

    Starts again on another port if the process ends before it answers: the port may be taken by then.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    for start in range(1, STARTS_MAX + 1):
        port = free_port()
        process = _started(command(port), log, environment)
        try:
            if _became_ready(process, lambda port=port: ready(port)):
                yield port
                return
            if process.poll() is None:
                raise ComponentDiedError(name, f"gave no answer in {READY_SECONDS_MAX:.0f} s", log)
        finally:
            end(process)
        if start == STARTS_MAX:
            raise ComponentDiedError(name, f"ended with {process.returncode} before it answered", log)


def _started(
    command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
    with open(log, "ab") as output:
        return subprocess.Popen(
            dies_with_parent(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=None if environment is None else {**os.environ, **environment},
        )


def _became_ready(process: subprocess.Popen[bytes], ready: Callable[[], bool]) -> bool:
    def ended() -> bool:
        return process.poll() is not None

    # Alive after answering: else the answer came from whoever else holds the port.
    return wait_until(ready, seconds_max=READY_SECONDS_MAX, give_up=ended) and not ended()
