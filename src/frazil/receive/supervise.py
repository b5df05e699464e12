"""The receiver's parent process: listeners and workers."""

from __future__ import annotations

import multiprocessing
import shutil
from functools import partial
from typing import Any

import structlog
from granian import Granian

from frazil import listen, tls
from frazil.config import Config
from frazil.paths import check_writable, keep_private
from frazil.ports import check_free, with_ports
from frazil.process import die_with_parent
from frazil.receive.metrics import share_between_processes

log = structlog.get_logger("frazil.receive")


def run(config: Config) -> int:
    """Runs until SIGINT or SIGTERM. Restarts workers that die."""
    config = with_ports(config)
    _check_promoted(config)
    for name, address in (("http", config.receive.http.listen), ("grpc", config.receive.grpc.listen)):
        if name == "http" or config.receive.grpc.enabled:
            check_free(f"receive.{name}.listen", address)
    tls.check("receive.tls", config.receive.tls)
    check_writable("data_dir", config.data_dir)
    keep_private(config)
    listen.allow_many_files()
    folder = share_between_processes()
    multiprocessing.set_start_method("spawn", force=True)  # gRPC and Arrow threads do not survive a fork
    server = _server(config)
    listen.watch_certificates(config.receive.tls)
    log.info(
        "receiver started",
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
    """Runs in each worker process. The parent avoids the workers' imports to save memory."""
    from frazil.receive.worker import Worker, set_up_process

    die_with_parent()
    set_up_process(config)
    return Worker(config)


def _check_promoted(config: Config) -> None:
    if not config.tables.promoted:
        return
    from frazil.lake.tables import check_promoted
    from frazil.tables.promoted import promoted

    check_promoted(config, promoted(config)).refuse()


def _server(config: Config) -> Any:
    http = config.receive.http
    return Granian(
        "frazil",
        workers=config.receive.workers,
        workers_kill_timeout=int(
            config.receive.shutdown_grace_seconds + config.wal.write_timeout_seconds + 5
        ),
        **listen.settings(
            http.listen,
            config.receive.tls,
            header_timeout_seconds=http.header_timeout_seconds,
            header_bytes_max=http.header_bytes_max,
        ),
    )
