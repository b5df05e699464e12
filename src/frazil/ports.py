"""Ports to listen on: free ones for port 0, and a clear word about who has one that is taken."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

from frazil.config import Config, split_listen
from frazil.errors import ConfigError
from frazil.process import port_owner


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
