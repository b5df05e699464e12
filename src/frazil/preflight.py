"""The checks of `frazil up` before it starts a role.

Each role would find its own problem, but later, and its error would be mixed with the logs of other roles.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import structlog

from frazil import tls
from frazil.config import Config, split_listen
from frazil.errors import ConfigError, SetupFault
from frazil.paths import check_writable
from frazil.ports import check_free, listeners

log = structlog.get_logger("frazil.up")


def check_before_start(config: Config) -> None:
    """Raise ConfigError for the first problem that would prevent a role from running."""
    _check_ports(config)
    _check_tls(config)
    _check_folders(config)
    if config.lake.catalog.type == "sqlite":
        check_sqlite(config.catalog_file)
    if config.tables.promoted:
        from frazil.lake.tables import check_promoted
        from frazil.tables.promoted import promoted

        check_promoted(config, promoted(config)).refuse()
    from frazil.pipeline.java import check_java_runs

    check_java_runs()


def _check_ports(config: Config) -> None:
    keys: dict[int, str] = {}
    for key, listen in listeners(config):
        port = split_listen(listen)[1]
        if port == 0:
            continue
        if port in keys:
            raise ConfigError(f"{key} and {keys[port]} both use port {port}: give each its own port")
        keys[port] = key
        check_free(key, listen)


def _check_tls(config: Config) -> None:
    tls.check("receive.tls", config.receive.tls)
    tls.check("serve.tls", config.serve.tls)
    if config.dashboard.enabled:
        tls.check_dashboard(config)


def _check_folders(config: Config) -> None:
    folders = {"data_dir": config.data_dir}
    if config.wal.type == "local":
        folders["wal.local.path"] = config.wal_dir
    if not config.warehouse.startswith("s3://"):
        folders["lake.warehouse"] = Path(config.warehouse)
    if config.lake.catalog.type == "sqlite":
        folders["lake.catalog.sqlite.path"] = config.catalog_file.parent
    for key, folder in folders.items():
        is_below = key != "data_dir" and folder.absolute().is_relative_to(config.data_dir.absolute())
        check_writable("data_dir" if is_below else key, folder)


def check_sqlite(path: Path) -> None:
    """Raise SetupFault if the file is not a database, or not writable by this user. Log a warning if it is
    locked: roles wait for it.
    """
    if not path.exists():
        return
    if path.is_dir():
        raise SetupFault(f"{path} is a folder", "set lake.catalog.sqlite.path to a file")
    if not os.access(path, os.R_OK | os.W_OK):
        raise SetupFault(f"{path} is not readable and writable", "give this user read and write permission")
    try:
        with contextlib.closing(
            sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=1)
        ) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        log.warning(
            "catalog not readable, possibly locked by another program; roles wait for it",
            catalog=str(path),
            reason=str(error),
        )
    except sqlite3.DatabaseError as error:
        raise SetupFault(
            f"the catalog {path} is damaged or not a SQLite database ({error})",
            "move the file away, then run `frazil doctor --rebuild-catalog`",
        ) from None
