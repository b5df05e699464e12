"""The jars that Spark needs in addition to its own: downloaded once from Maven, then local files.

`python -m frazil.pipeline.jars` downloads all of them, so that later starts need no network.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from frazil.config import Config
from frazil.errors import FrazilError, Permanent, Transient
from frazil.pipeline.java import cache_folder, trust_options


@dataclass(frozen=True)
class Package:
    """One jar, without its dependencies: Spark has them, or they are listed here.

    `coordinate` is group:artifact:version.
    """

    coordinate: str
    sha256: str

    @property
    def file_name(self) -> str:
        return "-".join(self.coordinate.split(":")[1:]) + ".jar"


ICEBERG = Package(
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
)
AWS = Package(
    "org.apache.iceberg:iceberg-aws-bundle:1.12.0",
    "dd7e49ffa4ac9b215bed846581991259e3aec9bb2fa08d6cec029c46cd66d957",
)
SQLITE = Package(
    "org.xerial:sqlite-jdbc:3.53.4.0", "bcb1f51e36f940867e83342f9efbf5968ac44a6bef4d397bb4af7b17b45cd2fb"
)
POSTGRES = Package(
    "org.postgresql:postgresql:42.7.14", "73914527305a40cce504b0d3d90b23caf565136912d607ae8ae7c5895512332c"
)
KAFKA = (
    Package(
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3",
        "cb31ffd9c8f5527dba061db8af671d295562092e4f3f5ff42fc249fab8a8fde6",
    ),
    # The newest version that was found published. The connector above works with it.
    Package(
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
        "ab6e27a8a47ce63348dd0ecbd5543dc6212b4783180305cde5749e79684ea97b",
    ),
    Package(
        "org.apache.kafka:kafka-clients:3.9.1",
        "7568b998572d256f0b7bc0afdc1b7a2588b8b08415c62ce314c864a6851ae9d9",
    ),
    Package(
        "org.apache.commons:commons-pool2:2.12.1",
        "5273c8bc8c0dca2211175c0d27efbd7228efae99689aac001a8e1ef8e872e9ef",
    ),
)
EVERY = (ICEBERG, AWS, SQLITE, POSTGRES, *KAFKA)


def packages(config: Config) -> tuple[Package, ...]:
    catalog = config.lake.catalog.type
    needed = [ICEBERG]
    if catalog == "sqlite":
        needed.append(SQLITE)
    if catalog == "postgres":
        needed.append(POSTGRES)
    # The tables of a REST catalog may be on S3.
    if catalog == "rest" or config.warehouse.startswith("s3://"):
        needed.append(AWS)
    if config.wal.type == "kafka":
        needed.extend(KAFKA)
    return tuple(needed)


def jars(config: Config) -> list[Path]:
    """Returns the jars that this configuration needs. Downloads those that are missing."""
    needed = packages(config)
    download_missing(needed, config.spark.settings)
    return [jar_path(package) for package in needed]


def missing(needed: Sequence[Package]) -> list[Package]:
    return [package for package in needed if not jar_path(package).exists()]


def jar_path(package: Package) -> Path:
    return cache_folder() / "jars" / package.file_name


def download_missing(needed: Sequence[Package], settings: Mapping[str, str]) -> None:
    if not missing(needed):
        return
    folder = cache_folder() / "jars"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Check again: the previous holder of the lock may have downloaded them.
        if wanted := missing(needed):
            maven_settings = {key: value for key, value in settings.items() if key.startswith("spark.jars.")}
            fetch(wanted, folder, maven_settings)


def fetch(packages: Sequence[Package], folder: Path, settings: Mapping[str, str]) -> None:
    """Downloads the jars into the folder, each completely or not at all, with Spark's own Maven resolver.

    `settings` may have Spark's settings for it: `spark.jars.ivySettings`, `spark.jars.repositories`.
    """
    with (
        tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder) as scratch,
        _resolver(Path(scratch), settings) as resolve,
    ):
        for package in packages:
            jar = resolve(package)
            found = hashlib.sha256(jar.read_bytes()).hexdigest()
            if found != package.sha256:
                raise Permanent(
                    f"{package.coordinate} is not the jar that this release was tested with: its SHA-256 is "
                    f"{found}, expected {package.sha256}; check the Maven repository or mirror"
                )
            os.replace(jar, folder / package.file_name)


@contextlib.contextmanager
def _resolver(scratch: Path, settings: Mapping[str, str]) -> Iterator[Callable[[Package], Path]]:
    from py4j.protocol import Py4JError

    from frazil.pipeline.jvm import end_jvm, start_jvm

    report = scratch / "report.txt"
    options = shlex.join([*trust_options(), *proxy_options()])
    jvm_settings = {"spark.jars.ivy": str(scratch / "ivy"), "spark.driver.defaultJavaOptions": options}
    with report.open("wb") as errors:
        gateway = start_jvm({**settings, **jvm_settings}, errors_to=errors)

    def resolve(package: Package) -> Path:
        uri = gateway.jvm.java.net.URI.create(f"ivy://{package.coordinate}?transitive=false")
        try:
            found = gateway.jvm.org.apache.spark.util.DependencyUtils.resolveMavenDependencies(uri)
        except Py4JError as error:
            raise Transient(
                f"cannot download {package.coordinate} from Maven: {_reason(report)}; retry with access to "
                "Maven, or configure a mirror (DEFAULT_ARTIFACT_REPOSITORY in the environment, or "
                "spark.settings: {spark.jars.ivySettings: FILE})"
            ) from error
        return Path(str(found.head()))

    try:
        yield resolve
    finally:
        end_jvm(gateway)


def proxy_options() -> list[str]:
    """Returns HTTPS_PROXY and NO_PROXY, which Java does not read, as JVM options."""
    proxies = urllib.request.getproxies()
    proxy = urlsplit(proxies.get("https", ""))
    if proxy.hostname is None:
        return []
    hosts = [host.strip() for host in proxies.get("no", "").split(",") if host.strip()]
    direct = "|".join(f"*{host}" if host.startswith(".") else host for host in hosts)
    return [
        f"-Dhttps.proxyHost={proxy.hostname}",
        f"-Dhttps.proxyPort={proxy.port or 80}",
        *([f"-Dhttp.nonProxyHosts={direct}"] if direct else []),
    ]


def _reason(report: Path) -> str:
    """Returns the line of Ivy's report that has the reason."""
    lines = [line.strip() for line in report.read_text(errors="replace").splitlines()]
    reasons = [line for line in lines if "error at url" in line or line.endswith(": not found")]
    return reasons[-1] if reasons else "no reason given"


def main() -> None:
    try:
        download_missing(EVERY, {})
    except FrazilError as error:
        sys.exit(f"frazil: {error}")


if __name__ == "__main__":
    main()
