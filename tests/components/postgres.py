"""A PostgreSQL server of its own, in a folder that goes with it."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .cache import ComponentMissingError
from .process import serving

_USER = "frazil"
# Characters that an address must escape.
_PASSWORD = "p@ss/w:rd"
_DEBIAN = Path("/usr/lib/postgresql")
_SYSTEM_USER = "postgres"


@dataclass(frozen=True)
class PostgresServer:
    port: int

    def uri(self, database: str) -> str:
        return f"postgresql://{_USER}:{quote(_PASSWORD, safe='')}@127.0.0.1:{self.port}/{database}"

    def make_database(self, name: str) -> str:
        """Returns its address."""
        with contextlib.closing(self.connect()) as connection:
            connection.autocommit = True
            connection.cursor().execute(f'CREATE DATABASE "{name}"')
        return self.uri(name)

    def connect(self, database: str = "postgres") -> Any:
        import psycopg2

        return psycopg2.connect(self.uri(database), connect_timeout=2)

    def answers(self) -> bool:
        import psycopg2

        try:
            self.connect().close()
        except psycopg2.OperationalError:
            return False
        return True


@contextlib.contextmanager
def postgres_server(logs: Path) -> Iterator[PostgresServer]:
    """Nothing is fsynced: a crash of the machine loses it, which no test can tell."""
    programs = _programs()
    # Not in pytest's folder: PostgreSQL refuses to be root, and another user cannot look into that one.
    with tempfile.TemporaryDirectory(prefix="frazil-postgres-") as scratch:
        folder = Path(scratch)
        password = folder / "password"
        password.write_text(_PASSWORD)
        if os.geteuid() == 0:
            for path in (folder, password):
                shutil.chown(path, _SYSTEM_USER, _SYSTEM_USER)
        data = folder / "data"
        _initialise(programs, data, password)

        def command(port: int) -> list[str | Path]:
            settings = ["fsync=off", "full_page_writes=off", "shared_buffers=16MB", "max_connections=40"]
            options = [word for setting in settings for word in ("-c", setting)]
            listen = ["-h", "127.0.0.1", "-p", str(port), "-k", str(folder)]
            return [*_as_system_user(), programs / "postgres", "-D", data, *listen, *options]

        with serving("postgres", logs, command, ready=lambda port: PostgresServer(port).answers()) as port:
            yield PostgresServer(port)


def _programs() -> Path:
    """The folder of `postgres` and `initdb`. Debian keeps them off the PATH."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else []
    folders += sorted(_DEBIAN.glob("*/bin"), reverse=True)
    for folder in folders:
        if all((folder / name).exists() for name in ("postgres", "initdb")):
            return folder
    raise ComponentMissingError("PostgreSQL", "its server (Debian: postgresql)")


def _as_system_user() -> list[str]:
    if os.geteuid() != 0:
        return []
    try:
        pwd.getpwnam(_SYSTEM_USER)
    except KeyError:
        raise ComponentMissingError("PostgreSQL", f"the user {_SYSTEM_USER}, as it refuses root") from None
    if shutil.which("setpriv") is None:
        raise ComponentMissingError("PostgreSQL", "setpriv (Debian: util-linux), as it refuses root")
    user = [f"--reuid={_SYSTEM_USER}", f"--regid={_SYSTEM_USER}", "--init-groups"]
    # Changing users makes the kernel forget that the process is to die with its parent: said once more.
    return ["setpriv", *user, "--pdeathsig=KILL"]


def _initialise(programs: Path, data: Path, password: Path) -> None:
    options = ["--no-sync", "--encoding=UTF8", "--locale=C", "--auth=scram-sha-256"]
    ended = subprocess.run(
        [
            *_as_system_user(),
            str(programs / "initdb"),
            "-D",
            str(data),
            "-U",
            _USER,
            f"--pwfile={password}",
            *options,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
        text=True,
        timeout=60,
    )
    if ended.returncode != 0:
        raise ComponentMissingError("PostgreSQL", f"initdb that works:\n{ended.stdout[-2000:]}")
