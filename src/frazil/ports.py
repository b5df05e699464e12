"""Ports to listen on: free ones for port 0, and a clear word where one is taken."""

from __future__ import annotations

import socket

from frazil.config import Config, split_listen
from frazil.errors import ConfigError


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
            raise ConfigError(
                f"cannot listen on {listen}: {error.strerror}. Stop what uses the port (`frazil doctor` may "
                f"know who), or set {key} to another one"
            ) from None
