"""Jars from Maven, through the resolver that Spark itself uses: its mirrors and settings hold here too."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from frazil.errors import Permanent, Transient
from frazil.pipeline.java import trust_options


@dataclass(frozen=True)
class Package:
    """One jar, without what it depends on: Spark has that, or it is a package of its own here."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def coordinate(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


def fetch(packages: Sequence[Package], folder: Path, settings: Mapping[str, str]) -> None:
    """Puts the jars into the folder, each completely or not at all.

    `settings` may hold Spark's own for this: `spark.jars.ivySettings`, `spark.jars.repositories`.
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
                    f"{found}, expected {package.sha256}; look at where it came from"
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
                f"cannot fetch {package.coordinate} from Maven: {_reason(report)}; try again where Maven can "
                "be reached, or name a mirror (DEFAULT_ARTIFACT_REPOSITORY in the environment, or "
                "spark.settings: {spark.jars.ivySettings: FILE})"
            ) from error
        return Path(str(found.head()))

    try:
        yield resolve
    finally:
        end_jvm(gateway)


def proxy_options() -> list[str]:
    """HTTPS_PROXY and NO_PROXY, which Java does not know, as JVM options."""
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
    """What Ivy says went wrong, out of all that it says."""
    lines = [line.strip() for line in report.read_text(errors="replace").splitlines()]
    reasons = [line for line in lines if "error at url" in line or line.endswith(": not found")]
    return reasons[-1] if reasons else "it gave no reason"
