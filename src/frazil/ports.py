"""Listen ports: choose free ones for port 0, and name the process that uses a taken port."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

from frazil.config import Config, split_listen
from frazil.errors import SetupFault
from frazil.process import PortOwner, port_owner


def with_ports(config: Config) -> Config:
    """Return the configuration with each port 0 replaced by a free port."""
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
    """Yield the configuration key and address of each listener of `frazil up`."""
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


class PortTaken(SetupFault):
    def __init__(self, found: str, fix: str, owner: PortOwner | None) -> None:
        super().__init__(found, fix)
        self.owner = owner


def check_free(key: str, listen: str) -> None:
    """Raise SetupFault if the port is taken. Workers use SO_REUSEPORT, so they would silently share the port
    with another program of the same user.
    """
    host, port = split_listen(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise _fault(error, key, listen, port) from None


def _fault(error: OSError, key: str, listen: str, port: int) -> SetupFault:
    found = f"cannot listen on {listen}"
    if error.errno == errno.EACCES:
        return SetupFault(f"{found}: permission denied", f"set {key} to a port above 1023")
    if error.errno != errno.EADDRINUSE:
        return SetupFault(f"{found}: {error.strerror}", f"set {key} to an address of this machine")
    owner = port_owner(port)
    if owner is None:
        by, stop = "a process that this user cannot see has the port", "stop it"
    elif owner.frazil_id is not None:
        by, stop = "another frazil is running there", f"stop it (`kill {owner.frazil_id}`)"
    else:
        by, stop = f"{owner} has the port", "stop it"
    return PortTaken(f"{found}: {by}", f"{stop}, or set {key} to another port", owner)
