"""Ports to listen on: free ones for port 0, and a clear word about who has one that is taken."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from frazil.config import Config, split_listen
from frazil.errors import ConfigError


@dataclass(frozen=True)
class PortOwner:
    """The process that listens on a port. `frazil_id` is the outermost frazil process that it belongs to."""

    process_id: int
    command: str
    frazil_id: int | None

    def __str__(self) -> str:
        return f"process {self.process_id} ({self.command})"


def with_ports(config: Config) -> Config:
    """Port 0 becomes a free one, the same for all workers."""
    receive = config.receive
    listeners = {
        name: section.model_copy(update={"listen": _with_port(section.listen)})
        for name, section in (("http", receive.http), ("grpc", receive.grpc))
    }
    pipeline = config.pipeline.model_copy(update={"listen": _with_port(config.pipeline.listen)})
    serve = config.serve.model_copy(update={"listen": _with_port(config.serve.listen)})
    dashboard = config.dashboard.model_copy(update={"listen": _with_port(config.dashboard.listen)})
    return config.model_copy(
        update={
            "receive": receive.model_copy(update=listeners),
            "pipeline": pipeline,
            "serve": serve,
            "dashboard": dashboard,
        }
    )


def listeners(config: Config) -> Iterator[tuple[str, str]]:
    """The key and the address of each port that `frazil up` listens on."""
    yield "receive.http.listen", config.receive.http.listen
    if config.receive.grpc.enabled:
        yield "receive.grpc.listen", config.receive.grpc.listen
    yield "pipeline.listen", config.pipeline.listen
    yield "serve.listen", config.serve.listen
    if config.dashboard.enabled:
        yield "dashboard.listen", config.dashboard.listen


def _with_port(listen: str) -> str:
    host, port = split_listen(listen)
    if port:
        return listen
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return f"{listen.rpartition(':')[0]}:{probe.getsockname()[1]}"


def check_free(key: str, listen: str) -> None:
    """Workers share their port with SO_REUSEPORT, and would silently share it with a stranger of the same
    user.
    """
    host, port = split_listen(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(f"cannot listen on {listen}: {_why(error, key, port)}") from None


def _why(error: OSError, key: str, port: int) -> str:
    if error.errno == errno.EACCES:
        return f"this user may not. Set {key} to a port above 1023"
    if error.errno != errno.EADDRINUSE:
        return f"{error.strerror}. Set {key} to an address of this machine"
    owner = port_owner(port)
    if owner is None:
        return f"a process that this user cannot see has the port. Stop it, or set {key} to another one"
    if owner.frazil_id is not None:
        stop = f"Stop it (`kill {owner.frazil_id}`)"
        return f"another frazil is running there. {stop}, or set {key} to another port"
    return f"{owner} has the port. Stop it, or set {key} to another one"


def port_owner(port: int) -> PortOwner | None:
    """The process listening on `port`, as far as /proc shows it."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*") if inodes else ():
        with contextlib.suppress(OSError):
            if any(os.readlink(fd) in inodes for fd in (process / "fd").iterdir()):
                words = _words(process)
                # Only the program and its first word, or its module: arguments may hold secrets.
                command = " ".join(words[: 3 if words[1:2] == ["-m"] else 2]).strip()
                return PortOwner(int(process.name), command, _frazil_id(process))
    return None


def _words(process: Path) -> list[str]:
    return (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")


def _frazil_id(process: Path) -> int | None:
    """Workers do not say in their command whose they are; one of their ancestors does."""
    found = None
    with contextlib.suppress(OSError):
        while process.name != "0":
            words = _words(process)[:3]
            if words[1:3] == ["-m", "frazil"] or any(Path(word).name == "frazil" for word in words[:2]):
                found = int(process.name)
            # What follows the command's name, which is in brackets and may hold anything: state, parent.
            parent_id = (process / "stat").read_text().rpartition(")")[2].split()[1]
            process = process.parent / parent_id
    return found
