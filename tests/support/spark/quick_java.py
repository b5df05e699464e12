"""A JAVA_HOME whose JVMs start quickly. Most tests that use Spark start a JVM for a few jobs: it spends more
time on loading classes and on optimising them than on the jobs. These JVMs use the first compiler only, and
map their classes from an archive (class data sharing), if there is one for their class path.

Measured for Spark's start and one job: 13.0 s of CPU time as usual, 8.1 s with the first compiler, 3.9 s with
an archive too. `python -m tests.support.spark.java_archives` makes the archives.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from frazil.errors import ConfigError
from frazil.pipeline.jars import EVERY, jar_path
from frazil.pipeline.java import find_java, java_home
from tests.components.cache import built_once, cache_folder

ARCHIVE_INTO = "FRAZIL_TEST_ARCHIVE_INTO"
"""A folder. JVMs of this home that run with this variable write their archive there when they end."""

# An archive suits one class path. A JVM refuses an archive that does not suit, and starts without.
_JAVA = """\
#!/bin/sh
class_path=
for argument in "$@"; do
  if [ "$class_path" = next ]; then
    class_path=$argument
    break
  fi
  case $argument in -cp | -classpath) class_path=next ;; esac
done
name=$(printf %s "$class_path" | cksum | tr ' ' -)
if [ -n "$FRAZIL_TEST_ARCHIVE_INTO" ]; then
  set -- "-XX:ArchiveClassesAtExit=$FRAZIL_TEST_ARCHIVE_INTO/$name.$$" "$@"
elif [ -f {archives}/"$name" ]; then
  set -- -XX:SharedArchiveFile={archives}/"$name" "$@"
fi
exec {java} -XX:TieredStopAtLevel=1 '-Xlog:cds*=off' "$@"
"""


def use_quick_java() -> None:
    """Sets JAVA_HOME, and leaves it alone where there is no Java for Spark or its jars are yet to be fetched.
    Safe to call twice.
    """
    if os.environ.get("JAVA_HOME") == str(_home()):
        return
    with contextlib.suppress(ConfigError, FileNotFoundError):
        java, archives = shlex.quote(str(java_home() / "bin" / "java")), shlex.quote(str(_archives()))
        _write(_home() / "release", f'JAVA_VERSION="{find_java().version}"\n', 0o644)
        _write(_home() / "bin" / "java", _JAVA.format(java=java, archives=archives), 0o755)
        os.environ["JAVA_HOME"] = str(_home())


def build_archive(name: str, train: Callable[[Path], None]) -> Path:
    """Returns the folder of archives. `train(folder)` runs JVMs that write theirs into `folder`, if this was
    not done before.
    """
    archives = _archives()
    for other in cache_folder().glob(f"java-archives-{_place()}-*"):
        if other != archives:  # of a Java or of jars that were used before
            shutil.rmtree(other, ignore_errors=True)

    def build(into: Path) -> None:
        train(into)
        # Of several JVMs with one class path, the one that used most classes.
        for archive in sorted(into.iterdir(), key=lambda file: file.stat().st_size):
            os.replace(archive, archives / archive.stem)
        (into / "trained").touch()

    built_once(name, "trained", build, folder=archives)
    return archives


def _archives() -> Path:
    """Where the archives for this Java and these jars are, or would be: a JVM compares sizes and times."""
    facts = [str(java_home())]
    for jar in sorted((*_pyspark_jars().glob("*.jar"), *map(jar_path, EVERY))):
        status = jar.stat()
        facts.append(f"{jar} {status.st_size} {status.st_mtime_ns}")
    digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]
    return cache_folder() / f"java-archives-{_place()}-{digest}"


def _home() -> Path:
    return cache_folder() / f"java-home-{_place()}"


def _place() -> str:
    """Class paths are absolute: each virtual environment has archives of its own."""
    return hashlib.sha256(str(_pyspark_jars()).encode()).hexdigest()[:8]


def _pyspark_jars() -> Path:
    found = importlib.util.find_spec("pyspark")  # not imported: it takes a while
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "jars"


def _write(path: Path, text: str, mode: int) -> None:
    """At once, and only if it is not there already: other workers use it."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
        os.fchmod(file.fileno(), mode)
    os.replace(file.name, path)
