"""The jars that Spark needs beside its own: fetched once, then plain files.

`python -m frazil.pipeline.jars` fetches all of them, so that later starts need no network.
"""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from frazil.config import Config
from frazil.errors import FrazilError
from frazil.pipeline.java import cache_folder
from frazil.pipeline.maven import Package, fetch

ICEBERG = Package(
    "org.apache.iceberg",
    "iceberg-spark-runtime-4.1_2.13",
    "1.12.0",
    "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
)
AWS = Package(
    "org.apache.iceberg",
    "iceberg-aws-bundle",
    "1.12.0",
    "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
)
SQLITE = Package(
    "org.xerial",
    "sqlite-jdbc",
    "3.53.4.0",
    "bcb1f51e36f940867e83342f9efbf5968ac44a6bef4d397bb4af7b17b45cd2fb",
)
POSTGRES = Package(
    "org.postgresql",
    "postgresql",
    "42.7.14",
    "73914527305a40cce504b0d3d90b23caf565136912d607ae8ae7c5895512332c",
)
KAFKA = (
    Package(
        "org.apache.spark",
        "spark-sql-kafka-0-10_2.13",
        "4.1.3",
        "cb31ffd9c8f5527dba061db8af671d295562092e4f3f5ff42fc249fab8a8fde6",
    ),
    # The newest that is published wherever we looked; the connector above runs with it.
    Package(
        "org.apache.spark",
        "spark-token-provider-kafka-0-10_2.13",
        "4.1.0-preview1",
        "ab6e27a8a47ce63348dd0ecbd5543dc6212b4783180305cde5749e79684ea97b",
    ),
    Package(
        "org.apache.kafka",
        "kafka-clients",
        "3.9.1",
        "7568b998572d256f0b7bc0afdc1b7a2588b8b08415c62ce314c864a6851ae9d9",
    ),
    Package(
        "org.apache.commons",
        "commons-pool2",
        "2.12.1",
        "5273c8bc8c0dca2211175c0d27efbd7228efae99689aac001a8e1ef8e872e9ef",
    ),
)
EVERY = (ICEBERG, AWS, SQLITE, POSTGRES, *KAFKA)


def packages(config: Config) -> tuple[Package, ...]:
    """What this configuration needs."""
    catalog = config.lake.catalog.type
    needed = [ICEBERG]
    if catalog == "sqlite":
        needed.append(SQLITE)
    if catalog == "postgres":
        needed.append(POSTGRES)
    # A REST catalog says itself where tables are, which may be S3.
    if catalog == "rest" or config.warehouse.startswith("s3://"):
        needed.append(AWS)
    if config.wal.type == "kafka":
        needed.extend(KAFKA)
    return tuple(needed)


def jars(config: Config) -> list[Path]:
    """The files of what this configuration needs. Those that are not there yet are fetched."""
    needed = packages(config)
    _have(needed, config.spark.settings)
    return [_file(package) for package in needed]


def missing(needed: Sequence[Package]) -> list[Package]:
    """Those that would have to be fetched."""
    return [package for package in needed if not _file(package).exists()]


def _file(package: Package) -> Path:
    return cache_folder() / "jars" / package.file_name


def _have(needed: Sequence[Package], settings: Mapping[str, str]) -> None:
    if not missing(needed):
        return
    folder = cache_folder() / "jars"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Asked again: whoever held the lock may have fetched them.
        if wanted := missing(needed):
            of_maven = {key: value for key, value in settings.items() if key.startswith("spark.jars.")}
            fetch(wanted, folder, of_maven)


def main() -> None:
    try:
        _have(EVERY, {})
    except FrazilError as error:
        sys.exit(f"frazil: {error}")


if __name__ == "__main__":
    main()
