"""The receiver's parent process: listeners, workers, renewal of certificates."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import signal
import threading
from functools import partial
from typing import Any

import structlog
from granian import Granian
from granian.constants import HTTPModes, Interfaces, Loops, SSLProtocols
from granian.http import HTTP1Settings, HTTP2Settings
from granian.log import LogLevels

from frazil.config import Config, TlsConfig, split_listen
from frazil.errors import ConfigError
from frazil.family import end_with_parent
from frazil.ports import check_free, with_ports
from frazil.receive.certificates import is_usable
from frazil.receive.metrics import share_between_processes

_CONNECTIONS_MAX = 16_384
"""Open connections in each worker. granian's back-pressure counts connections, idle ones too, not requests: a
small number would let a few idle clients lock all others out."""

log = structlog.get_logger("frazil.receive")


def run(config: Config) -> int:
    """Runs until SIGINT or SIGTERM. Workers that die are replaced."""
    config = with_ports(config)
    _check_promoted(config)
    for name, listen in (("http", config.receive.http.listen), ("grpc", config.receive.grpc.listen)):
        if name == "http" or config.receive.grpc.enabled:
            check_free(f"receive.{name}.listen", listen)
    config.data_dir.mkdir(parents=True, exist_ok=True)
    _allow_many_files()
    folder = share_between_processes()
    multiprocessing.set_start_method("spawn", force=True)  # gRPC and Arrow threads do not survive a fork
    server = _server(config)
    if config.receive.tls is not None:
        _watch_certificates(config.receive.tls)
    log.info(
        "receiving",
        http=config.receive.url("http"),
        grpc=config.receive.url("grpc") if config.receive.grpc.enabled else "off",
        workers=config.receive.workers,
    )
    try:
        server.serve(target_loader=partial(_load_worker, config), wrap_loader=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _load_worker(config: Config) -> Any:
    """Runs in each new process. The parent does not import what only workers need: it would hold it."""
    from frazil.receive.worker import Worker, set_up_process

    end_with_parent()
    set_up_process(config)
    return Worker(config)


def _check_promoted(config: Config) -> None:
    if not config.tables.promoted:
        return
    from frazil.wal.journal import decoders

    try:
        decoders(config)
    except ValueError as error:
        raise ConfigError(
            f"tables.promoted: {error}; give the new column another name with `column`"
        ) from None


def _server(config: Config) -> Any:
    http = config.receive.http
    host, port = split_listen(http.listen)
    tls: dict[str, Any] = {}
    if config.receive.tls is not None:
        tls = {
            "ssl_cert": config.receive.tls.cert_file,
            "ssl_key": config.receive.tls.key_file,
            "ssl_ca": config.receive.tls.client_ca_file,
            "ssl_client_verify": config.receive.tls.client_ca_file is not None,
            "ssl_protocol_min": SSLProtocols.tls12,
        }
    return Granian(
        "frazil",
        address=host,
        port=port,
        interface=Interfaces.ASGI,
        workers=config.receive.workers,
        loop=Loops.uvloop,
        http=HTTPModes.auto,
        websockets=False,
        backpressure=_CONNECTIONS_MAX,
        http1_settings=HTTP1Settings(
            header_read_timeout=int(http.header_timeout_seconds * 1000), max_buffer_size=http.header_bytes_max
        ),
        http2_settings=HTTP2Settings(max_headers_size=http.header_bytes_max),
        log_level=LogLevels.warning,
        respawn_failed_workers=True,
        workers_kill_timeout=int(
            config.receive.shutdown_grace_seconds + config.wal.write_timeout_seconds + 5
        ),
        **tls,
    )


def _allow_many_files() -> None:
    """A connection is an open file, and shells allow 1,024; a process may raise that to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _CONNECTIONS_MAX * 2 if hard == resource.RLIM_INFINITY else min(hard, _CONNECTIONS_MAX * 2)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _watch_certificates(tls: TlsConfig) -> None:
    """granian reads certificates when a worker starts, so renewed ones mean new workers, one by one."""
    files = [path for path in (tls.cert_file, tls.key_file, tls.client_ca_file) if path is not None]

    def stamps() -> list[int] | None:
        try:
            return [path.stat().st_mtime_ns for path in files]
        except OSError:
            return None  # half-way through a renewal

    def watch() -> None:
        seen = stamps()
        pause = threading.Event()
        while True:
            pause.wait(tls.reload_interval_seconds)
            now = stamps()
            if now is not None and now != seen and is_usable(tls):
                seen = now
                log.info("certificates changed; workers are replaced")
                os.kill(os.getpid(), signal.SIGHUP)

    threading.Thread(target=watch, daemon=True, name="certificates").start()
